"""TRL's trainers on ranks that share rows, beside TRL alone on one rank."""

import zlib

import pytest
import torch
from forks import run_forks
from hf_models import small_model

import longspan
from longspan import _trl

WORDS = [f"w{number}" for number in range(93)]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    fast = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=fast, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def text(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return " ".join(WORDS[number] for number in torch.randint(0, len(WORDS), (count,), generator=generator))


def trainer_of(kind, folder, options, rewards=True):
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM

    options = dict(options)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False) if options.pop("lora", 0) else None
    rows = {
        "SFT": [dict(prompt=text(5, n), completion=" " + text(9 + n % 7, n + 50)) for n in range(12)],
        "DPO": [dict(prompt=text(5, n), chosen=" " + text(6 + n % 5, n + 50), rejected=" " + text(8, n + 80)) for n in range(12)],
        "GRPO": [dict(prompt=text(5 + n % 3, n)) for n in range(12)],
    }[kind]
    common = dict(output_dir=str(folder / "output"), max_steps=3, per_device_train_batch_size=2, learning_rate=1e-3, adam_epsilon=1e-2,
                  logging_steps=1, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3, bf16=False,
                  gradient_checkpointing=False)
    own = dict(
        SFT=dict(gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3, prediction_loss_only=True),
        DPO=dict(gradient_accumulation_steps=2),
        GRPO=dict(num_generations=2, max_completion_length=8, per_device_train_batch_size=4, steps_per_generation=2, beta=0.1),
    )[kind]
    torch.manual_seed(4)
    extra = {}
    model = str(folder / "model") if options.pop("by_name", False) else AutoModelForCausalLM.from_pretrained(folder / "model")
    if kind == "GRPO":
        extra["reward_funcs"] = lambda completions, **_: [float(len(set(one))) for one in completions] if rewards else []
    if kind == "SFT":
        extra["eval_dataset"] = Dataset.from_list(rows[:5])
    return getattr(trl, f"{kind}Trainer")(
        model=model, args=getattr(trl, f"{kind}Config")(**common | own | options), peft_config=adapter,
        train_dataset=Dataset.from_list(rows), processing_class=tokenizer(), **extra)


def train(rank, kind, folder, size, options, mode):
    trainer = trainer_of(kind, folder, options, rewards=rank % max(size, 1) == 0)  # first ranks of groups alone call the function
    if size:
        longspan.parallelize_trainer(trainer, sequence_parallel_size=size, mode=mode)
    torch.manual_seed(5 + rank // max(size, 1))  # of answers
    trainer.train()
    keys = ("loss", "grad_norm", "eval_loss", "mean_token_accuracy", "rewards/margins", "completions/mean_length", "reward", "kl")
    logs = [{key: log[key] for key in keys if key in log} for log in trainer.state.log_history]
    if kind == "GRPO":
        kept = dict(trainer._logs["rewards"]) | {name: trainer._logs[name] for name in ("prompt", "completion", "advantages")}
        logs += [{name: [zlib.crc32(one.encode()) if isinstance(one, str) else one for one in values]} for name, values in kept.items()]
    return logs


def close(found, expected):
    """Asserts that losses differ by 1e-5 at most, and other numbers by 1e-4."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == {key: pytest.approx(value, abs=1e-5 if "loss" in key else 1e-4) for key, value in theirs.items()}


@pytest.mark.parametrize("kind, family, options, size, mode", [
    ("SFT", "gemma3_text", {}, 2, "zigzag-ring"),
    ("SFT", "llama", dict(packing=True, max_length=32, lora=True), 3, "auto"),
    ("DPO", "llama", {}, 2, "auto"),
    ("DPO", "gemma3_text", dict(lora=True), 2, "zigzag-ring"),
    ("GRPO", "llama", dict(log_completions=True), 2, "auto"),
    ("GRPO", "gemma3_text", {}, 2, "balanced-ulysses"),
])
def test_trainer(tmp_path, kind, family, options, size, mode):
    small_model(family).save_pretrained(tmp_path / "model")  # also the reference model's
    expected = run_forks(1, train, kind, tmp_path, 0, options, "auto")[0]
    assert len(expected) >= 4 and all(log["grad_norm"] > 1e-3 for log in expected[:3])
    for found in run_forks(size, train, kind, tmp_path, size, options, mode):
        close(found, expected)


def test_refused(tmp_path):
    import trl

    small_model("llama").save_pretrained(tmp_path / "model")
    trainer = trainer_of("GRPO", tmp_path, dict(num_generations=8, per_device_train_batch_size=4))
    longspan.parallelize_trainer(trainer, sequence_parallel_size=1)
    trainer = trainer_of("GRPO", tmp_path, dict(num_generations=8, per_device_train_batch_size=8, scale_rewards="batch"))
    for changes, message in (
        (dict(scale_rewards="batch"), "scale_rewards='batch' counts"),
        (dict(scale_rewards="group", multi_objective_aggregation="normalize_then_sum"), "='normalize_then_sum' counts"),
        (dict(num_generations_eval=3), "per_device_eval_batch_size is 8, and must be a multiple of the 3 answers"),
    ):
        vars(trainer.args).update(changes)
        trainer.eval_dataset = trainer.train_dataset
        with pytest.raises(longspan.UsageError, match=message):
            _trl.refuse_settings(trainer, 2)
    trainer.args.num_generations = 3
    with pytest.raises(longspan.UsageError, match="must be a multiple of num_generations=3"):
        longspan.parallelize_trainer(trainer, sequence_parallel_size=1)
    kinds = {"__module__": "trl.trainer.other"}
    trainer.__class__ = type("OtherTrainer", (trl.trainer.base_trainer._BaseTrainer,), kinds)
    with pytest.raises(longspan.UsageError, match="OtherTrainer was never compared"):
        longspan.parallelize_trainer(trainer, sequence_parallel_size=1)
