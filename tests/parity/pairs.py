"""Rows with two answers or a verdict, and how TRL's trainers are made to train on the very same tokens."""

import json
import random
import subprocess

import torch
from conftest import BUILD, add_dataset, words_of_real_text
from gpt_oss import attention_for

IGNORE = -100


def write_preference_data(folder, num_rows=24, seed=3):
    """`pairs`, `verdicts` and `chats` of real words; answers of 3 to 40 words, a third of the verdicts bad."""
    words = words_of_real_text()
    rng = random.Random(seed)

    def sentence(least, most):
        begin = rng.randrange(len(words) - most)
        return " ".join(words[begin : begin + rng.randint(least, most)])

    rows = [
        {"instruction": sentence(2, 20), "chosen": sentence(3, 40), "rejected": sentence(3, 40)}
        for _ in range(num_rows)
    ]
    columns = {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"}
    add_dataset(folder, "pairs", rows, ranking=True, columns=columns)
    verdicts = [
        {"instruction": row["instruction"], "output": row["chosen"], "good": i % 3 != 1}
        for i, row in enumerate(rows)
    ]
    columns = {"prompt": "instruction", "response": "output", "kto_tag": "good"}
    add_dataset(folder, "verdicts", verdicts, columns=columns)
    chats = [{"instruction": row["instruction"], "input": "", "output": row["chosen"]} for row in rows]
    add_dataset(folder, "chats", chats)
    return str(folder)


def encoded_rows(settings, folder):
    """What Longspan makes of the rows: their documents as (prompt ids, answer ids), and the verdicts."""
    config = folder / "probe.json"
    config.write_text(json.dumps(settings))
    lines = subprocess.run(
        [BUILD / "data_probe", config], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    rows = []
    for line in map(json.loads, lines):
        documents = []
        for document in line["documents"]:
            ids, labels = document["input_ids"], document["labels"]
            begin = next(i for i, label in enumerate(labels) if label != IGNORE)
            assert begin > 0 and labels == [IGNORE] * begin + ids[begin:]
            documents.append((ids[:begin], ids[begin:]))
        rows.append((documents, line["desirable"]))
    return rows


def pair_columns(rows):
    columns = []
    for ((prompt, chosen), (same_prompt, rejected)), _ in rows:
        assert prompt == same_prompt and chosen != rejected
        columns.append({"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected})
    return columns


def load(folder, **keys):
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=attention_for(folder), **({"dtype": torch.float32} | keys)
    )


def trl_run(trainer_class, config_class, model, columns, folder, prepare=None, ref_model=None, dtype=torch.float64,
            **arguments):
    """Trains `model` with a trainer of TRL on rows that are tokens already. Returns its log.

    `prepare` makes a subclass of those trainers that have no _prepare_dataset.
    """
    from datasets import Dataset
    from transformers import AutoTokenizer

    class OnTokens(trainer_class):
        def _prepare_dataset(self, dataset, *_):
            return dataset

    if prepare is not None:
        OnTokens = prepare(OnTokens)
    # In double, so that what is between us are our own roundings and not those of torch's kernels; sums of
    # log-probabilities, which are in the hundreds, above all.
    model = model.to(dtype)
    ref_model = ref_model if ref_model is None else ref_model.to(dtype)
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    trainer = OnTokens(
        model=model,
        **({} if ref_model is None else {"ref_model": ref_model}),
        args=config_class(
            output_dir=str(folder / "trl"),
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            max_length=None if prepare is None else 4096,
            train_sampling_strategy="sequential",
            **arguments,
        ),
        train_dataset=Dataset.from_list(columns),
        processing_class=AutoTokenizer.from_pretrained(base.config._name_or_path),
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "loss" in entry]
