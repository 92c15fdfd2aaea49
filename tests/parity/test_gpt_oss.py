"""gpt-oss against transformers: training, windows and sinks on several ranks, weights in MXFP4, adapters of stacked
experts."""

import json
import subprocess

import pytest
import torch
from conftest import PROGRAM, Running, relative_difference, run_to_end, settings_of, write_dataset, write_model
from gpt_oss import WINDOW, in_mxfp4
from pairs import load
from safetensors.torch import load_file
from test_lora import assert_same_adapters, distance, logits_of, with_adapter, write_adapter
from test_models import make_row, probe, reference_logits, relative_error
from test_trainer import WEIGHTS, our_rows, transformers_run
from tolerance import ADAM_EPSILON, TOLERANCE
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

SHARED = dict(learning_rate=1e-3, adam_epsilon=ADAM_EPSILON, weight_decay=0.1, per_device_train_batch_size=4,
              gradient_accumulation_steps=1)
FIVE, TEN = [SHARED | dict(max_steps=steps) for steps in (5, 10)]


@pytest.fixture(scope="module")
def own_place(tmp_path_factory):
    return tmp_path_factory.mktemp("gpt_oss")


@pytest.fixture(scope="module")
def model_folder(own_place):
    return str(write_model(own_place / "model", "gpt_oss"))


@pytest.fixture(scope="module")
def short_rows(own_place):
    folder = own_place / "rows"
    write_dataset(folder, num_rows=24, shortest=4, longest=20)
    return str(folder)


