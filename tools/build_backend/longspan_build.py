"""Build backend: scikit-build-core, told where the torch of the installing environment is.

pip builds in an isolated environment without torch. The program must be built against the torch that it will
run with, and that one is in the environment that pip installs into: what the same interpreter sees without
pip's isolation. A CUDA build of torch needs one header package that torch does not bring; it is asked for here.
"""

import functools
import glob
import json
import os
import re
import subprocess
import sys

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F401,F403

# -I: without PYTHONPATH, by which pip isolates. The interpreter's own .pth files and system packages stay.
_ASK = """
import importlib.util, json, os, sysconfig
spec = importlib.util.find_spec("torch")
found = os.path.dirname(spec.origin) if spec and spec.origin else None
print(json.dumps([found, sysconfig.get_path("platlib")]))
"""


@functools.lru_cache(maxsize=None)
def _find_torch():
    asked = subprocess.run([sys.executable, "-I", "-c", _ASK], capture_output=True, text=True, check=True)
    torch, platlib = json.loads(asked.stdout.splitlines()[-1])
    if torch and os.path.isfile(os.path.join(torch, "lib", "libtorch_cpu.so")):
        return torch
    raise SystemExit(
        f"longspan: no torch in {platlib}. Install it there first (pip install torch), then run pip install "
        "again. A tool that builds with another interpreter than the one it installs for (uv, build) needs "
        "--no-build-isolation."
    )


def _cuda_header_package():
    """The package of crt/host_defines.h in the version of torch's CUDA; none for a CPU build."""
    with open(os.path.join(_find_torch(), "version.py"), encoding="utf-8") as file:
        version = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", file.read(), re.MULTILINE)
    if version is None:
        return []
    major, minor = version.groups()
    name = "nvidia-cuda-crt" if int(major) >= 13 else f"nvidia-cuda-nvcc-cu{major}"
    return [f"{name}=={major}.{minor}.*"]


def _cuda_headers():
    """Where that package's headers are: in the build environment, else beside torch."""
    for folder in [*sys.path, os.path.dirname(_find_torch())]:
        for include in sorted(glob.glob(os.path.join(glob.escape(folder or "."), "nvidia", "*", "include"))):
            if os.path.isfile(os.path.join(include, "crt", "host_defines.h")):
                return include
    return None


def _settings(config_settings):
    import nlohmann_json

    settings = dict(config_settings or {})
    settings.setdefault("cmake.define.TORCH_DIR", _find_torch())
    settings.setdefault(
        "cmake.define.JSON_DIR", os.path.join(os.path.dirname(nlohmann_json.__file__), "include")
    )
    if headers := _cuda_headers():
        settings.setdefault("cmake.define.CUDA_CRT_DIR", headers)
    return settings


def get_requires_for_build_wheel(config_settings=None):
    return [*_backend.get_requires_for_build_wheel(config_settings), *_cuda_header_package()]


def get_requires_for_build_editable(config_settings=None):
    return [*_backend.get_requires_for_build_editable(config_settings), *_cuda_header_package()]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
