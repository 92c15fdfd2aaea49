"""What editors, shells and readers get from the table of keys, the examples, and keys that count steps."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml
from conftest import PROGRAM, ROOT, add_dataset, words_of_real_text
from jsonschema import Draft7Validator

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def said(*arguments):
    ran = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_page_of_keys_is_what_the_program_says():
    page = subprocess.run([ROOT / "tools" / "keys_page", PROGRAM], capture_output=True, text=True, timeout=30, check=True)
    assert (ROOT / "docs" / "keys.md").read_text() == page.stdout, "tools/keys_page build/longspan > docs/keys.md"
    listed = set(re.findall(r"^- `(\w+)`", page.stdout, re.M))
    assert {"model_name_or_path", "sequence_parallel_size", "export_dir", "gradient_checkpointing"} <= listed


@pytest.fixture(scope="module")
def schema():
    schema = json.loads(said("schema"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def test_schema_takes_the_examples(schema):
    for example in EXAMPLES:
        assert list(schema.iter_errors(yaml.safe_load(example.read_text()))) == [], example.name


RIGHT = [
    {"save_steps": 0.25}, {"save_steps": "0.25"}, {"eval_steps": None}, {"warmup_steps": 0}, {"logging_steps": 5},
    {"logging_steps": "10"}, {"dataset": ["a", "b"]}, {"report_to": ["none"]}, {"report_to": ""}, {"report_to": []},
    {"report_to": "tensorboard,all"}, {"report_to": ["wandb", "mlflow"]}, {"use_swanlab": True, "swanlab_mode": "local"},
    {"save_strategy": False}, {"save_async": True}, {"offload_activations": True},
    {"use_liger_kernel": True}, {"gradient_checkpointing": False}, {"gradient_checkpointing": "true"}, {"use_dora": False}, {"use_dora": True, "finetuning_type": "lora", "additional_target": "embed_tokens"}, {"fsdp": ""}, {"do_train": 1}, {"do_train": "true"},
    {"overwrite_output_dir": 0}, {"overwrite_output_dir": "False"}, {"learning_rate": "1e-4"},
    {"learning_rate": "1e-4 "}, {"bf16": "true"}, {"cutoff_len": "2048"}, {"cutoff_len": 1e3}, {"max_steps": -1},
    {"max_steps": "-1"}, {"max_steps": 7}, {"lora_dropout": 0.5, "finetuning_type": "lora"},
    {"loraplus_lr_ratio": 16, "finetuning_type": "lora"}, {"loraplus_lr_embedding": 1e-6}, {"use_dft_loss": True}, {"use_eaft_loss": True, "eaft_alpha": 0.5}, {"use_asft_loss": True, "asft_alpha": 0.05}, {"pissa_init": True, "pissa_iter": -1, "finetuning_type": "lora"},
    {"neftune_noise_alpha": 5}, {"add_tokens": "<a>, <b>", "add_special_tokens": ["<c>"], "resize_vocab": True},
    {"compute_accuracy": True, "do_eval": True, "val_size": 0.1},
    {"predict_with_generate": True, "do_predict": True, "val_size": 0.1, "do_sample": False, "temperature": 0, "top_p": 1,
     "top_k": 0, "max_new_tokens": 7, "repetition_penalty": 1.1, "skip_special_tokens": False},
    {"warmup_ratio": 1}, {"streaming": True, "buffer_size": 8, "max_steps": 7, "val_size": 3, "do_eval": True},
    {"seed": "+7"}, {"seed": 0}, {"adam_beta1": 0}, {"save_steps": 1e9}, {"ddp_timeout": 180000000},
    {"expert_parallel_size": 2}, {"fast_domain_size": 72}, {"metrics_file": "run.prom"}, {"kept_mlp_layers": -1}, {"kept_mlp_layers": 0}, {"kept_mlp_layers": "12"},
    {"cache_dir": "cache"}, {"image_max_pixels": 1000000}, {"video_fps": 0.5}, {"video_maxlen": 16}, {"media_dir": "media"},
    {"mix_strategy": "interleave_once"}, {"mix_strategy": "interleave_under", "interleave_probs": "0.5, 0.5"},
    {"reduce_scatter": "exchange"}, {"freeze_vision_tower": False}, {"image_do_pan_and_scan": False}, {"template": "qwen2_vl"},
]
WRONG = [
    {"learning_rte": 1e-4}, {"stage": "ppo"}, {"cutoff_len": 0}, {"cutoff_len": 2.5}, {"bf16": "maybe"}, {"bf16": 2},
    {"save_steps": 1.5}, {"logging_steps": 0}, {"logging_steps": "0"}, {"num_train_epochs": 0}, {"use_galore": True},
    {"warmup_ratio": 2}, {"evaluation_strategy": "never"}, {"output_dir": 3}, {"learning_rate": "fast"},
    {"learning_rate": "-1"}, {"learning_rate": True}, {"cutoff_len": "0"}, {"cutoff_len": "x"}, {"max_steps": 0},
    {"max_steps": "0"}, {"max_steps": -2}, {"lora_dropout": 1, "finetuning_type": "lora"},
    {"loraplus_lr_ratio": 0, "finetuning_type": "lora"}, {"loraplus_lr_embedding": 1e-5}, {"neftune_noise_alpha": -1}, {"asft_alpha": -1}, {"pissa_iter": -2, "finetuning_type": "lora", "pissa_init": True},
    {"compute_accuracy": 2}, {"seed": "+-7"}, {"top_p": 0}, {"top_p": 1.5}, {"temperature": -1}, {"max_new_tokens": 0},
    {"repetition_penalty": 0}, {"top_k": -1}, {"num_beams": 2},
    {"value_head_dropout": 1, "stage": "rm"}, {"adam_beta1": 1}, {"report_to": "tensorboard,never"},
    {"report_to": "comet_ml"}, {"report_to": 1}, {"gradient_checkpointing": "some"}, {"overwrite_output_dir": 2}, {"num_train_epochs": 1e18},
    {"save_steps": 1e19}, {"per_device_train_batch_size": 10**9}, {"max_steps": 1e18},
    {"streaming": 2}, {"buffer_size": 0}, {"resize_vocab": 2}, {"save_async": 2},
    {"mix_strategy": "interleave"}, {"image_max_pixels": 0}, {"video_fps": 0}, {"image_do_pan_and_scan": True}, {"template": "llava"},
    {"expert_parallel_size": 0}, {"fast_domain_size": 0}, {"metrics_file": 1}, {"kept_mlp_layers": -2}, {"kept_mlp_layers": 0.5}, {"kept_mlp_layers": "auto"},
    {"reduce_scatter": "ring"},
]


@pytest.mark.parametrize("keys, right", [(keys, True) for keys in RIGHT] + [(keys, False) for keys in WRONG], ids=str)
def test_schema_says_what_the_program_says(schema, keys, right, tmp_path):
    assert len(list(schema.iter_errors(keys))) == (0 if right else 1)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(
        dict(model_name_or_path="m", dataset="d", output_dir="o", do_train=True, device="cpu", save_strategy="no") | keys))
    ran = subprocess.run([PROGRAM, "train", config], capture_output=True, text=True, cwd=tmp_path)
    # What is right gets as far as the model's folder, which is not there.
    assert ran.returncode == 1 and ("config.json: " in ran.stderr and next(iter(keys)) in ran.stderr) == (not right), ran.stderr


GENERATION = ["temperature", "top_p", "top_k", "max_new_tokens", "do_sample", "repetition_penalty",
              "skip_special_tokens", "infer_dtype"]


def completions(*words):
    """What bash offers for the last word."""
    script = said("completion", "bash") + (
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _longspan; printf "%s\\n" "${COMPREPLY[@]}"')
    ran = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", "longspan", *words], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_completion_in_bash():
    assert completions("tr") == ["train"]
    assert set(completions("")) >= {"train", "export", "schema", "completion", "help"}
    assert completions("train", "a") == []  # bash completes files
    assert completions("train", "a.yaml", "sequence_parallel_m") == ["sequence_parallel_mode="]
    assert "learning_rate=" in completions("train", "a.yaml", "")
    # bash cuts words at =.
    assert completions("train", "a.yaml", "stage", "=", "dp") == ["dpo"]
    assert {"pt", "sft", "rm", "dpo", "kto"} <= set(completions("train", "a.yaml", "stage", "="))
    assert completions("train", "a.yaml", "bf16=t") == ["bf16=true"]
    assert completions("train", "a.yaml", "--sequence-parallel-mode", "zig") == ["zigzag-ring"]
    assert completions("export", "a.yaml", "--cutoff") == ["--cutoff_len"]
    assert completions("help", "cutoff") == ["cutoff_len"]
    assert completions("completion", "") == ["bash", "zsh", "fish"]
    assert completions("chat", "model", "tempe") == completions("generate", "tempe") == ["temperature="]
    assert completions("chat", "model", "do_sample", "=") == ["true", "false"]
    assert completions("generate", "rows.json", "infer_dtype=b") == ["infer_dtype=bf16"]
    assert completions("generate", "rows.json", "batch") == ["batch_size="] and completions("chat", "batch") == []
    assert "infer_dtype=" not in completions("train", "a.yaml", "") and "stage=" not in completions("chat", "")


def test_completions_of_other_shells_have_every_key(schema):
    keys = re.findall(r"^  (\w+): ", said("help", "train").split("Accepted, without effect")[0], re.MULTILINE)
    assert len(keys) > 80
    zsh, fish = said("completion", "zsh"), said("completion", "fish")
    for key in keys:
        assert f"'{key}:" in zsh and f"'{key}=" in fish, key
        assert key in schema.schema["properties"], key
    for key in GENERATION:
        assert f"'{key}:" in zsh and f"'{key}=" in fish, key
    for shell in ("zsh", "fish"):
        if subprocess.run(["sh", "-c", f"command -v {shell}"], capture_output=True).returncode == 0:
            subprocess.run([shell, "-n"], input={"zsh": zsh, "fish": fish}[shell], text=True, check=True)


def test_help_of_a_key():
    text = said("help", "cutoff_len")
    assert "Takes: a whole number, at least 1" in text and "Default: 2048" in text and "Stages: all" in text
    for key in GENERATION:
        text = said("help", key)
        assert "a key of `longspan chat` and `longspan generate`" in text and "not supported" not in text
        assert "Takes: " in text
    # Keys of generate alone, and of both training and chats.
    assert "the file to write" in said("help", "output") and "answered at a time" in said("help", "batch_size")
    assert "`longspan chat`" not in said("help", "max_samples").split("a key of `longspan generate`")[1]
    for part in ("Stages: all", "a key of `longspan chat` and `longspan generate`"):
        assert part in said("help", "template")
    ran = subprocess.run([PROGRAM, "help", "temprature"], capture_output=True, text=True)
    assert ran.returncode == 1 and "the nearest key is temperature" in ran.stderr
    for command in ("chat", "generate"):
        text = said("help", command)
        assert max(map(len, text.splitlines())) <= 104
        for key in GENERATION + ["template", "seed"] + ["output", "batch_size"] * (command == "generate"):
            assert re.search(rf"^  {key} +\S", text, re.MULTILINE), key
        assert ("batch_size" in text) == (command == "generate")
    assert "value_head_dropout: a number, at least 0, below 1 [0] (stages: rm)" in said("help", "train")
    assert "LLaMA-Factory: " in said("help", "packing") and "Stages: distill_sft, pt, sft" in said("help", "packing")
    ran = subprocess.run([PROGRAM, "help", "cutof_len"], capture_output=True, text=True)
    assert ran.returncode == 1 and "the nearest key is cutoff_len" in ran.stderr
    first = said("help").splitlines()[0]
    for stage in ("(stage pt)", "(sft)", "(rm)", "(dpo)", "(kto)"):
        assert stage in first


@pytest.fixture(scope="module")
def example_data(place):
    """Rows for the data sets that the examples and docs/data.md name, by the entries that they show."""
    folder, words = place / "example_data", words_of_real_text()

    def text(begin, length=20):
        return " ".join(words[begin : begin + length])

    chats = [{"messages": [{"role": "user", "content": text(i)}, {"role": "assistant", "content": text(i + 50)}]}
             for i in range(20)]
    pairs = [{"question": text(i), "better": text(i + 30), "worse": text(i + 60)} for i in range(8)]
    votes = [{"question": text(i), "answer": text(i + 30), "liked": i % 2 == 0} for i in range(8)]
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
    for name in ("my_chats", "books"):
        add_dataset(folder, name, chats, formatting="sharegpt", columns={"messages": "messages"}, tags=tags)
    add_dataset(folder, "preferences", pairs, ranking=True,
                columns={"prompt": "question", "chosen": "better", "rejected": "worse"})
    add_dataset(folder, "thumbs", votes, columns={"prompt": "question", "response": "answer", "kto_tag": "liked"})
    add_dataset(folder, "articles", [{"text": text(i, 60)} for i in range(20)], columns={"prompt": "text"})
    return folder


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.stem != "export"], ids=lambda path: path.stem)
def test_examples_run(example, models, example_data, tmp_path):
    keys = yaml.safe_load(example.read_text())
    small = dict(model_name_or_path=models["qwen2"], dataset_dir=example_data, output_dir=tmp_path / "out",
                 device="cpu", max_steps=1, cutoff_len=128, gradient_accumulation_steps=1)
    if "nproc_per_node" in keys:
        small |= dict(nproc_per_node=2, sequence_parallel_size=2)
    words = [f"{key}={value}" for key, value in small.items()]
    ran = subprocess.run([PROGRAM, "train", example, *words], capture_output=True, text=True, timeout=60,
                         env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out" / "trainer_state.json").exists()
    if example.stem == "sft_lora":
        words = [f"model_name_or_path={models['qwen2']}", f"adapter_name_or_path={tmp_path / 'out'}",
                 f"export_dir={tmp_path / 'merged'}", "trust_remote_code=true"]
        text = said("export", ROOT / "examples" / "export.yaml", *words)
        assert "Wrote" in text and "note: Accepted, without effect here: trust_remote_code" in text


def test_steps_as_shares_and_other_log_keys(train):
    """transformers' own arithmetic of shares, and what the keys of logging do."""
    from transformers import TrainerState, TrainingArguments

    shares = dict(save_steps=0.3, eval_steps=0.5, logging_steps=0.25, warmup_steps=0.15)
    theirs = TrainingArguments(output_dir="unused", eval_strategy="steps", use_cpu=True, report_to=[], **shares)
    state = TrainerState()
    state.compute_steps(theirs, 9)
    run = train(max_steps=9, save_strategy="steps", eval_strategy="steps", eval_dataset="held_out",
                logging_first_step=True, disable_tqdm=True, use_liger_kernel=True, gradient_accumulation_steps=1,
                lr_scheduler_type="constant_with_warmup", **shares)
    ours = json.loads((run.output_dir / "trainer_state.json").read_text())
    for key in ("save_steps", "eval_steps", "logging_steps"):
        assert ours[key] == getattr(state, key), key
    saved = sorted(int(path.name.split("-")[1]) for path in run.output_dir.glob("checkpoint-*"))
    assert saved == [3, 6, 9]
    assert [entry["step"] for entry in run.history if "loss" in entry] == [1, 3, 6, 9]
    assert [entry["step"] for entry in run.history if "eval_loss" in entry] == [5, 9]
    warmup = theirs.get_warmup_steps(9)
    assert warmup == 2 and f"{warmup} warmup steps" in run.text
    assert not re.search(r"^\d+/9 \|", run.text, re.MULTILINE)
    assert "note: Accepted, without effect here: use_liger_kernel" in run.text
    # The console has six digits of a loss, the files all.
    losses = re.findall(r"\{'loss': ([\d.]+)", run.text)
    assert len(losses) == 4 and max(len(loss.replace(".", "").lstrip("0")) for loss in losses) <= 6
    assert [float(loss) for loss in losses] == pytest.approx(run.logged("loss"), rel=5e-6)
    assert max(len(repr(loss)) for loss in run.logged("loss")) > 10


