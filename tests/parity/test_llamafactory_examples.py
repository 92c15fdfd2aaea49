"""LLaMA-Factory's example files for training, as its release has them: each is read with the model's path changed, or refused
with a sentence that names the reason."""

import json
import pathlib
import shutil
import subprocess

import llamafactory_data
import picture_models
import pytest
import transformers
from conftest import BUILD, PROGRAM, write_model
from grouped_bits import in_four_bits
from test_llamafactory_templates import TOKENS, folder  # noqa: F401

SOURCE = llamafactory_data.source()
# Of launchers, of other commands, and of keys inside another file.
OTHERS = {"accelerate", "deepspeed", "inference", "merge_lora"}
EXAMPLES = sorted(str(path.relative_to(SOURCE / "examples")) for path in (SOURCE / "examples").rglob("*.yaml")
                  if not OTHERS & set(path.parts) and path.name != "tokens_cfg.yaml")
EXPORT = "v1/train_lora/export_lora.yaml"  # of `longspan export`

REFUSED = {
    "extras/adam_mini/qwen2_full_sft.yaml": "use_adam_mini: true is known but not supported",
    "extras/apollo/llama3_full_sft.yaml": "use_apollo: true is known but not supported",
    "extras/badam/llama3_full_sft.yaml": "use_badam: true is known but not supported",
    "extras/galore/llama3_full_sft.yaml": "use_galore: true is known but not supported",
    "extras/llama_pro/llama3_freeze_sft.yaml": "use_llama_pro: true is known but not supported",
    "extras/mod/llama3_full_sft.yaml": 'mixture_of_depths: "convert" is known but not supported',
    "extras/oft/llama3_oft_sft.yaml": "finetuning_type: oft is known but not supported",
    "extras/oft/qwen2_5vl_oft_sft.yaml": "finetuning_type: oft is known but not supported",
    "extras/qoft/llama3_oft_sft_awq.yaml": "finetuning_type: oft is known but not supported",
    "extras/qoft/llama3_oft_sft_bnb_npu.yaml": "finetuning_type: oft is known but not supported",
    "extras/qoft/llama3_oft_sft_gptq.yaml": "finetuning_type: oft is known but not supported",
    "ktransformers/train_lora/deepseek_v2_lora_sft_kt.yaml": "use_kt: true is known but not supported",
    "ktransformers/train_lora/deepseek_v3_lora_sft_kt.yaml": "use_kt: true is known but not supported",
    "ktransformers/train_lora/qwen3_5moe_lora_sft_kt.yaml": "use_kt: true is known but not supported",
    "ktransformers/train_lora/qwen3moe_lora_sft_kt.yaml": "use_kt: true is known but not supported",
    "megatron/qwen2_vl_full.yaml": "LLaMA-Factory's Megatron trainer",
    "megatron/qwen3_moe_full.yaml": "LLaMA-Factory's Megatron trainer",
    "train_lora/qwen3_lora_sft_ray.yaml": "ray_num_workers: 4 is known but not supported",
}
# Data sets of a hub, and those of no list: files of the release in their place.
IN_PLACE = {"alpaca_zh": "alpaca_zh_demo", "llava_1k_en": "mllm_demo", "llava_1k_zh": "mllm_demo", "rlhf_v": "dpo_en_demo",
            "math": "alpaca_en_demo", "med": "alpaca_en_demo"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """LLaMA-Factory's list of data sets, with local files only."""
    place = tmp_path_factory.mktemp("data")
    known = json.loads((SOURCE / "data" / "dataset_info.json").read_text())
    info = {}
    for name, like in ({name: name for name in known} | IN_PLACE).items():
        if "file_name" in known[like]:
            info[name] = known[like] | {"file_name": str(SOURCE / "data" / known[like]["file_name"])}
    (place / "dataset_info.json").write_text(json.dumps(info))
    return place


def family(example):
    return ("qwen3_5" if "qwen3_5" in example else "qwen3_vl" if "qwen3vl" in example
            else "qwen2_5_vl" if "qwen2_5vl" in example or "qwen2_vl" in example else "")


def test_numbers_of_the_page():
    """docs/configuration.md."""
    trains = [example for example in EXAMPLES if example != EXPORT]
    assert len(trains) == 62 and set(REFUSED) < set(trains)
    page = (pathlib.Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    assert f"{len(trains) - len(REFUSED)} of the 62" in " ".join(page.split())


def overrides(example, model, data, output):
    words = [f"model={model}" if example.startswith("v1/") else f"model_name_or_path={model}", f"output_dir={output}"]
    # For time alone.
    words += ["max_samples=3"]
    if "preprocess" in example:
        words += [f"tokenized_path={output}/kept"]
    return words if example.startswith("v1/") else [*words, f"dataset_dir={data}", f"media_dir={SOURCE / 'data'}"]


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example != EXPORT])
def test_an_example_is_read_or_refused(example, folder, data, tmp_path, tmp_path_factory):  # noqa: F811
    """Its keys, and the rows of its data sets."""
    name = family(example)
    model = picture_models.folder_of(tmp_path_factory, name) if name else folder
    words = overrides(example, model, data, tmp_path / "output")
    if "predict" in example:
        words += ["adapter_name_or_path=adapter"]
    ran = subprocess.run([BUILD / "data_probe", SOURCE / "examples" / example, *words], cwd=SOURCE, capture_output=True,
                         text=True)
    if example in REFUSED:
        assert ran.returncode == 1 and REFUSED[example] in ran.stderr, ran.stderr
        return
    assert ran.returncode == 0, ran.stderr
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert rows and all(any(label >= 0 for label in row["labels"]) for row in rows)


