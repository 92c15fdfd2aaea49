"""longspan.Session on rows with pictures, beside transformers."""

import json
import random
import sys
from pathlib import Path

import numpy
import pytest
import torch
from conftest import free_port
from forks import run_forks
from PIL import Image
from test_session import config_of, open_session

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parity"))

from picture_models import patch_of, write_model_with_pictures  # noqa: E402

SIZES = {"qwen2_5_vl": [(3, 2), (2, 4)], "qwen3_5": [(8, 9), (10, 8)]}  # in merged patches: no processor resizes these


@pytest.fixture(scope="module", params=list(SIZES))
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("session") / request.param
    write_model_with_pictures(place, request.param, std=0.05)
    side, rng = 2 * patch_of(request.param), random.Random(4)
    for number, (width, height) in enumerate(SIZES[request.param]):
        size = (width * side, height * side)
        Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1])).save(place / f"{number}.png")
    return place


def documents_of(folder, config):
    """Ids, labels and pictures of two documents: with two pictures, and with none."""
    ids = list(range(20, 26))
    for width, height in SIZES[folder.name]:
        ids += [config["vision_start_token_id"], *[config["image_token_id"]] * (width * height), config["vision_end_token_id"]]
        ids += range(30, 37)
    labels = [-100 if x >= config["image_token_id"] - 4 else x for x in ids]
    return [(ids, labels, [str(folder / "0.png"), str(folder / "1.png")]), (list(range(40, 52)), list(range(40, 52)), [])]


def array_of(file):
    return numpy.asarray(Image.open(file))


def processed(folder, files):
    """pixel_values and image_grid_thw of transformers' processor."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) if patch_of(folder.name) == 16 else {}
    processor = Qwen2VLImageProcessorPil(patch_size=patch_of(folder.name), min_pixels=4, max_pixels=1 << 24, **values)
    return dict(processor([Image.open(file) for file in files], return_tensors="pt")) if files else {}


def trained(rank, size, port, folder, documents):
    """Losses and norms of gradients: of files, of a file and an array, and of the results of transformers' processor."""
    import longspan

    forms = [lambda files: dict(pictures=files), lambda files: dict(pictures=[*files[:1], *map(array_of, files[1:])]),
             lambda files: processed(folder, files)]
    found = []
    keys = dict(freeze_vision_tower=False, freeze_multi_modal_projector=False, cutoff_len=512)
    with open_session(config_of(str(folder), **keys), rank, size, port, pictures=True) as session:
        for form in forms:
            row = session.row([longspan.Sample(ids, labels, **form(files)) for ids, labels, files in documents])
            weight = session.count([row]).weight
            loss = session.sum_up(session.forward_backward([row], lambda given: -given.logprobs.sum() / weight))
            found.append((loss, session.reduce()))
            session.drop()
    return found


def alone(folder, documents):
    """The loss and the norm of gradients of transformers, a document at a time."""
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    counts = [sum(label != -100 for label in labels[1:]) for _, labels, _ in documents]
    loss = 0.0
    for (ids, labels, files), count in zip(documents, counts):
        given = dict(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]))
        if files:
            given |= dict(processed(folder, files),
                          mm_token_type_ids=(given["input_ids"] == model.config.image_token_id).int())
        loss = loss + model(**given).loss * count / sum(counts)
    loss.backward()
    return loss.item(), torch.nn.utils.get_total_norm([x.grad for x in model.parameters() if x.grad is not None]).item()


def test_pictures(folder):
    documents = documents_of(folder, json.loads((folder / "config.json").read_text()))
    expected = alone(folder, documents)
    for files, array, patches in run_forks(2, trained, 2, free_port(), folder, documents):
        assert array == files
        for loss, norm in (files, patches):
            assert loss == pytest.approx(expected[0], abs=1e-5) and norm == pytest.approx(expected[1], rel=1e-4)


def refused(rank, folder, documents):
    import longspan

    (ids, _, files), _ = documents
    values = processed(folder, files)
    grids = values["image_grid_thw"]
    texts = []

    def attempt(function):
        with pytest.raises(longspan.UsageError) as error:
            function()
        texts.append(str(error.value))

    with open_session(config_of(str(folder))) as session:
        attempt(lambda: session.row([longspan.Sample(ids, pictures=files)]))
    with open_session(config_of(str(folder)), pictures=True) as session:
        attempt(lambda: session.row([longspan.Sample(ids, pictures=files[:1])]))
        attempt(lambda: session.row([longspan.Sample(ids, pictures=["missing.png", files[1]])]))
        attempt(lambda: session.row([longspan.Sample(ids, pictures=files, columns=dict(feature=ids))]))
        for pictures in ([array_of(files[0]).transpose(2, 0, 1)], [torch.zeros(28, 28, 3)], [Image.open(files[0])]):
            attempt(lambda: session.row([longspan.Sample(ids, pictures=pictures)]))
        for given in (dict(image_grid_thw=None), dict(pictures=files), dict(image_grid_thw=grids[:1]),
                      dict(image_grid_thw=grids * torch.tensor([2, 1, 1]) // torch.tensor([1, 1, 2])),
                      dict(pixel_values=values["pixel_values"][:, 1:])):
            attempt(lambda: session.row([longspan.Sample(ids, **values | given)]))
        session.row([longspan.Sample(ids, pictures=files)])
    return texts


@pytest.mark.parametrize("folder", ["qwen2_5_vl"], indirect=True)
def test_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    counts = [width * height for width, height in SIZES[folder.name]]
    (texts,) = run_forks(1, refused, folder, documents_of(folder, config))
    for text, part in zip(texts, ["open the session with pictures=True",
                                  f"{sum(counts)} tokens <|image_pad|>, and its pictures have [{counts[0]}] features",
                                  "missing.png", "the column feature belongs to pictures",
                                  "picture 0 has shape [3, 56, 84] and dtype Byte, and must have shape [height, width, 3]",
                                  "picture 0 has shape [28, 28, 3] and dtype Float", "numpy.asarray(picture.convert",
                                  *["pixel_values together with image_grid_thw"] * 2, "has 24 patches, and pixel_values have 56",
                                  "picture 0 has the grid [2, 4, 3] of image_grid_thw, and 24 patches",
                                  "picture 0 has pixel_values of shape [24, 1175]"], strict=True):
        assert part in text
