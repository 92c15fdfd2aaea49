"""A model of pictures on ranks that share rows, beside transformers alone on one process."""

import pytest
import torch
from forks import run_forks
from hf_models import TEXT, train

import longspan

PATCH, MERGE = 4, 2


def small_model(**options):
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(2)
    text = TEXT | options | dict(rope_parameters=dict(rope_type="default", mrope_section=[1, 1, 2], rope_theta=10000.0))
    vision = dict(depth=2, hidden_size=32, intermediate_size=48, num_heads=2, patch_size=PATCH, spatial_merge_size=MERGE,
                  temporal_patch_size=2, window_size=16, fullatt_block_indexes=[1], out_hidden_size=text["hidden_size"])
    return Qwen2_5_VLForConditionalGeneration._from_config(Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=90, video_token_id=91, vision_start_token_id=92,
        vision_end_token_id=93))


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


def shared(rank, mode, size):
    model, loader = longspan.parallelize(small_model(), batches(), sequence_parallel_size=size, mode=mode)
    return train(model, loader)


@pytest.mark.parametrize("mode, size", [("ulysses", 2), ("zigzag-ring", 3)])
def test_pictures(mode, size):
    expected = train(small_model(), batches())
    for found in run_forks(size, shared, mode, size):
        for ours, theirs in zip(found[0], expected[0], strict=True):
            assert ours == (pytest.approx(theirs[0], abs=1e-5), pytest.approx(theirs[1], abs=1e-4))
        assert found[1] == pytest.approx(expected[1], abs=1e-5)


def test_refused():
    batch = batches()[0]
    _, loader = longspan.parallelize(small_model(), [batch | dict(position_ids=batch["input_ids"])], sequence_parallel_size=1)
    with pytest.raises(longspan.UsageError, match="position_ids and cu_seq_lens_q are not possible with pictures"):
        next(iter(loader))
