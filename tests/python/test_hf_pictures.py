"""A model of pictures on ranks that share rows, beside transformers alone on one process."""

import math

import hf_trainer
import pytest
import torch
from forks import run_forks
from hf_models import OPTIONS, TEXT, train

import longspan

PATCH, MERGE = 4, 2


VISION = dict(depth=2, num_heads=2, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=2)
LATER = dict(hidden_size=32, intermediate_size=48, num_position_embeddings=36)
DEEP = LATER | dict(deepstack_visual_indexes=[0, 1])
KINDS = {
    "qwen2_vl": dict(embed_dim=32, mlp_ratio=2),
    "qwen2_5_vl": dict(hidden_size=32, intermediate_size=48, window_size=16, fullatt_block_indexes=[1]),
    "qwen3_vl": DEEP,
    "qwen3_vl_moe": DEEP,
    "qwen3_5": LATER,
    "qwen3_5_moe": LATER,
}


def small_model(family="qwen2_5_vl", **options):
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.manual_seed(2)
    text = TEXT | OPTIONS.get(family + "_text", {}) | dict(rope_parameters=dict(
        rope_type="default", mrope_section=[1, 1, 2], rope_theta=10000.0)) | options
    size = "hidden_size" if family == "qwen2_vl" else "out_hidden_size"
    config = AutoConfig.for_model(family, text_config=text, vision_config=VISION | KINDS[family] | {size: text["hidden_size"]},
                                  image_token_id=90, video_token_id=91, vision_start_token_id=92, vision_end_token_id=93)
    return AutoModelForImageTextToText.from_config(config, dtype=torch.float32)


def batches():
    """Two rows of different lengths: one with two pictures, one with a picture; then rows without pictures."""
    generator = torch.Generator().manual_seed(5)
    grids = torch.tensor([[1, 4, 6], [1, 4, 4], [1, 6, 4]])
    counts = (grids.prod(1) // MERGE**2).tolist()

    def tokens(count):
        return torch.randint(1, 90, (count,), generator=generator).tolist()

    def picture(number):
        return [92, *[90] * counts[number], 93]

    rows = [tokens(5) + picture(0) + tokens(3) + picture(1) + tokens(7), tokens(4) + picture(2) + tokens(9)]
    made = []
    for number, lists in enumerate([rows, rows, [tokens(17), tokens(11)]]):
        longest = max(map(len, lists))
        ids = torch.tensor([one + [0] * (longest - len(one)) for one in lists])
        mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in lists])
        batch = dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill((mask == 0) | (ids >= 90), -100))
        if number < 2:
            patches = torch.randn(int(grids.prod(1).sum()), 3 * 2 * PATCH**2, generator=generator)
            batch |= dict(pixel_values=patches, image_grid_thw=grids, mm_token_type_ids=(ids == 90).int())
        made.append(batch)
    return made


def picture_examples(count):
    """Rows of uneven lengths with none, one or two pictures."""
    generator = torch.Generator().manual_seed(8)
    made = []
    for number in range(count):
        ids, grids = [], [[1, 4, 2 * (2 + n)] for n in range(number % 3)]
        for grid in grids:
            ids += torch.randint(1, 90, (3,), generator=generator).tolist()
            ids += [92, *[90] * (math.prod(grid) // MERGE**2), 93]
        ids += torch.randint(1, 90, (11 + number * 5 % 17,), generator=generator).tolist()
        patches = torch.randn(sum(map(math.prod, grids)), 3 * 2 * PATCH**2, generator=generator)
        made.append(dict(input_ids=ids, labels=[-100 if id >= 90 else id for id in ids], grids=grids, patches=patches))
    return made


def padded_pictures(batch):
    made = hf_trainer.padded(batch)
    if grids := [grid for example in batch for grid in example["grids"]]:
        made |= dict(pixel_values=torch.cat([example["patches"] for example in batch]), image_grid_thw=torch.tensor(grids),
                     mm_token_type_ids=(made["input_ids"] == 90).int())
    return made


def trainer_of(folder, model, **arguments):
    return hf_trainer.trainer_of(folder, model, padded_pictures, picture_examples, remove_unused_columns=False, **arguments)


def shared(rank, size, runs):
    found = []
    for family, options in runs:
        model, loader = longspan.parallelize(small_model(family), batches(), sequence_parallel_size=size, **options)
        found.append(train(model, loader))
    return found


@pytest.mark.parametrize("size, runs", [
    (2, [("qwen2_5_vl", dict(mode="ulysses")), ("qwen3_vl", dict(mode="zigzag-ring", takeover="sdpa"))]),
    (3, [(family, dict(mode=mode)) for family, mode in zip(KINDS, ["auto", "zigzag-ring", "striped-ring"] * 2)]),
])
def test_pictures(size, runs):
    expected = [train(small_model(family), batches()) for family, _ in runs]
    for results in run_forks(size, shared, size, runs):
        for found, wanted in zip(results, expected, strict=True):
            for ours, theirs in zip(found[0], wanted[0], strict=True):
                assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4)), (found, wanted)
            assert found[1] == pytest.approx(wanted[1], abs=1e-5)