def run(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


def in_fp32(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def eager(model):
    """Grouped products know no fp64."""
    model.set_experts_implementation("eager")
    return model


@pytest.mark.parametrize("auxiliary", [None, 0.05])
def test_training(auxiliary, model_folder, short_rows, tmp_path):
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | FIVE
    rows = our_rows(settings, tmp_path)
    finished = run(settings | (dict(moe_aux_loss_coef=auxiliary) if auxiliary else {}))

    def prepare(model):
        model.config.output_router_logits = bool(auxiliary)
        model.router_aux_loss_coef = auxiliary
        return eager(model)

    history, model = transformers_run(model_folder, rows, tmp_path, prepare, **FIVE)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key
    saved, info = AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    start = in_fp32(model_folder).state_dict()
    assert distance(saved.state_dict(), model.state_dict()) < WEIGHTS * distance(start, model.state_dict())


LONG_WINDOW = 120  # longer than the share of each of four ranks in a row
LAYOUTS = {
    "ulysses": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ulysses")),
    "ulysses of 3": (3, dict(sequence_parallel_size=3, sequence_parallel_mode="ulysses")),
    "ring": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ring")),
    "zigzag ring of 3": (3, dict(sequence_parallel_size=3, sequence_parallel_mode="zigzag-ring")),
    "usp": (4, dict(sequence_parallel_size=4, sequence_parallel_mode="usp", sequence_parallel_ulysses_degree=2)),
    "zero 3": (2, dict(sequence_parallel_size=2, sequence_parallel_mode="ring", zero_stage=3)),
}
WINDOWS_AND_LAYOUTS = [(WINDOW, layout) for layout in LAYOUTS]
WINDOWS_AND_LAYOUTS += [(LONG_WINDOW, layout) for layout in ("usp",)]
ONE_ROW = TEN | dict(per_device_train_batch_size=1)


@pytest.fixture(scope="module")
def one_process(own_place, model_folder):
    """Of both windows: the model's folder, the rows and a run on them."""
    write_dataset(own_place / "long_rows", shortest=60, longest=90)
    rows = str(own_place / "long_rows")
    folders = {WINDOW: model_folder}
    folders[LONG_WINDOW] = str(write_model(own_place / "long_window", "gpt_oss", sliding_window=LONG_WINDOW))
    return {window: (folder, rows, run(settings_of(folder, rows, own_place / f"one_process{window}") | ONE_ROW))
            for window, folder in folders.items()}


@pytest.mark.parametrize("window, layout", WINDOWS_AND_LAYOUTS)
def test_layouts(window, layout, one_process, tmp_path):
    folder, rows, alone = one_process[window]
    num_ranks, keys = LAYOUTS[layout]
    settings = settings_of(folder, rows, tmp_path / "ours") | ONE_ROW
    lengths = [len(row["input_ids"]) for row in our_rows(settings, tmp_path)]
    if window == LONG_WINDOW:
        assert max(lengths) / num_ranks < window < min(lengths)
    else:
        assert window < min(lengths) / num_ranks
    finished = run(settings | keys, num_ranks)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), alone.logged(key)) < TOLERANCE, key
    mine, theirs, start = [in_fp32(f).state_dict() for f in (finished.output_dir, alone.output_dir, folder)]
    assert distance(mine, theirs) < WEIGHTS * distance(start, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_mxfp4_to_the_bit(dtype, tmp_path):
    """All bytes and all powers of two; 2^128, the last, makes infinities, and of zeros NaNs."""
    folder = write_model(tmp_path / "model", "gpt_oss")
    quantized = in_mxfp4(folder, scales=(0, 255))
    tokens, labels = make_row(300, [10])
    kind = str(dtype).removeprefix("torch.")
    probe(folder, tmp_path, tokens, labels, [10], [], save_to=str(tmp_path / "copy"), save_dtype=kind, parameter_dtype=kind)
    saved = load_file(tmp_path / "copy" / "model.safetensors")
    assert not any(name.endswith(("_blocks", "_scales")) for name in saved)
    for name, (blocks, scales) in quantized.items():
        expected = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
        assert saved[name].dtype == dtype and expected.isinf().any()
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        same = (saved[name].view(bits) == expected.view(bits)) | (saved[name].isnan() & expected.isnan())
        assert same.all(), name


PRECISIONS = {
    "bf16": (dict(bf16=True), torch.bfloat16),
    "pure bf16": (dict(pure_bf16=True), torch.bfloat16),
    "fp32": (dict(), torch.float32),
}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_mxfp4_is_trained_and_saved_as_plain_numbers(precision, short_rows, tmp_path):
    """In the precision that trains, which config.json says; numbers in MXFP4 are numbers of bf16, so that nothing rounds."""
    keys, dtype = PRECISIONS[precision]
    folder = write_model(tmp_path / "model", "gpt_oss", dtype="bfloat16")
    in_mxfp4(folder)
    theirs = in_fp32(folder)
    documents = [23, 40]
    tokens, labels = make_row(300, documents)
    with torch.no_grad():
        expected = reference_logits(theirs, tokens, documents)
    results = probe(folder, tmp_path, tokens, labels, documents, ["logits"])
    assert relative_error(results["logits"], expected) < 1e-5
    finished = run(settings_of(folder, short_rows, tmp_path / "ours") | SHARED | dict(max_steps=1, learning_rate=0.0) | keys)
    config = json.loads((finished.output_dir / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == str(dtype).removeprefix("torch.")
    assert all(tensor.dtype == dtype for tensor in load_file(finished.output_dir / "model.safetensors").values())
    saved, info = AutoModelForCausalLM.from_pretrained(finished.output_dir, dtype="auto", output_loading_info=True)
    assert saved.dtype == dtype and not info["missing_keys"] and not info["unexpected_keys"]
    for name, value in theirs.state_dict().items():
        assert torch.equal(saved.state_dict()[name].float(), value), name
    with torch.no_grad():
        assert torch.equal(reference_logits(in_fp32(finished.output_dir), tokens, documents), expected)


def test_adapter_of_mxfp4_is_merged_into_bf16(short_rows, tmp_path):
    """Published config.jsons of models in MXFP4 name no dtype."""
    folder = write_model(tmp_path / "model", "gpt_oss", dtype="bfloat16")
    in_mxfp4(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["dtype"]
    (folder / "config.json").write_text(json.dumps(config))
    settings = settings_of(folder, short_rows, tmp_path / "ours") | SHARED | dict(max_steps=2, bf16=True)
    finished = run(settings | dict(finetuning_type="lora", lora_target="q_proj,gate_up_proj,down_proj"))
    adapter = load_file(finished.output_dir / "adapter_model.safetensors")
    assert any(matrix.any() for name, matrix in adapter.items() if "lora_B" in name)
    job = tmp_path / "export.json"
    job.write_text(json.dumps(dict(model_name_or_path=str(folder), adapter_name_or_path=str(finished.output_dir),
                                   export_dir=str(tmp_path / "merged"))))
    ran = subprocess.run([PROGRAM, "export", job], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    merged = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert "quantization_config" not in merged and "bfloat16" in (merged.get("dtype"), merged.get("torch_dtype"))
    theirs = with_adapter(in_fp32(folder), finished.output_dir, is_trainable=False).merge_and_unload().state_dict()
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    for name, value in theirs.items():
        assert ours[name].dtype == torch.bfloat16
        torch.testing.assert_close(ours[name].float(), value, rtol=2**-8, atol=1e-6)


def test_mxfp4_that_does_not_fit(short_rows, tmp_path):
    folder = write_model(tmp_path / "model", "gpt_oss")
    in_mxfp4(folder)
    config = json.loads((folder / "config.json").read_text())

    def refusal(**keys):
        (folder / "config.json").write_text(json.dumps(config | keys))
        finished = Running(settings_of(folder, short_rows, tmp_path / "ours")).wait()
        assert finished.status == 1
        return finished.text

    assert "missing tensors (model.layers.0.mlp.experts.gate_up_proj" in refusal(quantization_config=None)
    assert "gate_up_proj_blocks has shape [6, 64, 2, 16] but config.json asks for [6, 128, 2, 16]" in refusal(intermediate_size=64)
    assert "has quantization_config (quant_method hqq)" in refusal(quantization_config=dict(quant_method="hqq"))


ATTENTION, EXPERTS = ["q_proj", "k_proj", "v_proj", "o_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ADAPTERS = {
    "attention": dict(target_modules=ATTENTION),
    "experts": dict(target_modules=["q_proj", "o_proj"], target_parameters=EXPERTS),
    "down, stabilized": dict(target_modules=[], target_parameters=EXPERTS[1:], use_rslora=True),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name, model_folder, short_rows, tmp_path):
    """PEFT's adapters of stacked experts are its target_parameters."""
    start = write_adapter(model_folder, tmp_path / "start", **ADAPTERS[name] | dict(init_lora_weights=False))
    settings = settings_of(model_folder, short_rows, tmp_path / "ours", disable_shuffling=True) | FIVE
    rows = our_rows(settings, tmp_path)
    finished = run(settings | dict(finetuning_type="lora", adapter_name_or_path=start))
    history, trained = transformers_run(model_folder, rows, tmp_path, lambda model: with_adapter(eager(model), start),
                                        **FIVE)
    for key in ("loss", "grad_norm"):
        assert relative_difference(finished.logged(key), [entry[key] for entry in history]) < TOLERANCE, key
    assert_same_adapters(finished.output_dir, trained, start, tmp_path)

    # Our file through PEFT computes what PEFT's own training ended with, and merged it is what we merge.
    ids = rows[0]["input_ids"]
    loaded = with_adapter(load(model_folder), finished.output_dir, is_trainable=False)
    expected, got, untrained = logits_of(trained, ids), logits_of(loaded, ids), logits_of(load(model_folder), ids)
    assert (got - expected).norm() < 1e-3 * (untrained - expected).norm()
    config = tmp_path / "export.json"
    config.write_text(json.dumps(dict(model_name_or_path=model_folder, adapter_name_or_path=str(finished.output_dir),
                                      export_dir=str(tmp_path / "merged"))))
    ran = subprocess.run([PROGRAM, "export", config], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    merged, ours = loaded.merge_and_unload().state_dict(), load(tmp_path / "merged").state_dict()
    for key, value in merged.items():
        torch.testing.assert_close(ours[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keys, says", [
    (dict(lora_target="all", lora_dropout=0.1), "adapters of experts are not supported with lora_dropout"),
    (dict(lora_target="gate_proj"), "the model has no module gate_proj; choose from q_proj, k_proj, v_proj, o_proj, gate_up_proj"),
])
def test_adapters_that_peft_cannot_have(keys, says, model_folder, short_rows, tmp_path):
    finished = Running(settings_of(model_folder, short_rows, tmp_path / "ours", finetuning_type="lora", **keys)).wait()
    assert finished.status == 1 and says in finished.text
