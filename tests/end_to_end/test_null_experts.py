"""The gemms of experts on null CUDA: by Longspan's kernel, or by at::_grouped_mm where it is measured to be faster."""

import pytest
from conftest import write_model
from shared import made_once
from test_null_cuda import pytestmark, start, train  # noqa: F401

# The gemms of experts whose matrices a pass casts: of gate and up, of down, of down's input gradient.
EXPERTS = dict(packing=True, cutoff_len=1024, per_device_train_batch_size=1)
# Four times by Longspan's kernel, then four by the library: even rows twice, skewed rows twice.
FASTER = {"NULL_CUDA_MILLISECONDS": "0.9,0.9,0.9,0.9,0.1,0.1,0.1,0.1"}
CHOSEN, NOT_USED = "at::_grouped_mm computes 3 of 3 kinds of gemms", "at::_grouped_mm cannot be used for experts on this GPU: "


@pytest.mark.parametrize("variables, keys, said", [
    (FASTER, {}, CHOSEN), (FASTER | {"NULL_CUDA_REFUSED": "GemmUniversal"}, {}, NOT_USED),
    (FASTER, dict(full_determinism=True), "")], ids=["faster", "refused", "deterministic"])
def test_gemms_of_experts_are_computed_by_the_faster_kernel(train, place, variables, keys, said):  # noqa: F811
    model = str(made_once(place / "qwen3_moe", lambda folder: write_model(folder, "qwen3_moe")))
    ended, (counts,) = train(variables=variables, model=model, max_steps=1, **EXPERTS | keys)
    assert len(ended.logged("loss")) == 1
    for text in (CHOSEN, NOT_USED):
        assert ended.text.count(text) == (text == said), ended.text
    launches = counts["launches"]
    by_library = sum(count for name, count in launches.items() if "GemmUniversal" in name)
    measured = 3 * (1 + 4)  # of each kind, the first time and four measured times
    assert by_library > measured if said == CHOSEN else by_library == 0, launches
    assert launches["cast_matrices"] > 0 and launches["grouped_matrices"] > 0, launches
    # Both input gradients of gate and up in one sum.
    assert launches["grouped_rows_transposed_b"] > 0, launches