def test_logging_by_epoch_or_never(train):
    never = train(max_steps=2, logging_strategy="no")
    assert never.logged("loss") == [] and never.logged("train_loss")
    assert re.search(r"^2/2 \|", never.text, re.MULTILINE)  # the progress, which disable_tqdm switches off
    by_epoch = train(max_steps=None, num_train_epochs=2, logging_strategy="epoch", gradient_accumulation_steps=8)
    assert [entry["epoch"] for entry in by_epoch.history if "loss" in entry] == [1.0, 2.0]


def test_one_is_singular(models, tmp_path, place):
    folder = place / "one_row"
    add_dataset(folder, "one", [{"instruction": "hello", "output": "world"}])
    config = tmp_path / "one.yaml"
    config.write_text(f"model_name_or_path: {models['qwen2']}\ndataset: one\ndataset_dir: {folder}\ndo_train: 1\n"
                      f"output_dir: {tmp_path / 'out'}\nmax_steps: '1'\nwarmup_steps: 1\ndevice: cpu\n"
                      "per_device_train_batch_size: 4\nlr_scheduler_type: constant_with_warmup\n")
    ran = subprocess.run([PROGRAM, "train", config], capture_output=True, text=True,
                         env=dict(os.environ, OMP_NUM_THREADS="1"))
    assert ran.returncode == 0, ran.stderr
    assert "1 row, " in ran.stdout and "1 step (" in ran.stdout and "1 warmup step;" in ran.stdout
    assert "a step would take 4 rows, and the training set has 1 row:" in ran.stdout
    assert not re.search(r"(?<![\d.,])1 (rows|tokens|labels|steps|warmup steps|processes|threads|GPUs)", ran.stdout)
