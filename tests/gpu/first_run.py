"""What to run first on a machine with GPUs, in the order in which failures explain each other, with one report at the
end: docs/first-gpu-run.md says what each part shows.

  python tests/gpu/first_run.py --build build --report report.md [--parts env,tests,...] [--minutes 10]

Needs a build (`make`, then `build/gpu_tests`: `ninja -C build gpu_tests`), and for `tests` the packages of
tools/test-requirements.txt, of which it leaves out tests of those that are missing."""

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

# Of the tests that train, those whose numbers tell most of a device. Each compares with one process, with others' code,
# or with the bits of an undisturbed run.
TESTS = ["tests/end_to_end/test_parallel_training.py", "tests/end_to_end/test_stages.py",
         "tests/end_to_end/test_sharding.py", "tests/end_to_end/test_resume.py",
         "tests/end_to_end/test_sharded_resume.py", "tests/parity/test_trainer.py", "tests/parity/test_lora.py"]
SHAPES = {
    "tiny": dict(hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
                 num_key_value_heads=2, vocab_size=4096, tie_word_embeddings=True),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True),
    # A quarter of the layers of Qwen2.5-7B: its shapes, in what one GPU holds with AdamW's states.
    "7b-of-7-layers": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=7, num_attention_heads=28,
                           num_key_value_heads=4, vocab_size=152064, tie_word_embeddings=False),
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of longspan and gpu_tests")
    parser.add_argument("--report", type=Path, default=Path("first-gpu-run.md"), help="what is written")
    parser.add_argument("--work", type=Path, default=Path("first-gpu-run"), help="models, rows and logs")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--speed", default="1.5b:8192,1.5b:32768,7b-of-7-layers:32768",
                        help="model:tokens of the rows whose speed is measured")
    parser.add_argument("--peer", action="store_true", help="transformers beside each of them")
    parser.add_argument("--keys", default="", help="more keys of those runs: key=value,key=value")
    parser.add_argument("--peak", type=float, default=989e12,
                        help="FLOP/s that MFU is a share of (default 989e12, an H100's dense bf16)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() // 2, help="tests at a time")
    parser.add_argument("--tests", default=",".join(TESTS), help=f"files of the part `tests` (default {','.join(TESTS)})")
    parser.add_argument("--select", default="", help="pytest's -k for them")
    parser.add_argument("--limit", type=float, default=1200, help="seconds that they may take")
    options = parser.parse_args()
    options.build, options.work = options.build.absolute(), options.work.absolute()
    return options


class Report:
    """Lines for people; each check passed, failed, or was not run for a reason."""

    def __init__(self):
        self.lines, self.failed = [], []

    def say(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def check(self, name, passed, detail=""):
        self.say(f"- {'passed' if passed else '**FAILED**'}: {name}" + (f": {detail}" if detail else ""))
        if not passed:
            self.failed.append(name)

    def left_out(self, name, why):
        self.say(f"- not run: {name}: {why}")


def run(command, log=None, timeout=None, **variables):
    """(status, output, seconds)"""
    begin = time.time()
    try:
        ended = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", timeout=timeout, env=os.environ | variables)
        status, text = ended.returncode, ended.stdout
    except subprocess.TimeoutExpired as stopped:
        status, text = 124, (stopped.stdout or b"").decode(errors="replace") + f"\nstopped after {timeout} s"
    if log:
        log.write_text(text)
    return status, text, time.time() - begin


def last_lines(text, count=12):
    return "\n".join("      " + line for line in text.strip().splitlines()[-count:])


def num_gpus():
    status, text, _ = run(["nvidia-smi", "-L"])
    return text.count("GPU ") if status == 0 else 0


def env(options, report):
    report.say("## Machine\n\n```")
    report.say(run([options.build / "longspan", "env"])[1].strip())
    query = "name,driver_version,memory.total,memory.used,clocks.sm,power.limit,compute_cap"
    report.say(run(["nvidia-smi", f"--query-gpu={query}", "--format=csv"])[1].strip() + "\n```")


def kernels(options, report):
    """The C++ tests of GPUs, each launch waited for; then once more under compute-sanitizer, where it is there."""
    report.say("\n## Kernels and groups (gpu_tests)\n")
    program = options.build / "gpu_tests"
    variables = dict(CUBLAS_WORKSPACE_CONFIG=":4096:8")
    status, text, seconds = run([program], options.work / "gpu_tests.log", 600, CUDA_LAUNCH_BLOCKING="1", **variables)
    passed = status == 0 and "not run" not in text
    report.check("every launch waited for", passed, f"{seconds:.0f} s; " + (text.strip().splitlines() or [""])[-2 if passed else -1])
    if not passed:
        report.say(last_lines(text, 60))
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        report.left_out("compute-sanitizer", "it is not installed")


def settings(options, shape, tokens, name, **changes):
    keys = {"model_name_or_path": str(make_model(options, shape)), "stage": "sft", "do_train": True,
            "finetuning_type": "full", "dataset": "rows", "dataset_dir": str(make_row_data(options, shape, tokens)),
            "template": "chatml", "cutoff_len": tokens, "output_dir": str(options.work / name), "overwrite_output_dir": True,
            "disable_shuffling": True, "logging_steps": 1, "save_strategy": "no", "max_steps": 5,
            "per_device_train_batch_size": 1, "learning_rate": 1e-5, "lr_scheduler_type": "constant", "bf16": True,
            "disable_tqdm": True} | changes
    path = options.work / f"{name}.yaml"
    path.write_text(json.dumps(keys))
    return path


def make_model(options, shape):
    from speed.workload import train_tokenizer

    folder = options.work / f"model-{shape}"
    if not (folder / "config.json").exists():
        seed = options.work / "seed"
        train_tokenizer(seed)
        (seed / "config.json").write_text(json.dumps(SHAPES[shape] | {
            "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
            "max_position_embeddings": 1048576, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "initializer_range": 0.02,
            "attention_dropout": 0.0, "use_sliding_window": False, "torch_dtype": "bfloat16", "bos_token_id": 0,
            "eos_token_id": 2, "pad_token_id": 0}))
        subprocess.check_call([options.build / "longspan", "init", "--config", seed / "config.json", "--output", folder,
                               "--dtype", "bfloat16"], stdout=subprocess.DEVNULL)
    return folder


def make_row_data(options, shape, tokens):
    from speed.workload import Case, make_rows

    folder = options.work / f"rows-{tokens}"
    if not folder.exists():
        make_rows(folder, make_model(options, shape), Case(tokens, SHAPES[shape]["vocab_size"], 0.9, True), 6)
    return folder


def logged(options, name):
    state = json.loads((options.work / name / "trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "loss" in entry]


def train(options, report, name, config, timeout=300, wrapper=(), **variables):
    """The run's log lines; None, and a failure, where it did not end well."""
    status, text, seconds = run([*wrapper, options.build / "longspan", "train", config], options.work / f"{name}.log",
                                            timeout, **variables)
    if status != 0:
        report.check(name, False, f"ended with {status} after {seconds:.0f} s\n{last_lines(text)}")
        return None
    return logged(options, name)


def tiny(options, report):
    report.say("\n## A tiny model\n")
    on_cpu = train(options, report, "tiny-cpu", settings(options, "tiny", 1024, "tiny-cpu", bf16=False, device="cpu"))
    for name, changes, bound in (("tiny-fp32", dict(bf16=False), 1e-5), ("tiny-bf16", {}, 2e-2)):
        steps = train(options, report, name, settings(options, "tiny", 1024, name, device="cuda", **changes),
                      CUDA_LAUNCH_BLOCKING="1")
        if steps and on_cpu:
            apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, on_cpu))
            report.check(f"{name}: losses of 5 steps beside fp32 on the CPU", apart < bound, f"apart by {apart:.1e}, allowed {bound:g}")
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        return report.left_out("a run under compute-sanitizer", "it is not installed")
    config = settings(options, "tiny", 1024, "tiny-sanitized", device="cuda", max_steps=2)
    wrapper = [sanitizer, "--tool", "memcheck", "--error-exitcode", "86", "--print-limit", "5"]
    steps = train(options, report, "tiny-sanitized", config, wrapper=wrapper)
    if steps:
        report.check("two steps under compute-sanitizer", True, "no wrong access")


def tests(options, report):
    """The tests of training, in fp32 on the GPU: processes share it, and exchange through the host."""
    report.say("\n## Training, in fp32 on the GPU: every method, ZeRO, offloads, resume\n")
    chosen = options.tests.split(",")
    command = [sys.executable, "-m", "pytest", "-q", "-n", options.workers, "--dist", "worksteal", "-p", "no:cacheprovider",
               "--durations=5", *chosen]
    if options.select:
        command += ["-k", options.select]
    with contextlib.chdir(ROOT):
        status, text, seconds = run(command, options.work / "pytest.log", options.limit, LONGSPAN_TEST_DEVICE="cuda",
                                    LONGSPAN_BUILD=str(options.build), HF_HUB_OFFLINE="1")
    summary = (re.findall(r"\d+ (?:passed|failed).*", text) or ["no summary"])[-1]
    report.check(", ".join(chosen), status == 0, f"{summary}; {seconds:.0f} s")
    for line in text.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            report.say("      " + line[:200])


def resume(options, report):
    report.say("\n## The same bits\n")

    def weights(name, **changes):
        config = settings(options, "tiny", 1024, name, device="cuda", full_determinism=True, save_strategy="steps",
                          save_steps=2, max_steps=4, **changes)
        return config if train(options, report, name, config) else None

    def digest(folder):
        return run(["sha256sum", folder / "model.safetensors"])[1].split()[0]

    if not weights("bits-1") or not weights("bits-2"):
        return
    one, two = (options.work / name for name in ("bits-1", "bits-2"))
    report.check("two runs", digest(one) == digest(two))
    # From the second step on, twice.
    for name in ("bits-3", "bits-4"):
        goes_on = options.work / name
        shutil.rmtree(goes_on, ignore_errors=True)
        shutil.copytree(one / "checkpoint-2", goes_on / "checkpoint-2")
        if weights(name, overwrite_output_dir=False, resume_from_checkpoint=str(goes_on / "checkpoint-2")):
            report.check(f"resumed from step 2 ({name})", digest(goes_on) == digest(one))


def flops(shape, tokens, labels):
    """Of a step on one row, without recomputation: 6 a parameter of the blocks and token, attention's causal pairs, the
    head at labels."""
    s = SHAPES[shape]
    D, I, L, N, M = (s[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                                        "num_key_value_heads"))
    H = D // N
    blocks = L * (D * H * (2 * N + 2 * M) + 3 * D * I)
    return 6 * blocks * tokens + 6 * N * H * tokens * (tokens + 1) * L + 6 * D * s["vocab_size"] * labels


def speed(options, report):
    report.say("\n## Speed: bf16, AdamW with fp32 states, checkpointing, one GPU\n")
    report.say("| model | tokens of a row | | s a step | tokens/s | MFU | peak GiB | account GiB | first loss |")
    report.say("|---|---|---|---|---|---|---|---|---|")
    more = dict(pair.split("=", 1) for pair in options.keys.split(",") if pair)
    for case in options.speed.split(","):
        shape, tokens = case.split(":")[0], int(case.split(":")[1])
        name = f"speed-{shape}-{tokens}"
        steps = train(options, report, name, settings(options, shape, tokens, name, **({"device": "cuda", "max_steps": 6} | more)), 400)
        if not steps:
            continue
        lines = [json.loads(line) for line in (options.work / name / "trainer_log.jsonl").read_text().splitlines()]
        ends = [line["total_tokens"] / line["throughput"] for line in lines if "loss" in line]
        memory = json.loads((options.work / name / "memory.json").read_text())

        def row(who, seconds, peak, account, loss):
            median = sorted(seconds)[len(seconds) // 2]
            mfu = flops(shape, tokens, round(0.9 * tokens)) / median / options.peak
            report.say(f"| {shape} | {tokens} | {who} | {median:.3f} | {tokens / median:.0f} | {mfu:.1%} | "
                       f"{peak / 2**30:.2f} | {account} | {loss:.4f} |")

        row("Longspan", [b - a for a, b in zip(ends[1:], ends[2:])], memory["measured"][0]["device"],
            f"{memory['device'] / 2**30:.2f}", steps[0]["loss"])
        if not options.peer:
            continue
        status, text, _ = run([sys.executable, ROOT / "tests/gpu/transformers_steps.py", options.work / f"model-{shape}",
                               options.work / f"rows-{tokens}" / "tokens.json", 4],
                              options.work / f"peer-{shape}-{tokens}.log", 200)
        if status != 0:
            why = "out of memory" if "OutOfMemoryError" in text else f"ended with {status}"
            report.say(f"| {shape} | {tokens} | transformers | {why} | | | | | |")
            continue
        peer = json.loads(text.strip().splitlines()[-1])
        row("transformers", peer["seconds"][1:], peer["peak"], "", peer["losses"][0])


PARTS = {"env": env, "kernels": kernels, "tiny": tiny, "tests": tests, "resume": resume, "speed": speed}


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    report = Report()
    report.say(f"# First run on GPUs, {datetime.date.today()}\n")
    if num_gpus() == 0:
        raise SystemExit("nvidia-smi shows no GPU here: there is nothing to run")
    for part in options.parts.split(","):
        if part not in PARTS:
            raise SystemExit(f"--parts {part}: choose from {', '.join(PARTS)}")
    for part in options.parts.split(","):
        begin = time.time()
        try:
            PARTS[part](options, report)
        except Exception as error:  # the report is of use without the part
            report.check(part, False, f"{type(error).__name__}: {error}")
        report.say(f"\n({part}: {time.time() - begin:.0f} s)")
    report.say(f"\n{len(report.failed)} failed" + "".join(f"\n- {name}" for name in report.failed))
    options.report.write_text("\n".join(report.lines) + "\n")
    raise SystemExit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