@pytest.fixture(scope="module")
def models(folder, tmp_path_factory):  # noqa: F811
    """Small models of a family, with the tokens of the templates."""
    known = {}

    def make(kind):
        if kind not in known:
            place = known[kind] = tmp_path_factory.mktemp("models") / kind
            place.mkdir()
            family, _, method = kind.partition(" in ")
            write_model(place, family, vocab_size=len(transformers.AutoTokenizer.from_pretrained(folder)))
            if method:
                in_four_bits(place, method)
            shutil.copytree(folder, place, dirs_exist_ok=True)
        return known[kind]

    return make


TRAINED = {
    "extras/muon/qwen2_full_sft.yaml": "qwen2",
    "train_lora/qwen3_lora_kto.yaml": "qwen3",
    "train_qlora/llama3_lora_sft_awq.yaml": "llama in awq",
    "train_qlora/llama3_lora_sft_gptq.yaml": "llama in gptq",
    "train_lora/qwen3_preprocess.yaml": "qwen3",
    "v1/train_batching_strategy/train_full_fsdp2_dynamic_padding_free.yaml": "qwen3",
    "v1/train_freeze/train_freeze_sft.yaml": "qwen3",
    "v1/train_full/train_full_deepspeed.yaml": "qwen3",
    "v1/train_lora/train_lora_sft.yaml": "qwen3",
    "v1/train_qlora/quantization.yaml": "qwen3",
}


@pytest.mark.parametrize("example", TRAINED)
def test_an_example_trains(example, models, data, tmp_path):
    output = tmp_path / "output"
    words = overrides(example, models(TRAINED[example]), data, output)
    words += ["max_steps=1", "cutoff_len=512", "nproc_per_node=1", "use_cpu=true"]
    ran = subprocess.run([PROGRAM, "train", SOURCE / "examples" / example, *words], cwd=SOURCE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert json.loads((output / "trainer_state.json").read_text())["global_step"] == 1


def test_the_example_of_predictions(models, data, tmp_path):
    """The example answers with the adapter that another example trains."""
    model, adapter, predicted = models("llama"), tmp_path / "adapter", tmp_path / "predicted"
    small = ["cutoff_len=512", "nproc_per_node=1", "use_cpu=true"]
    subprocess.run([PROGRAM, "train", SOURCE / "examples" / "train_lora" / "qwen3_lora_sft.yaml", "max_steps=1",
                    "template=llama3", *overrides("", model, data, adapter), *small], cwd=SOURCE, check=True, capture_output=True)
    ran = subprocess.run([PROGRAM, "train", SOURCE / "examples" / "extras" / "nlg_eval" / "llama3_lora_predict.yaml",
                          *overrides("", model, data, predicted), *small, f"adapter_name_or_path={adapter}",
                          "max_new_tokens=8"], cwd=SOURCE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    # Three rows of each of its two data sets.
    assert len((predicted / "generated_predictions.jsonl").read_text().splitlines()) == 6
    assert "predict_bleu-4" in json.loads((predicted / "predict_results.json").read_text())


def test_the_example_of_export(models, tmp_path):
    """Merges the adapter of a v1 run."""
    model, adapter, merged = models("qwen3"), tmp_path / "adapter", tmp_path / "merged"
    example = "v1/train_lora/train_lora_sft.yaml"
    words = overrides(example, model, None, adapter) + ["max_steps=1", "cutoff_len=512", "nproc_per_node=1", "use_cpu=true"]
    subprocess.run([PROGRAM, "train", SOURCE / "examples" / example, *words], cwd=SOURCE, check=True, capture_output=True)
    subprocess.run([PROGRAM, "export", SOURCE / "examples" / EXPORT, f"model={model}", f"export_dir={merged}",
                    f"adapter_name_or_path={adapter}"], check=True, capture_output=True)
    base, changed = (transformers.AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (model, merged))
    name = "model.layers.0.self_attn.q_proj.weight"
    assert not base[name].equal(changed[name]) and base["model.norm.weight"].equal(changed["model.norm.weight"])
