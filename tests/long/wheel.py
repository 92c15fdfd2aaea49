"""A wheel in a fresh environment with its torch: the installation, the import, the demo's first run, a script of
examples/python. Prints seconds, from the start of `pip install` of the wheel, which must take less than a minute.

    make wheel && python tests/long/wheel.py dist/longspan-*+torch2.15-*.whl
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 60  # seconds of `pip install`, without torch's


def run(*words, **options):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def first_loss(command, **options):
    """Seconds until a program prints a loss; the program is then ended."""
    start = time.time()
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                               **options)
    lines = []
    try:
        for line in program.stdout:
            lines.append(line)
            if re.search(r"\bloss\b\D{0,4}\d", line):
                return time.time() - start
    finally:
        os.killpg(program.pid, 9)
        program.wait()
    sys.exit(f"{command} printed no loss:\n{''.join(lines)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--script", type=pathlib.Path, default=ROOT / "examples/python/trainer.py",
                        help="of examples/python, run on 2 processes")
    arguments = parser.parse_args()
    minor = re.search(r"\+torch(\d+\.\d+)-", arguments.wheel.name)[1]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        run(ROOT / "tools/setup_environment", sys.executable, folder / "env", requirements(folder, minor), cwd=ROOT)
        bin_ = folder / "env/bin"
        python = bin_ / "python"
        # No compiler, no Rust: only the environment's own programs, and the shell's.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | dict(PATH=f"{bin_}:{folder / 'tools'}")
        (folder / "tools").mkdir()
        for tool in ("sh", "env", "uname"):
            (folder / "tools" / tool).symlink_to(shutil.which(tool))
        start = time.time()
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", arguments.wheel.resolve(), env=environment)
        seconds = time.time() - start
        print(f"torch {minor}: pip install of {arguments.wheel.name}: {seconds:.1f} s", flush=True)
        if seconds >= LIMIT:
            sys.exit(f"pip install took {seconds:.1f} s, and the limit is {LIMIT} s")
        said = run(python, "-c", "import time, torch; a = time.time(); import longspan; print(time.time() - a, longspan.__version__)",
                   env=environment, cwd=folder)
        print(f"import longspan, beyond torch's: {float(said.split()[0]):.2f} s", flush=True)
        print(run(bin_ / "longspan", "env", env=environment).strip(), flush=True)
        seconds = first_loss([python, ROOT / "examples/demo.py"], env=environment | dict(LONGSPAN=str(bin_ / "longspan")),
                             cwd=folder)
        print(f"the demo's first loss: {seconds:.1f} s after its start, {time.time() - start:.1f} s after `pip install`")
        start = time.time()
        said = run(bin_ / "torchrun", "--nproc-per-node=2", arguments.script.resolve(), env=environment, cwd=folder)
        if not re.search(r"loss'?:? '?\d", said):
            sys.exit(f"{arguments.script.name} printed no loss:\n{said}")
        print(f"{arguments.script.name} on 2 processes: {time.time() - start:.1f} s")


def requirements(folder, minor):
    """Torch and what the scripts of examples/python import."""
    file = folder / "requirements.txt"
    file.write_text(f"torch=={minor}.*\nnumpy\ntransformers==5.23.0\naccelerate==1.15.0\n")
    return file


if __name__ == "__main__":
    main()
