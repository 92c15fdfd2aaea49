"""add_tokens, add_special_tokens and resize_vocab: ids and files against transformers and LLaMA-Factory's own functions, training
against transformers and PEFT from the first rows of the embedding, which are LLaMA-Factory's mean plus noise."""

import json
import math
import subprocess
import types

import llamafactory_data
import pytest
import torch
import transformers
from conftest import PROGRAM, run_processes, run_to_end, write_model
from pairs import add_dataset, load
from safetensors.torch import load_file
from shared import made_once
from test_data import encode
from test_llamafactory_rows import ALPACA, theirs  # noqa: F401
from test_lora import SHARED, assert_same_training, distance, export, logits_of, settings_for, with_adapter
from test_trainer import WEIGHTS, our_rows, transformers_run

TOKENS = dict(add_tokens="<think>, </think>,<|im_end|>", add_special_tokens="<answer>,the")
GROWN = TOKENS | dict(resize_vocab=True)
NUM_KNOWN, NUM_ROWS = 480, 512
TEXT = "Is <think>it</think> so, <answer>the other? the <|im_end|> end<think>\n"
HEADS = {"qwen2": ["embed_tokens"], "llama": ["embed_tokens", "lm_head"]}  # qwen2's is tied
UNTRAINED = dict(max_steps=1, learning_rate=1e-30, weight_decay=0.0)  # no number changes


@pytest.fixture(scope="module")
def data(place):
    def make(folder):
        rows = [{"instruction": f"Sum up {i}: the words", "output": f"<think>{'so ' * i}hm</think><answer>{i} and {i * i}"}
                for i in range(24)]
        add_dataset(folder, "chats", rows)
        pairs = [row | {"chosen": row["output"], "rejected": f"<answer>{i}"} for i, row in enumerate(rows)]
        add_dataset(folder, "pairs", pairs, ranking=True,
                    columns={"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"})
        add_dataset(folder, "verdicts", [row | {"good": i % 3 != 1} for i, row in enumerate(rows)],
                    columns={"prompt": "instruction", "response": "output", "kto_tag": "good"})
        add_dataset(folder, "texts", [{"text": row["output"]} for row in rows], columns={"prompt": "text"})
    return str(made_once(place / "with_added_tokens", make))


def by_llamafactory(model, folder):
    """The tokenizer of LLaMA-Factory's loader."""
    arguments = types.SimpleNamespace(**{key: [token.strip() for token in text.split(",")] for key, text in TOKENS.items()},
                                      model_max_length=None, resize_vocab=True)
    known = dict(logger=llamafactory_data.Logger("patcher"), MethodType=types.MethodType,
                 PreTrainedTokenizerBase=transformers.PreTrainedTokenizerBase, **{
                     name: object for name in ("PreTrainedTokenizer", "ModelArguments")})
    [patch] = llamafactory_data.functions("model/patcher.py", ["patch_tokenizer"], known)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    patch(tokenizer, arguments)
    tokenizer.save_pretrained(folder)
    return tokenizer


def start(kind, models, data, folder, num_ranks=1, **keys):
    """The model or adapter with which a run begins."""
    return run_to_end(settings_for(models[kind], data, folder, **GROWN, **UNTRAINED | keys), num_ranks).output_dir


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_tokenizer_and_rows(kind, models, data, theirs, tmp_path):  # noqa: F811
    """The pipeline of tokenizer.json, and that of transformers' class for qwen2; two tokens are known before."""
    wanted = by_llamafactory(models[kind], tmp_path / "theirs")
    saved = start(kind, models, data, tmp_path / "ours", save_strategy="steps", save_steps=1)
    for folder in (saved, saved / "checkpoint-1", start(kind, models, data, tmp_path / "lora", finetuning_type="lora")):
        ours = transformers.AutoTokenizer.from_pretrained(folder)
        assert len(ours) == len(wanted) > NUM_KNOWN and ours.get_vocab() == wanted.get_vocab()
        assert ours(TEXT)["input_ids"] == wanted(TEXT)["input_ids"]
        ids = wanted(TEXT)["input_ids"]
        for skips in (False, True):
            assert ours.decode(ids, skip_special_tokens=skips) == wanted.decode(ids, skip_special_tokens=skips)
    assert ours.convert_tokens_to_ids("the") < NUM_KNOWN  # of the vocabulary
    rows = [dict(instruction=TEXT + str(i), input="", output=f"<think>{i}</think> the {TEXT}", history=[["Who?", "<answer>me"]],
                 system="", tools="") for i in range(3)]
    encoded = encode(models[kind], tmp_path, rows, ALPACA, template="qwen", stage="sft", **GROWN)
    for sample, documents in zip(encoded, theirs.rows("sft", "qwen", tmp_path / "theirs", rows, ALPACA), strict=True):
        assert [(one["input_ids"], one["labels"]) for one in sample["documents"]] == documents


