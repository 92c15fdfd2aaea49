"""What to run first on a machine with GPUs, in the order in which failures explain each other, with one report at the
end: docs/first-gpu-run.md says what each part shows.

  python tests/gpu/first_run.py --build build --report report.md [--parts env,tests,...] [--limit 1200]

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

from runs import (ROOT, Report, UsedMemory, case_of, cases_of, flops, found_by_sanitizer, last_lines, left_free, lengths_of,
                  num_gpus, run, settings, train)

# A rank that is killed, one that stands still, and what the others say.
SIGNAL_TESTS = ["tests/end_to_end/test_reliability.py::test_a_killed_rank",
                "tests/end_to_end/test_reliability.py::test_a_stopped_rank"]
# Every family of models with every kind of exchange, and way to save memory.
FAMILY_TESTS = ["tests/end_to_end/test_families_on_gpus.py"]
# Of the tests that train, those whose numbers tell most of a device. Each compares with one process, with others' code,
# or with the bits of an undisturbed run.
TESTS = ["tests/end_to_end/test_parallel_training.py", "tests/end_to_end/test_stages.py",
         "tests/end_to_end/test_sharding.py", "tests/end_to_end/test_resume.py",
         "tests/end_to_end/test_sharded_resume.py", "tests/parity/test_trainer.py", "tests/parity/test_lora.py",
         "tests/parity/test_picture_training.py"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="folder of longspan and gpu_tests")
    parser.add_argument("--report", type=Path, default=Path("first-gpu-run.md"), help="what is written")
    parser.add_argument("--work", type=Path, default=Path("first-gpu-run"), help="models, rows and logs")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--speed", default="1.5b:8192,1.5b:32768,7b-of-7-layers:32768,1.5b:131072,"
                                             "1.5b:524288:offload_activations=true",
                        help="model:tokens of the rows whose speed is measured, and more keys after them; the longest takes "
                             "minutes a step. 4096+8x64: nine documents in a row")
    parser.add_argument("--memory", default="1.5b:8192,1.5b:32768", help="the same, of what memory is looked at")
    parser.add_argument("--profile", default="1.5b:8192", help="the same, of the step whose time is looked at")
    parser.add_argument("--edges", default=",".join(EDGES), help=f"of the part `edges`: {', '.join(EDGES)} (default: all)")
    parser.add_argument("--zero", default="", help=f"of the part `zero`: {'; '.join(ZERO)} (default: all)")
    parser.add_argument("--processes", type=int, default=8, help="of the part `zero`; they share GPUs that are fewer")
    parser.add_argument("--peer", action="store_true", help="transformers beside each of them")
    parser.add_argument("--keys", default="", help="more keys of those runs: key=value,key=value")
    parser.add_argument("--peak", type=float, default=989e12,
                        help="FLOP/s that MFU is a share of (default 989e12, an H100's dense bf16)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() // 2, help="tests at a time")
    parser.add_argument("--tests", default=",".join(TESTS), help=f"files of the part `tests` (default {','.join(TESTS)})")
    parser.add_argument("--select", default="", help="pytest's -k for them, and for those of `families` and `signals`")
    parser.add_argument("--limit", type=float, default=3600, help="seconds that each of these three parts may take")
    options = parser.parse_args()
    options.build, options.work = options.build.absolute(), options.work.absolute()
    return options


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
    said = (text.strip().splitlines() or [""])[-2 if status == 0 else -1]
    report.check("every launch waited for", status == 0, f"{seconds:.0f} s; {said}")
    for name, why in re.findall(r"TEST CASE: +(.*)\n\n.*MESSAGE: not run: (.*)", text):
        report.left_out(name, why)
    if status != 0:
        report.say(last_lines(text, 60))
    if not (sanitizer := shutil.which("compute-sanitizer")):
        return report.left_out("compute-sanitizer", "it is not installed")
    status, text, seconds = run([sanitizer, *SANITIZE, program], options.work / "gpu_tests-sanitized.log", 900, **variables)
    wrong = found_by_sanitizer(text) or (f"ended with {status}" if status != 0 else "")
    report.check("under compute-sanitizer", not wrong, wrong or f"{seconds:.0f} s")
    if wrong:
        report.say(last_lines(text, 30))


def tiny(options, report):
    report.say("\n## A tiny model\n")
    on_cpu = train(options, report, "tiny-cpu", settings(options, "tiny", 1024, "tiny-cpu", bf16=False, device="cpu"))
    for name, changes, bound in (("tiny-fp32", dict(bf16=False), 1e-5), ("tiny-bf16", {}, 2e-2)):
        steps = train(options, report, name, settings(options, "tiny", 1024, name, device="cuda", **changes),
                      CUDA_LAUNCH_BLOCKING="1")
        if steps and on_cpu:
            apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, on_cpu))
            report.check(f"{name}: losses of 5 steps beside fp32 on the CPU", apart < bound,
                         f"apart by {apart:.1e}, allowed {bound:g}")
    if not (sanitizer := shutil.which("compute-sanitizer")):
        return report.left_out("a run under compute-sanitizer", "it is not installed")
    config = settings(options, "tiny", 1024, "tiny-sanitized", device="cuda", max_steps=2)
    steps = train(options, report, "tiny-sanitized", config, wrapper=[sanitizer, *SANITIZE])
    if steps:
        wrong = found_by_sanitizer((options.work / "tiny-sanitized.log").read_text())
        report.check("two steps under compute-sanitizer", not wrong, wrong or "no wrong access")


def run_tests(options, report, chosen, name):
    select = ["-k", options.select] if options.select else []
    command = [sys.executable, "-m", "pytest", "-q", "-n", options.workers, "--dist", "worksteal", "-p", "no:cacheprovider",
               "--durations=5", *chosen, *select]
    device = os.environ.get("LONGSPAN_TEST_DEVICE", "cuda")
    with contextlib.chdir(ROOT):
        status, text, seconds = run(command, options.work / f"{name}.log", options.limit, LONGSPAN_TEST_DEVICE=device,
                                    LONGSPAN_BUILD=str(options.build), HF_HUB_OFFLINE="1", LONGSPAN_ALL_CASES="1")
    summary = (re.findall(r"\d+ (?:passed|failed).*", text) or ["no summary"])[-1]
    progress = "".join(re.findall(r"^([.sxFE]+)(?: +\[ *\d+%\])?$", text, re.MULTILINE))
    if status == 124 and not {"F", "E"} & set(progress):
        report.left_out(", ".join(chosen), f"the rest, when --limit ({seconds:.0f} s) was over; {progress.count('.')} had passed")
    else:
        report.check(", ".join(chosen), status == 0, f"{summary}; {seconds:.0f} s")
    for line in text.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            report.say("      " + line[:200])


def tests(options, report):
    """The tests of training, in fp32 on GPUs."""
    report.say("\n## Training, in fp32 on the GPU: every method, ZeRO, offloads, resume\n")
    run_tests(options, report, options.tests.split(","), "pytest")


def families(options, report):
    report.say("\n## Every family of models, beside the processor\n")
    run_tests(options, report, FAMILY_TESTS, "families")


def signals(options, report):
    report.say("\n## Ranks that are killed, and that stand still\n")
    run_tests(options, report, SIGNAL_TESTS, "signals")


# Calls of the driver that fail are not reported: torch's allocator asks for memory of a kind that not every GPU has, and
# takes another kind when it is refused.
SANITIZE = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "86", "--print-limit", "5"]
# What divides a model's states among processes, or moves them to the host.
ALL_OFFLOADS = dict(offload_optimizer=True, offload_params=True, offload_activations=True)
ZERO = {str(stage): dict(zero_stage=stage) for stage in range(4)}
ZERO["3, all offloads"] = dict(zero_stage=3) | ALL_OFFLOADS


def zero(options, report):
    """Data-parallel processes, each with a row, beside one that takes as many rows a step. fp32: how far losses may be
    apart is the tests' own bound for sums in another order."""
    ranks = options.processes
    report.say(f"\n## ZeRO and offloads on {ranks} processes, {min(ranks, num_gpus())} GPUs\n")
    keys = dict(device="cuda", bf16=False, full_determinism=True)
    config = settings(options, "tiny", 512, "zero-one", gradient_accumulation_steps=ranks, **keys)
    one = train(options, report, "zero-one", config)
    keys |= dict(nproc_per_node=ranks, share_gpus=num_gpus() < ranks)
    for number, (name, changes) in enumerate(ZERO.items()):
        if options.zero and name not in options.zero.split(";"):
            continue
        run_name = f"zero-{number}"
        steps = train(options, report, run_name, settings(options, "tiny", 512, run_name, **keys, **changes))
        if steps and one:
            apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, one))
            report.check(f"zero_stage {name}: losses of 5 steps beside one process", apart < 1e-5,
                         f"apart by {apart:.1e}, allowed 1e-05")


