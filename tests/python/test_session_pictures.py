"""longspan.Session on rows with pictures, beside transformers."""

import json
import random
import sys
from pathlib import Path

import pytest
import torch
from conftest import free_port
from PIL import Image
from ranks import run_ranks
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


def trained(rank, size, port, folder, documents):
    import longspan

    keys = dict(freeze_vision_tower=False, freeze_multi_modal_projector=False, cutoff_len=512)
    with open_session(config_of(str(folder), **keys), rank, size, port, pictures=True) as session:
        row = session.row([longspan.Sample(ids, labels, pictures=files) for ids, labels, files in documents])
        loss = session.sum_up(session.forward_backward([row], lambda given: -given.logprobs.sum() / session.count([row]).weight))
        norm = session.reduce()
        session.drop()
        return loss, norm


def alone(folder, documents):
    """The loss and the norm of gradients of transformers, a document at a time."""
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    model = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    values = dict(image_mean=[0.5] * 3, image_std=[0.5] * 3) if patch_of(folder.name) == 16 else {}
    processor = Qwen2VLImageProcessorPil(patch_size=patch_of(folder.name), min_pixels=4, max_pixels=1 << 24, **values)
    counts = [sum(label != -100 for label in labels[1:]) for _, labels, _ in documents]
    loss = 0.0
    for (ids, labels, files), count in zip(documents, counts):
        given = dict(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]))
        if files:
            given |= dict(processor([Image.open(file) for file in files], return_tensors="pt"),
                          mm_token_type_ids=(given["input_ids"] == model.config.image_token_id).int())
        loss = loss + model(**given).loss * count / sum(counts)
    loss.backward()
    return loss.item(), torch.nn.utils.get_total_norm([x.grad for x in model.parameters() if x.grad is not None]).item()


def test_pictures(folder):
    documents = documents_of(folder, json.loads((folder / "config.json").read_text()))
    expected = alone(folder, documents)
    for loss, norm in run_ranks(2, trained, 2, free_port(), folder, documents):
        assert loss == pytest.approx(expected[0], abs=1e-5) and norm == pytest.approx(expected[1], rel=1e-4)


def refused(rank, folder, documents):
    import longspan

    (ids, _, files), _ = documents
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
        session.row([longspan.Sample(ids, pictures=files)])
    return texts


@pytest.mark.parametrize("folder", ["qwen2_5_vl"], indirect=True)
def test_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    counts = [width * height for width, height in SIZES[folder.name]]
    (texts,) = run_ranks(1, refused, folder, documents_of(folder, config))
    for text, part in zip(texts, ["open the session with pictures=True",
                                  f"{sum(counts)} tokens <|image_pad|>, and its pictures have [{counts[0]}] features",
                                  "missing.png", "the column feature belongs to pictures"], strict=True):
        assert "sample 0 of example 0" in text and part in text