def test_first_rows(models, data, tmp_path):
    """LLaMA-Factory's formula; by the seed, and not by the ranks."""
    base, saved = load(models["llama"]).state_dict(), start("llama", models, data, tmp_path / "one")
    config = json.loads((saved / "config.json").read_text())
    assert config["vocab_size"] == NUM_ROWS and not config["tie_word_embeddings"]
    state = load(saved).state_dict()
    noises = []
    for name, before in base.items():
        if before.shape == state[name].shape:
            assert state[name].equal(before)
            continue
        assert name in ("model.embed_tokens.weight", "lm_head.weight") and len(state[name]) == NUM_ROWS
        assert state[name][:NUM_KNOWN].equal(before)
        noise = (state[name][NUM_KNOWN:] - before.double().mean(0)) * math.sqrt(before.shape[1])
        # Of n normal numbers: 5 standard deviations of their mean and of their variance.
        n = noise.numel()
        assert abs(noise.mean()) < 5 / math.sqrt(n) and abs(noise.var() - 1) < 5 * math.sqrt(2 / n)
        noises.append(noise)
    assert len(noises) == 2 and abs((noises[0] * noises[1]).mean()) < 5 / math.sqrt(n)
    sharded = load(start("llama", models, data, tmp_path / "two", 2, zero_stage=3)).state_dict()
    assert all(sharded[name].equal(value) for name, value in state.items())
    other = load(start("llama", models, data, tmp_path / "other", seed=7)).state_dict()
    assert not other["lm_head.weight"][NUM_KNOWN:].equal(state["lm_head.weight"][NUM_KNOWN:])


WAYS = {
    "full, tied": ("qwen2", 3, dict(sequence_parallel_mode="zigzag-ring")),
    "full": ("llama", 2, dict(sequence_parallel_mode="ulysses", zero_stage=3)),
    "lora, tied": ("qwen2", 2, dict(finetuning_type="lora", sequence_parallel_mode="ulysses", zero_stage=3)),
    "lora": ("llama", 1, dict(finetuning_type="lora")),
}


@pytest.mark.parametrize("way", WAYS)
def test_training(way, models, data, tmp_path):
    kind, num_ranks, keys = WAYS[way]
    lora = "finetuning_type" in keys
    begin = start(kind, models, data, tmp_path / "start", **({"finetuning_type": "lora"} if lora else {}))
    settings = settings_for(models[kind], data, tmp_path / "ours", **GROWN, **keys, sequence_parallel_size=num_ranks)
    finished = run_to_end(settings, num_ranks)
    rows = our_rows(settings, tmp_path)
    assert max(max(row["input_ids"]) for row in rows) >= NUM_KNOWN

    def grown(folder, adapter):
        model = load(folder)
        model.resize_token_embeddings(NUM_ROWS, mean_resizing=False)
        return with_adapter(model, adapter)

    history, trained = transformers_run(
        models[kind] if lora else begin, rows, tmp_path,
        prepare=(lambda _: grown(models[kind], begin)) if lora else lambda model: model, **SHARED)
    assert_same_training(finished, history)
    ids = rows[0]["input_ids"]
    if not lora:
        mine, theirs, before = load(finished.output_dir), trained, load(begin)
        assert mine.config.tie_word_embeddings == (kind == "qwen2")
        states = [{key: value.double() for key, value in model.state_dict().items()} for model in (mine, theirs, before)]
        assert distance(states[0], states[1]) < WEIGHTS * distance(states[2], states[1])
        return
    saved = json.loads((finished.output_dir / "adapter_config.json").read_text())
    assert saved["modules_to_save"] == HEADS[kind] and saved.get("ensure_weight_tying", False) == (kind == "qwen2")
    loaded = grown(models[kind], finished.output_dir)
    expected, got, untrained = (logits_of(model, ids) for model in (trained, loaded, grown(models[kind], begin)))
    assert (got - expected).norm() < 0.01 * (untrained - expected).norm()

    # Merged, as PEFT does, from the adapter's folder alone; and the model of both answers as the merged one.
    export(dict(model_name_or_path=models[kind], adapter_name_or_path=str(finished.output_dir)), tmp_path,
           export_dir=str(tmp_path / "merged"))
    merged = load(tmp_path / "merged")
    assert merged.config.vocab_size == NUM_ROWS
    theirs = loaded.merge_and_unload().state_dict()
    for key, value in merged.state_dict().items():
        torch.testing.assert_close(value, theirs[key].to(value), rtol=1e-6, atol=1e-6)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")(TEXT)["input_ids"] == \
        transformers.AutoTokenizer.from_pretrained(finished.output_dir)(TEXT)["input_ids"]
    (tmp_path / "asked.jsonl").write_text(json.dumps({"prompt": "<think>Sum up"}) + "\n")
    answers = [subprocess.run([PROGRAM, "generate", tmp_path / "asked.jsonl", folder, "max_new_tokens=4", "temperature=0"],
                              capture_output=True, text=True, check=True).stdout
               for folder in (finished.output_dir, tmp_path / "merged")]
    assert answers[0] == answers[1] != ""

    # PEFT's own folder, which has the embedding and the head under several names.
    trained.float().save_pretrained(tmp_path / "theirs")
    export(dict(model_name_or_path=models[kind], adapter_name_or_path=str(tmp_path / "theirs")), tmp_path,
           export_dir=str(tmp_path / "from_theirs"))
    wanted = trained.merge_and_unload().state_dict()
    for key, value in load(tmp_path / "from_theirs").state_dict().items():
        torch.testing.assert_close(value, wanted[key], rtol=1e-5, atol=1e-6)


