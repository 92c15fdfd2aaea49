"""The peers' Python environments.

transformers runs in the environment of the tests. LLaMA-Factory caps its libraries, so it gets a
virtual environment of its own, which borrows torch (and what torch itself needs) from the first:
every framework then computes on the same kernels, and nothing large is downloaded twice. DeepSpeed
and yunchang, whose attention is compared, share another one.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
# Large parts of torch's installation; its small pure-Python requirements are installed anew.
BORROWED = re.compile(r"^(torch|triton|nvidia-.*|cuda-.*)$")


def _distributions(python: Path) -> list[tuple[str, str, str, list[str]]]:
    """(name, version, site-packages, top-level entries) of what a peer's environment borrows from
    `python`."""
    code = (
        "import importlib.metadata as m, json\n"
        "print(json.dumps([(d.metadata['Name'], d.version, str(d.locate_file('')),"
        " sorted({f.parts[0] for f in d.files or []})) for d in m.distributions()]))"
    )
    rows = json.loads(subprocess.check_output([str(python), "-c", code], text=True))
    return [tuple(r) for r in rows if BORROWED.match(r[0].lower().replace("_", "-"))]


def _borrow_torch(environment: Path, lender: Path) -> str:
    """Links torch's folders into `environment`; returns torch's version."""
    borrowed = environment / "borrowed"
    borrowed.mkdir(parents=True, exist_ok=True)
    version = ""
    for name, number, site, entries in _distributions(lender):
        version = number if name.lower() == "torch" else version
        for entry in entries:
            if entry != "..":
                link = borrowed / entry
                if link.is_symlink():
                    link.unlink()
                link.symlink_to(Path(site) / entry)
    if not version:
        raise SystemExit(f"{lender} has no torch to lend: run `make setup` first")
    purelib = subprocess.check_output(
        [str(environment / "bin/python"), "-c",
         "import sysconfig; print(sysconfig.get_path('purelib'))"],
        text=True,
    ).strip()
    (Path(purelib) / "borrowed_torch.pth").write_text(str(borrowed.resolve()) + "\n")
    return version


def _mend_torchaudio(environment: Path) -> None:
    """torchaudio's newest wheel refuses torch 2.15 in its native libraries, which text training
    never calls; without them it imports."""
    for library in environment.glob("lib/python*/site-packages/torchaudio/lib/*torchaudio*.so"):
        library.unlink()


def _peer_environment(environment: Path, lender: Path, title: str, requirements: str, install):
    """Makes an environment that borrows torch, if it is not there; `install(pip, environment)` fills
    it, where pip(*words) runs `pip install` with torch's version pinned. Returns its interpreter."""
    environment = environment.absolute()  # not resolve(): a venv's python is itself a link
    python = environment / "bin/python"
    ready = environment / ".ready"
    if ready.exists() and ready.read_text() == requirements:
        return python
    print(f"== Setting up {title} in {environment} (once, about 3 minutes)", flush=True)
    if not python.exists():
        subprocess.check_call([str(lender), "-m", "venv", str(environment)])
    version = _borrow_torch(environment, lender)
    constraints = environment / "constraints.txt"
    constraints.write_text(f"torch=={version.split('+')[0]}\n")

    def pip(*words: str, **variables: str) -> None:
        subprocess.check_call(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "-c", str(constraints), *words], env=os.environ | variables)

    install(pip, environment)
    ready.write_text(requirements)
    return python


def llamafactory_environment(environment: Path, lender: Path) -> Path:
    """Makes LLaMA-Factory's environment if it is not there, and returns its interpreter."""
    requirements = FOLDER / "llamafactory-requirements.txt"

    def install(pip, environment):
        pip("-r", str(requirements))
        _mend_torchaudio(environment)

    return _peer_environment(environment, lender, "LLaMA-Factory", requirements.read_text(),
                             install)


def attention_environment(environment: Path, lender: Path) -> Path:
    """Makes the environment of DeepSpeed and yunchang if it is not there, and returns its
    interpreter."""
    requirements = (FOLDER / "attention-requirements.txt").read_text()
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    peers = [line for line in lines if "==" in line]

    def install(pip, environment):
        pip(*[line for line in lines if line not in peers])
        # DeepSpeed's installation looks for torch, which an isolated build would not see, and for
        # an accelerator to build native operations for.
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        pip("--no-build-isolation", *peers, DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", PATH=path)

    return _peer_environment(environment, lender, "DeepSpeed and yunchang", requirements, install)


def trainer_environment(environment: Path, lender: Path) -> Path:
    """Makes the environment of those who share rows under transformers' Trainer if it is not there, and returns its
    interpreter. It sees the lender's whole environment, with transformers and accelerate."""
    requirements = (FOLDER / "trainer-requirements.txt").read_text()
    lines = [line for line in requirements.splitlines() if line and not line.startswith("#")]
    peers = [line for line in lines if line.startswith(("deepspeed==", "axolotl"))]

    def install(pip, environment):
        site = subprocess.check_output([str(lender), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
                                       text=True).strip()
        (next(environment.glob("lib/python*/site-packages")) / "lender.pth").write_text(site + "\n")
        pip(*[line for line in lines if line not in peers])
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        pip("--no-build-isolation", "--no-deps", *peers, DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", PATH=path)

    return _peer_environment(environment, lender, "DeepSpeed and axolotl-ringmaster", requirements, install)


def versions(python: Path, names: list[str]) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    )
    return json.loads(subprocess.check_output([str(python), "-c", code, *names], text=True))


if __name__ == "__main__":
    where = Path(sys.argv[1] if len(sys.argv) > 1 else "build/peers/llamafactory")
    print(llamafactory_environment(where, Path(sys.argv[2] if len(sys.argv) > 2 else sys.executable)))
