"""What was built is whole: the program starts, and its CUDA library is there where torch has one."""

import subprocess
from pathlib import Path

import torch
from conftest import BUILD, PROGRAM


def said(*words):
    ran = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_version():
    name, version = said("version").split()
    assert name == "longspan"
    assert version[0].isdigit()


def test_env_names_torch_and_says_why_there_is_no_gpu():
    lines = dict(line.split(maxsplit=1) for line in said("env").splitlines())
    assert torch.__version__ in lines["torch"]
    if torch.cuda.is_available():
        assert lines["CUDA"] == f"{torch.cuda.device_count()} GPU" + "s" * (torch.cuda.device_count() != 1)
    else:
        assert lines["CUDA"].startswith("not available: ")
        assert len(lines["CUDA"]) > len("not available: ")
    installed = Path(torch.__file__).resolve().parents[1].glob("flash_attn_3/_C.*.so")
    assert lines["FlashAttention-3"] in ([*map(str, installed)] or ["not installed beside torch"])


def test_the_cuda_half_is_built_where_torch_has_cuda():
    if torch.version.cuda is None:
        return
    library = BUILD / "liblongspan_cuda.so"
    assert library.exists(), f"torch is for CUDA {torch.version.cuda}, but {library} is missing: see `cmake -B {BUILD}`"
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True)
    assert "longspan_cuda_entry" in symbols.stdout, symbols.stderr
    assert "PyModule_Create2" in symbols.stdout  # which FlashAttention 3 names