def test_resume(models, data, tmp_path):
    """An adapter with a tied embedding, under sharding; with other tokens it is another run."""
    keys = GROWN | dict(finetuning_type="lora", zero_stage=3, sequence_parallel_size=2, lr_scheduler_type="constant",
                        save_strategy="steps", save_steps=2, max_steps=4)
    whole = run_to_end(settings_for(models["qwen2"], data, tmp_path / "whole", **keys), 2)
    half = settings_for(models["qwen2"], data, tmp_path / "half", **keys)
    run_to_end(half | dict(max_steps=2), 2)
    resumed = run_to_end(half | dict(resume_from_checkpoint=True), 2)
    mine, theirs = (load_file(run.output_dir / "adapter_model.safetensors") for run in (resumed, whole))
    assert all(mine[name].equal(value) for name, value in theirs.items())
    other = error_of(half | dict(add_tokens="<other>", resume_from_checkpoint=True, sequence_parallel_size=1), tmp_path)
    assert "add_tokens" in other


def error_of(settings, folder):
    (folder / "config.json").write_text(json.dumps(settings))
    ran = subprocess.run([PROGRAM, "train", folder / "config.json"], capture_output=True, text=True)
    assert ran.returncode == 1 and ran.stderr.count("error: ") == 1, ran.stdout + ran.stderr
    return ran.stderr


@pytest.mark.parametrize("stage", ["dpo", "dpo, lora", "kto", "rm", "pt", "streaming, packing"])
def test_stages(stage, models, data, tmp_path):
    """The reference has the same rows: the first loss of preferences is that of two equal models."""
    keys = {"dpo": dict(stage="dpo", dataset="pairs"), "kto": dict(stage="kto", dataset="verdicts"),
            "dpo, lora": dict(stage="dpo", dataset="pairs", finetuning_type="lora", ref_model=models["llama"]),
            "rm": dict(stage="rm", dataset="pairs", finetuning_type="lora"), "pt": dict(stage="pt", dataset="texts"),
            "streaming, packing": dict(streaming=True, packing=True, cutoff_len=256)}[stage]
    settings = settings_for(models["llama"], data, tmp_path / "out", **GROWN | dict(max_steps=2) | keys)
    losses = run_to_end(settings).logged("loss")
    if "dpo" in stage:
        assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert len(losses) == 2 and all(map(math.isfinite, losses))
    embedding = load_file(tmp_path / "out" / ("adapter_model.safetensors" if "finetuning_type" in keys else "model.safetensors"))
    [rows] = {len(value) for name, value in embedding.items() if name.endswith("embed_tokens.weight")}
    assert rows == NUM_ROWS


def test_room_and_errors(models, data, place, tmp_path):
    """An embedding that has rows for more tokens needs no others."""
    padded = str(made_once(place / "padded", lambda folder: write_model(folder, "llama", vocab_size=496)))
    settings = settings_for(padded, data, tmp_path / "padded", **TOKENS, **UNTRAINED)
    saved = run_to_end(settings).output_dir
    assert load(saved).config.vocab_size == 496 and len(transformers.AutoTokenizer.from_pretrained(saved)) == NUM_KNOWN + 3
    assert all(value.equal(load(padded).state_dict()[name]) for name, value in load(saved).state_dict().items())

    def refused(**keys):
        return error_of(settings_for(models["llama"], data, tmp_path / "refused", **TOKENS | keys), tmp_path)

    # As LLaMA-Factory has it, by the program.
    grown = run_processes(settings_for(models["llama"], data, tmp_path / "grown", **TOKENS, **UNTRAINED), 1, 60)
    assert "sets resize_vocab: true" in grown.text and load(grown.output_dir).config.vocab_size == NUM_ROWS
    lora = dict(finetuning_type="lora", resize_vocab=True)
    assert "not for quantization_bit" in refused(**lora, quantization_bit=4)
    assert "not for pissa_init" in refused(**lora, pissa_init=True)
    assert "would be the reference; give ref_model" in refused(**lora, stage="dpo", dataset="pairs")
    assert "would not keep them" in refused(**lora, additional_target="norm")
    adapter = str(start("llama", models, data, tmp_path / "lora", finetuning_type="lora"))
    on = settings_for(models["llama"], data, tmp_path / "on", finetuning_type="lora", adapter_name_or_path=adapter)
    assert "Give the add_tokens" in error_of(on, tmp_path)
    predicts = dict(eval_dataset="chats", do_predict=True, predict_with_generate=True, max_samples=4, max_new_tokens=2)
    run_to_end(on | GROWN | predicts | dict(max_steps=1))
    assert (tmp_path / "on" / "generated_predictions.jsonl").read_text().count("<think>") >= 4