def test_every_family():
    from longspan._pictures import CHECKED_TYPES

    assert set(KINDS) == CHECKED_TYPES


def videos(family):
    """A batch of two rows of different lengths: one with a picture and a video, one with a video alone."""
    generator = torch.Generator().manual_seed(9)
    clips, still = [(2, 4, 6), (3, 4, 4)], (1, 4, 4)
    frames = [[91] * (height * width // MERGE**2) for _, height, width in clips]
    # Text stands between the frames of a video for the newer families.
    between = [93, 7, 8, 92] if family.startswith("qwen3") else []
    shown = [[92, *frame, *(between + frame) * (count - 1), 93] for frame, (count, *_) in zip(frames, clips)]
    rows = [[5, 6, 92, *[90] * (math.prod(still) // MERGE**2), 93, 4, *shown[0], *range(10, 19)], [3, *shown[1], *range(20, 26)]]
    ids, mask = (torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in lists], True)
                 for lists in (rows, [[1] * len(row) for row in rows]))
    made = dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill((mask == 0) | (ids >= 90), -100),
                mm_token_type_ids=(ids == 90).int() + 2 * (ids == 91).int(), image_grid_thw=torch.tensor([still]),
                video_grid_thw=torch.tensor(clips))
    for name, grids in (("pixel_values", [still]), ("pixel_values_videos", clips)):
        made[name] = torch.randn(sum(map(math.prod, grids)), 3 * 2 * PATCH**2, generator=generator)
    return [made | (dict(second_per_grid_ts=torch.tensor([0.5, 1.5])) if family == "qwen2_5_vl" else {})]


def shared_videos(rank, runs):
    found = []
    for family, mode in runs:
        model, loader = longspan.parallelize(small_model(family), videos(family), sequence_parallel_size=2, mode=mode)
        found.append(train(model, loader))
    return found


def test_videos():
    runs = [(family, ["zigzag-ring", "auto", "allgather"][number % 3]) for number, family in enumerate(KINDS)]
    expected = [train(small_model(family), videos(family)) for family, _ in runs]
    for results in run_forks(2, shared_videos, runs):
        for found, wanted in zip(results, expected, strict=True):
            assert found[0] == [(pytest.approx(loss, abs=1e-5), pytest.approx(norm, abs=1e-4)) for loss, norm in wanted[0]]
            assert found[1] == pytest.approx(wanted[1], abs=1e-5)


def packed(model, batch):
    """The rows of a batch as documents of one row."""
    ids, lengths = batch["input_ids"], batch["attention_mask"].sum(1).tolist()
    axes = torch.arange(ids.shape[1]).expand(3, *ids.shape)
    made = {}
    if "pixel_values" in batch:
        made = {name: batch[name] for name in ("pixel_values", "image_grid_thw")}
        axes, _ = model.model.get_rope_index(ids, batch["mm_token_type_ids"], image_grid_thw=batch["image_grid_thw"],
                                             attention_mask=batch["attention_mask"])

    def join(whole):  # [..., rows, tokens]
        return torch.cat([whole[..., row, :length] for row, length in enumerate(lengths)], -1)[..., None, :]

    places = torch.arange(ids.shape[1]).expand(1, *ids.shape)
    labels = batch["labels"].clone()
    labels[:, 0] = -100
    return made | dict(input_ids=join(ids), labels=join(labels), position_ids=join(torch.cat([places, axes])))


def shared_packed(rank, size, runs):
    from longspan._registry import state_of_model

    found = []
    for family, mode, by_states in runs:
        model = small_model(family)
        rows = [packed(model, batch) for batch in batches()]
        model, loader = longspan.parallelize(model, rows, sequence_parallel_size=size, mode=mode)
        state_of_model(model).passes_states = by_states
        found.append(train(model, loader))
    return found


def packed_alone(family):
    """transformers with packed rows; for gated delta networks, whose documents transformers ignores, with rows of their own."""
    model = small_model(family)
    rows = batches() if family.startswith("qwen3_5") else [packed(model, batch) for batch in batches()]
    return train(model, rows)


@pytest.mark.parametrize("size", [1, 3])
def test_packed(size):
    modes = ["zigzag-ring", "allgather", "auto"]
    runs = [(family, modes[(number + size) % 3], (number + size) % 2 == 0) for number, family in enumerate(KINDS)]
    expected = [packed_alone(family) for family, *_ in runs]
    for results in run_forks(size, shared_packed, size, runs):
        for found, wanted in zip(results, expected, strict=True):
            for ours, theirs in zip(found[0], wanted[0], strict=True):
                assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4)), (found, wanted)
            assert found[1] == pytest.approx(wanted[1], abs=1e-5)


def test_refused():
    batch = batches()[0]
    _, loader = longspan.parallelize(small_model(), [batch | dict(position_ids=batch["input_ids"])], sequence_parallel_size=1)
    with pytest.raises(longspan.UsageError, match=r"is \[2, 29\], and must be \[4, 2, 29\]"):
        next(iter(loader))
    model, loader = longspan.parallelize(small_model("qwen3_vl_moe", output_router_logits=True), [batch], sequence_parallel_size=1)
    with pytest.raises(longspan.UsageError, match="got output_router_logits"):
        model(**next(iter(loader)))