def memory(options, report):
    report.say("\n## Memory of one GPU, GiB: by the account, by torch's allocator, by nvidia-smi\n")
    report.say("| model | tokens | account of tensors | allocated | reserved | account, all | nvidia-smi |")
    report.say("|---|---|---|---|---|---|---|")
    failed, blind = [], []
    for case in options.memory.split(","):
        shape, tokens, keys = case_of(case)
        name = f"memory-{shape}-{tokens}"
        config = settings(options, shape, tokens, name, **(dict(device="cuda", max_steps=2) | keys))
        with UsedMemory() as used:
            steps = train(options, report, name, config, 600)
        if not steps:
            continue
        told = json.loads((options.work / name / "memory.json").read_text())
        peak = told["measured"][0]
        accounted = told["device"] + told["beside_tensors"]
        columns = (told["device"], peak["device"], peak["reserved"], accounted, used.most - used.before)
        report.say(f"| {shape} | {tokens} | " + " | ".join(f"{number / 2**30:.2f}" for number in columns) + " |")
        if not peak["device"] <= told["device"] or not used.most - used.before <= accounted:
            failed.append(name)
        if used.most - used.before < peak["device"]:
            blind.append(name)
    report.say()
    report.check("no run takes more than its account", not failed, ", ".join(failed))
    if blind:
        why = "nvidia-smi shows less than torch's allocator has given: "
        report.left_out("nvidia-smi beside the account", why + ", ".join(blind))


