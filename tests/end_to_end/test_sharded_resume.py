"""States that were divided one way go on divided that way to the last bit, and divided any other way."""

import pytest
from conftest import relative_difference
from test_resume import LORA, TOLERANCE, halfway, same_bytes, settings, succeeds

OFFLOAD = dict(offload_optimizer=True, offload_params=True)
LAYOUTS = {
    "zero1": (2, dict(zero_stage=1)),
    "zero2": (2, dict(zero_stage=2)),
    "zero3": (2, dict(zero_stage=3)),
    "zero3 in bf16, offloaded": (2, dict(zero_stage=3, bf16=True) | OFFLOAD),
    "zero0 offloaded": (1, dict(offload_optimizer=True, bf16=True)),
    "hybrid": (4, dict(zero_stage=3, zero_shard_size=2, sequence_parallel_size=2)),
    "8 bit": (2, dict(zero_stage=3, optim="adamw_8bit")),
    "muon": (2, dict(zero_stage=3, optim="muon") | OFFLOAD),
    "lora with dropout": (2, dict(zero_stage=3) | LORA),
    "dora, norms whole": (2, dict(zero_stage=3, use_dora=True, additional_target="norm") | LORA),
    "dpo": (2, dict(zero_stage=3, stage="dpo", dataset="pairs")),
    "stacked experts, zero1": (2, dict(zero_stage=1, model="gpt_oss")),
    "stacked experts, zero3": (2, dict(zero_stage=3, model="gpt_oss", expert_parallel_size=2)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_steps_are_five_and_five(layout, settings, tmp_path):
    num_ranks, keys = LAYOUTS[layout]
    keys = dict(gradient_accumulation_steps=2, logging_steps=2) | keys
    whole = succeeds(settings("whole", **keys), num_ranks)
    output = halfway(whole, 5, tmp_path / "halves")
    resumed = succeeds(settings("halves", **keys) | dict(output_dir=output), num_ranks)
    assert "step 5 of 10" in resumed.text
    same_bytes(whole, resumed)


@pytest.mark.parametrize("bf16", [False, True])
def test_other_layouts(bf16, settings, tmp_path):
    """4 rows a step, whoever computes them and holds what."""
    keys = dict(learning_rate=3e-4, weight_decay=0.01, bf16=bf16)
    start = succeeds(settings("start", gradient_accumulation_steps=1, zero_stage=3, **keys), 4)
    rest = slice(5, None)
    layouts = [(1, 1, {}), (2, 1, dict(zero_stage=1)), (4, 4, dict(zero_stage=2, offload_optimizer=True)),
               (2, 2, dict(zero_stage=3) | OFFLOAD), (4, 1, dict(zero_stage=3, zero_shard_size=2))]
    for number, (num_ranks, sequence_size, layout) in enumerate(layouts[:3] if bf16 else layouts):
        output = halfway(start, 5, tmp_path / f"other{number}")
        resumed = succeeds(settings("x", **keys, **layout) | dict(
            output_dir=output, sequence_parallel_size=sequence_size,
            gradient_accumulation_steps=4 * sequence_size // num_ranks), num_ranks)
        assert resumed.logged("loss")[:5] == start.logged("loss")[:5]
        for key in ("loss", "grad_norm"):
            apart = relative_difference(resumed.logged(key)[rest], start.logged(key)[rest])
            # In bf16 what fp32 sums in another order may round the other way.
            assert apart < (2e-3 if bf16 else TOLERANCE)


def test_whole_states_go_on_divided(settings, tmp_path):
    keys = dict(learning_rate=3e-4, weight_decay=0.01)
    start = succeeds(settings("start", gradient_accumulation_steps=4, **keys), 1)
    output = halfway(start, 5, tmp_path / "divided")
    divided = succeeds(settings("x", gradient_accumulation_steps=1, zero_stage=3, **keys) | dict(output_dir=output), 4)
    for key in ("loss", "grad_norm"):
        assert relative_difference(divided.logged(key)[5:], start.logged(key)[5:]) < TOLERANCE


def test_a_step_that_is_left_out(settings, models, tmp_path):
    """NaN in a weight's gradient: all ranks skip, and nothing that was under way is left over."""
    for stage in (1, 2, 3):
        keys = dict(learning_rate=1e30, max_grad_norm=0, max_steps=6, on_nonfinite="skip", save_strategy="no",
                    zero_stage=stage, gradient_accumulation_steps=2, lr_scheduler_type="constant")
        run = succeeds(settings(f"skips{stage}", **keys), 2)
        assert "The update is left out" in run.texts[0]
