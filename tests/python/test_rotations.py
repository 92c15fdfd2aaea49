"""longspan.parallelize with rotary embeddings that depend on the length of rows, beside transformers alone on one process."""

import pytest
import torch
from forks import run_forks
from hf_models import packed_batches, small_model, train, unpacked, uneven_batches
from test_hf_pictures import batches as picture_batches
from test_hf_pictures import small_model as picture_model
from test_parallelize import close

# Frequencies depend on the largest position of a batch: 26, 16, 8, and 26 again. The positions of the ranks are on both sides of 14.
ROTATIONS = [
    ("llama", dict(rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=100.0), max_position_embeddings=14)),
    ("phi3", dict(rope_parameters=dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0] * 4, long_factor=[9.0] * 4,
                                       original_max_position_embeddings=14, factor=16.0), original_max_position_embeddings=14)),
    ("gemma3_text", dict(rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=dict(
        rope_type="dynamic", factor=4.0, rope_theta=100.0)), max_position_embeddings=14)),
]
PICTURES = dict(rope_parameters=ROTATIONS[0][1]["rope_parameters"] | dict(mrope_section=[1, 1, 2]), max_position_embeddings=8,
                initializer_range=0.1)


def rotated(rank, batches):
    import longspan

    found = []
    for family, options in ROTATIONS:
        model, loader = longspan.parallelize(small_model(family, initializer_range=0.1, **options), batches, mode="ulysses",
                                             sequence_parallel_size=2)
        found.append(train(model, loader, accumulation=2))
    batch = next(iter(loader))
    model_of_pictures, loader = longspan.parallelize(picture_model("qwen2_vl", **PICTURES), picture_batches(), mode="ulysses",
                                                     sequence_parallel_size=2)
    found.append(train(model_of_pictures, loader))
    with torch.no_grad(), pytest.raises(longspan.UsageError, match="the largest position of a batch, and runs outside"):
        model.model(**{name: batch[name] for name in batch if "labels" not in name})
    return found


def test_rotations_by_the_length():
    """Ranks rotate by the frequencies of the whole batch: rows of several lengths, packed rows, accumulated gradients."""
    batches = [*uneven_batches(1, tokens=27), *packed_batches(1), *uneven_batches(1, tokens=9), *uneven_batches(1, tokens=27)]
    expected = [train(small_model(family, initializer_range=0.1, **options), [unpacked(batch) for batch in batches], accumulation=2)
                for family, options in ROTATIONS]
    expected.append(train(picture_model("qwen2_vl", **PICTURES), picture_batches()))
    for found in run_forks(2, rotated, batches):
        for ours, theirs in zip(found, expected, strict=True):
            close(ours, theirs)