def profile(options, report):
    """Where a step's time goes, by CUPTI, which torch's packages bring."""
    report.say("\n## A step's time\n")
    shape, tokens, keys = case_of(options.profile)
    packages = [Path(folder) for folder in sys.path if folder.endswith("-packages")]
    homes = [header.parent.parent for folder in packages for header in folder.glob("nvidia/**/include/cupti.h")]
    libraries = [library for home in homes for library in sorted(home.glob("lib/libcupti.so.*"))]
    if not libraries:
        return report.left_out("the profile", "there is no CUPTI (nvidia-cuda-cupti, which torch's packages for CUDA bring)")
    injected, records = options.work / "liblaunches.so", options.work / "records.tsv"
    status, text, _ = run(["c++", "-O2", "-shared", "-fPIC", "-std=c++20", ROOT / "tests/gpu/launches.cpp", "-o", injected,
                           f"-I{homes[0] / 'include'}", libraries[0], f"-Wl,-rpath,{libraries[0].parent}",
                           # Some of its headers' own are the toolkit's.
                           "-idirafter", Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"])
    if status != 0:
        return report.check("launches.cpp compiles", False, last_lines(text))
    name = f"profile-{shape}-{tokens}"
    config = settings(options, shape, tokens, name, **(dict(device="cuda", max_steps=4) | keys))
    records.unlink(missing_ok=True)
    if train(options, report, name, config, 600, CUDA_INJECTION64_PATH=str(injected), LAUNCHES=str(records)):
        status, text, _ = run([sys.executable, ROOT / "tests/gpu/launches.py", records, "--steps", 4])
        report.check(f"the last of 4 steps, {shape}, {tokens} tokens", status == 0)
        report.say("\n" + text.strip())  # or why there is none


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


def speed(options, report):
    report.say("\n## Speed: bf16, AdamW with fp32 states, checkpointing, one GPU\n")
    report.say("| model | tokens of a row | | s a step | tokens/s | MFU | peak GiB | account GiB | first loss |")
    report.say("|---|---|---|---|---|---|---|---|---|")
    more = dict(pair.split("=", 1) for pair in options.keys.split(",") if pair)
    for case in options.speed.split(","):
        shape, documents, keys = case_of(case)
        tokens = sum(lengths_of(documents))
        labels = sum(round(each.tokens * each.answer_share) for each in cases_of(shape, documents))
        name = f"speed-{shape}-{documents}"
        # A step of a very long row takes minutes.
        max_steps, patience = (3, 3000) if tokens > 200_000 else (6, 400)
        config = settings(options, shape, documents, name, **(dict(device="cuda", max_steps=max_steps) | more | keys))
        steps = train(options, report, name, config, patience)
        if not steps:
            continue
        lines = [json.loads(line) for line in (options.work / name / "trainer_log.jsonl").read_text().splitlines()]
        ends = [line["total_tokens"] / line["throughput"] for line in lines if "loss" in line]
        memory = json.loads((options.work / name / "memory.json").read_text())

        def row(who, seconds, peak, account, loss):
            median = sorted(seconds)[len(seconds) // 2]
            mfu = flops(shape, documents, labels) / median / options.peak
            report.say(f"| {shape} | {documents} | {who} | {median:.3f} | {tokens / median:.0f} | {mfu:.1%} | "
                       f"{peak / 2**30:.2f} | {account} | {loss:.4f} |")

        row("Longspan", [b - a for a, b in zip(ends[1:], ends[2:])], memory["measured"][0]["device"],
            f"{memory['device'] / 2**30:.2f}", steps[0]["loss"])
        if not options.peer or documents != str(tokens):
            continue
        status, text, _ = run([sys.executable, ROOT / "tests/gpu/transformers_steps.py", options.work / f"model-{shape}",
                               options.work / f"rows-{documents}" / "tokens.json", 4],
                              options.work / f"peer-{shape}-{documents}.log", 200)
        if status != 0:
            why = "out of memory" if "OutOfMemoryError" in text else f"ended with {status}"
            report.say(f"| {shape} | {tokens} | transformers | {why} | | | | | |")
            continue
        peer = json.loads(text.strip().splitlines()[-1])
        who = "transformers" + "".join(f", no {package}" for package in peer["missing"])
        row(who, peer["seconds"][1:], peer["peak"], "", peer["losses"][0])


def rates(options, report):
    """Kernels over rows beside ATen's operators, and gemms of experts, with matrices in bf16 and fp32, even and skewed."""
    report.say("\n## Rates of kernels (bench_cuda_rows)\n")
    if not (program := options.build / "bench_cuda_rows").exists():
        return report.left_out("bench_cuda_rows", "`make bench-programs` builds it")
    status, text, seconds = run([program], options.work / "bench_cuda_rows.log", 300)
    report.check("bench_cuda_rows", status == 0, f"{seconds:.0f} s")
    report.say(f"\n```\n{text.strip()}\n```")


SPARE = 256 << 20  # bytes that a first step finds beside what the run needs


def nearly_full(options, report):
    """A run, and the same with no more of the GPU than the first has needed and SPARE: a process holds the rest."""
    report.say("\n## A first step with memory nearly full\n")
    keys = dict(device="cuda", max_steps=2, kept_mlp_layers=0)
    config = settings(options, "1.5b", 8192, "full-before", **keys)
    if not (before := train(options, report, "full-before", config, 600)):
        return
    told = json.loads((options.work / "full-before" / "memory.json").read_text())
    needed = max(told["device"], told["measured"][0]["reserved"]) + told["beside_tensors"]
    with left_free(needed + SPARE) as free:
        steps = train(options, report, "full", settings(options, "1.5b", 8192, "full", **keys), 600)
    if steps:
        losses = [entries[0]["loss"] for entries in (steps, before)]
        report.check(f"the first step with {free / 2**30:.2f} GiB free, of which it needs {needed / 2**30:.2f}",
                     abs(losses[0] - losses[1]) <= 2e-2 * losses[1], f"losses {losses[0]:.4f} and {losses[1]:.4f}")


def part_with(part, **changes):
    return lambda options, report: part(argparse.Namespace(**vars(options) | changes), report)


# Limits of lengths and of memory, each in one to three minutes of an H200.
EDGES = {
    "documents": part_with(memory, memory="1.5b-of-4-layers:600000+64:kept_mlp_layers=0"),
    "determinism": part_with(memory, memory="1.5b:131072:full_determinism=true"),
    "rates": rates,
    # By cuDNN and by flash attention 2, in several calls.
    "mixed": part_with(profile, profile="1.5b:12288+4x3072+16x512+32x64"),
    "recurrences": part_with(profile, profile="qwen3.5-9b-of-4-layers:32768"),
    "shapes": part_with(speed, speed="qwen3.5-9b-of-4-layers:32768,30b-a3b-of-2-layers:32768", peer=True),
    "full": nearly_full,
}


def edges(options, report):
    for name in options.edges.split(","):
        run_part(name, EDGES[name], options, report)


PARTS = {"env": env, "kernels": kernels, "tiny": tiny, "resume": resume, "tests": tests, "families": families,
         "zero": zero, "signals": signals, "memory": memory, "profile": profile, "speed": speed, "edges": edges}


def run_part(name, part, options, report):
    begin = time.time()
    try:
        part(options, report)
    except Exception as error:  # the report is of use without the part
        report.check(name, False, f"{type(error).__name__}: {error}")
    report.say(f"\n({name}: {time.time() - begin:.0f} s)")


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    report = Report()
    report.say(f"# First run on GPUs, {datetime.date.today()}\n")
    if num_gpus() == 0:
        raise SystemExit("nvidia-smi shows no GPU here: there is nothing to run")
    for what, chosen, all_parts in (("--parts", options.parts, PARTS), ("--edges", options.edges, EDGES)):
        for name in chosen.split(","):
            if name not in all_parts:
                raise SystemExit(f"{what} {name}: choose from {', '.join(all_parts)}")
    for name in options.parts.split(","):
        run_part(name, PARTS[name], options, report)
    report.say(f"\n{len(report.failed)} failed" + "".join(f"\n- {name}" for name in report.failed))
    options.report.write_text("\n".join(report.lines) + "\n")
    raise SystemExit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
