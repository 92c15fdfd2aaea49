"""Runs the fuzz targets: first the inputs that once were findings, then bytes at random for every reader.

python tests/fuzz/run.py --build build-fuzz --minutes 60          (make fuzz MINUTES=60)
python tests/fuzz/run.py --build build-fuzz --seconds-each 30 --seed 1     (make fuzz-tests)
python tests/fuzz/run.py --build build-fuzz --only yaml,json --seconds-each 5

A finding is whatever a reader does but return or throw UserError: another exception, a signal, what the sanitizers see,
more than TIMEOUT seconds for an input, more than MEMORY_MB. Each is kept as BUILD/findings/READER/* with a .txt beside
it that says how to replay it. A finding that is mended belongs into tests/fuzz/regressions/READER. What covers new code
stays in BUILD/fuzz-corpus/READER, so that the next run goes on from there.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dictionaries
import regressions

HERE = Path(__file__).parent
PROGRAMS = ("fuzz_text", "fuzz_tensors")
TIMEOUT = 60  # seconds for an input, under sanitizers: the costliest known one takes 30 s of a busy slow core
MEMORY_MB = 512  # for the inputs of a reader, beyond what its program holds with the first ones
MOST_FINDINGS = 5  # of a reader; then it is left
MAX_BYTES = 16384  # of inputs at random; larger ones are among the regressions


class Fuzzer:
    def __init__(self, build, name, program):
        self.build, self.name, self.program = build, name, program
        self.corpus = build / "fuzz-corpus" / name
        self.findings_folder = build / "findings" / name
        self.made = build / "fuzz-regressions" / name
        for folder in (self.corpus, self.findings_folder, self.made):
            folder.mkdir(parents=True, exist_ok=True)
        self.seeds = HERE / "corpus" / name
        self.regressions = HERE / "regressions" / name
        for file, content in regressions.inputs_of(name).items():
            (self.made / file).write_bytes(content)
        self.executions = self.seconds = self.coverage = self.corpus_size = self.peak_mb = 0
        self.findings = []

    def known_inputs(self):
        folders = (self.seeds, self.regressions, self.made)
        return sorted(file for folder in folders if folder.is_dir() for file in folder.iterdir())

    def environment(self, scratch):
        symbolizer = next(iter(sorted(Path("/usr/lib").glob("llvm-*/bin/llvm-symbolizer"), reverse=True)), None)
        values = dict(os.environ)
        values |= {
            "LONGSPAN_FUZZ_READER": self.name,
            "TMPDIR": scratch,
            # Freed memory is kept for a while to find its uses; not so much that it counts for a reader's own.
            "ASAN_OPTIONS": "quarantine_size_mb=8:allocator_may_return_null=0:detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "RAYON_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "TZ": "UTC",
        }
        if symbolizer:
            values["ASAN_SYMBOLIZER_PATH"] = str(symbolizer)
        return values

    def flags(self):
        return [
            f"-timeout={TIMEOUT}",
            f"-malloc_limit_mb={MEMORY_MB}",
            f"-rss_limit_mb={MEMORY_MB + self.base_mb()}",
            f"-artifact_prefix={self.findings_folder}/",
            "-close_fd_mask=1",
            "-print_final_stats=1",
        ]

    def base_mb(self):
        """What the program holds before the first input, shadow memory and libtorch included."""
        return 512 if self.program.name == "fuzz_tensors" else 192

    def run(self, arguments, seconds):
        """(status, output, seconds). A process that does not end by itself is ended; that is status None."""
        scratch = tempfile.mkdtemp(prefix="longspan-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        begin = time.monotonic()
        process = subprocess.Popen(
            [self.program, *self.flags(), *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            env=self.environment(scratch))
        try:
            output = process.communicate(timeout=seconds)[1]
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, status = process.communicate()[1] + f"\nERROR: no end after {seconds:.0f} s\n".encode(), None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return status, output.decode(errors="replace"), time.monotonic() - begin

    def note(self, file, output):
        kept = file
        if file.parent != self.findings_folder:
            kept = self.findings_folder / f"known-{file.name}"
            shutil.copy(file, kept)
        reason = reason_in(output)
        self.findings.append((reason, kept))
        print(f"{self.name}: {file.name}: {reason}", flush=True)
        command = f"LONGSPAN_FUZZ_READER={self.name} {self.program} {kept}"
        (kept.parent / (kept.name + ".txt")).write_text(f"{reason}\n\n{command}\n\n{output[-20000:]}")

    def replay(self):
        """Every seed and every input that once was a finding; one process for all, and one each where that fails."""
        files = self.known_inputs()
        if not files:
            return
        status, output, seconds = self.run(files, (TIMEOUT + 1) * len(files))
        self.executions, self.seconds = len(files), seconds
        if status == 0:
            return
        for file in files:
            alone, said, _ = self.run([file], 2 * TIMEOUT)
            if alone != 0:
                self.note(file, said)
        if not self.findings:
            self.findings.append((f"all known inputs together end with {status}: {reason_in(output)}", None))
            print(output[-4000:], file=sys.stderr)

    def fuzz(self, seconds, seed):
        """For so long, also past findings. With a seed every run does the same, and begins with the seeds alone."""
        dictionary = self.build / "fuzz-dictionaries" / f"{self.name}.dict"
        dictionary.parent.mkdir(exist_ok=True)
        dictionary.write_bytes(dictionaries.for_reader(self.name, self.known_inputs()))
        # What needs more than its share of time or memory is known from the replay and must not stop all the rest.
        seeds = [folder for folder in (self.seeds,) if folder.is_dir()]
        end = time.monotonic() + seconds
        found = 0
        while (left := int(end - time.monotonic())) > 0 and found < MOST_FINDINGS:
            before = set(self.findings_folder.iterdir())
            with tempfile.TemporaryDirectory(prefix="longspan-fuzz-corpus-") as fresh:
                status, output, took = self.run(
                    [f"-max_total_time={left}", f"-max_len={MAX_BYTES}", f"-dict={dictionary}", f"-seed={seed}",
                     fresh if seed else self.corpus, *seeds], left + 6 * TIMEOUT)
            self.take_statistics(output, took)
            if status == 0:
                return
            found += 1
            new = [file for file in self.findings_folder.iterdir()
                   if file not in before and not file.name.startswith("slow-unit")]
            for file in new:
                self.note(file, output)
            if not new:
                self.findings.append((f"ended with {status} and no input: {reason_in(output)}", None))
                print(output[-4000:], file=sys.stderr)

    def take_statistics(self, output, seconds):
        def last(pattern, default=0):
            found = re.findall(pattern, output)
            return int(found[-1]) if found else default

        self.executions += last(r"stat::number_of_executed_units:\s*(\d+)")
        self.seconds += seconds
        self.coverage = max(self.coverage, last(r"\bcov: (\d+)"))
        self.corpus_size = max(self.corpus_size, last(r"\bcorp: (\d+)/"))
        self.peak_mb = max(self.peak_mb, last(r"stat::peak_rss_mb:\s*(\d+)"))

    def row(self):
        rate = self.executions / self.seconds if self.seconds else 0
        return (self.name, f"{self.executions:,}", f"{rate:,.0f}", f"{self.coverage:,}", f"{self.corpus_size:,}",
                f"{self.peak_mb:,} MB", str(len(self.findings)))


def reason_in(output):
    """One line of what went wrong."""
    for pattern in (r"promised, but not so: .*", r"  what\(\):\s+.*", r"runtime error: .*",
                    r"SUMMARY: .*", r"ERROR: .*"):
        found = re.search(pattern, output)
        if found:
            return found.group(0).strip()[:200]
    return (output.strip().splitlines() or ["no word of it"])[-1][:200]


def readers_of(program):
    environment = {key: value for key, value in os.environ.items() if key != "LONGSPAN_FUZZ_READER"}
    environment["ASAN_OPTIONS"] = "detect_leaks=0"
    listed = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def table(rows):
    head = ("reader", "executions", "per second", "coverage", "corpus", "peak memory", "findings")
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))))


def in_turns(fuzzers, work, num_at_a_time):
    """work(fuzzer) for each, some at a time."""
    waiting = queue.SimpleQueue()
    for fuzzer in fuzzers:
        waiting.put(fuzzer)

    def take():
        while True:
            try:
                fuzzer = waiting.get_nowait()
            except queue.Empty:
                return
            work(fuzzer)
            findings = f", {len(fuzzer.findings)} findings" if fuzzer.findings else ""
            print(f"{fuzzer.name}: {fuzzer.executions:,} executions{findings}", flush=True)

    threads = [threading.Thread(target=take) for _ in range(num_at_a_time)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="folder with fuzz_text and fuzz_tensors")
    parser.add_argument("--minutes", type=float, help="of the wall, for all readers together")
    parser.add_argument("--seconds-each", type=float, default=0, help="for each reader; 0: known inputs only")
    parser.add_argument("--at-most", type=float, default=float("inf"), help="seconds of the wall, for all readers together")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn is the same in every run; 0: by chance")
    parser.add_argument("--only", default="", help="names of readers with commas between")
    parser.add_argument("--at-a-time", type=int, default=2)
    arguments = parser.parse_args()

    build = arguments.build.resolve()
    fuzzers = [Fuzzer(build, name, build / program) for program in PROGRAMS for name in readers_of(build / program)]
    only = [name for name in arguments.only.split(",") if name]
    unknown = set(only) - {fuzzer.name for fuzzer in fuzzers}
    if unknown:
        sys.exit(f"there are no readers {', '.join(sorted(unknown))}; there are "
                 f"{', '.join(fuzzer.name for fuzzer in fuzzers)}")
    stray = {folder.name for kind in ("corpus", "regressions") for folder in (HERE / kind).glob("*")}
    stray = (stray | set(regressions.readers())) - {fuzzer.name for fuzzer in fuzzers}
    if stray:
        sys.exit(f"there are inputs for readers that are not there: {', '.join(sorted(stray))}")
    fuzzers = [fuzzer for fuzzer in fuzzers if not only or fuzzer.name in only]
    seconds = arguments.seconds_each
    if arguments.minutes:
        seconds = arguments.minutes * 60 * arguments.at_a_time / len(fuzzers)

    begin = time.monotonic()
    in_turns(fuzzers, Fuzzer.replay, arguments.at_a_time)
    left = arguments.at_most - (time.monotonic() - begin)
    seconds = min(seconds, left * arguments.at_a_time / len(fuzzers))
    print(f"\nBytes at random: {max(0, seconds):.0f} s of each", flush=True)
    if seconds >= 1:
        in_turns(fuzzers, lambda fuzzer: fuzzer.fuzz(seconds, arguments.seed), arguments.at_a_time)
    print()
    table([fuzzer.row() for fuzzer in fuzzers])
    total = sum(fuzzer.executions for fuzzer in fuzzers)
    findings = [(fuzzer.name, *finding) for fuzzer in fuzzers for finding in fuzzer.findings]
    print(f"\n{total:,} executions of {len(fuzzers)} readers, {len(findings)} findings")
    for name, reason, file in findings:
        print(f"  {name}: {reason}\n    {file}.txt" if file else f"  {name}: {reason}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
