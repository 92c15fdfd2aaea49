"""Build backend: scikit-build-core, told where the torch of the installing environment is.

pip builds in an isolated environment without torch. The program must be built against the torch that it will
run with, and that one is in the environment that pip installs into: what the same interpreter sees without
pip's isolation. A CUDA build of torch needs header packages that torch does not bring; they are asked for here.
"""

import base64
import functools
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F401,F403

# Its metadata would name no torch; without the hook, pip reads the wheel's.
globals().pop("prepare_metadata_for_build_wheel", None)

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


# What cmake looks for in them, and the setting that names the folder where it is.
_CUDA_HEADERS = {"crt/host_defines.h": "CUDA_CRT_DIR", "nv/target": "CUDA_CCCL_DIR"}


def _cuda_header_packages():
    """The packages of those headers in the version of torch's CUDA; none for a CPU build."""
    with open(os.path.join(_find_torch(), "version.py"), encoding="utf-8") as file:
        version = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)\.(\d+)", file.read(), re.MULTILINE)
    if version is None:
        return []
    major, minor = version.groups()
    names = ["nvidia-cuda-crt", "nvidia-cuda-cccl"] if int(major) >= 13 else [
        f"nvidia-cuda-nvcc-cu{major}", f"nvidia-cuda-cccl-cu{major}"]
    return [f"{name}=={major}.{minor}.*" for name in names]


def _cuda_headers(name):
    """The folder of a header: in the build environment, else beside torch."""
    for folder in [*sys.path, os.path.dirname(_find_torch())]:
        for include in sorted(glob.glob(os.path.join(glob.escape(folder or "."), "nvidia", "*", "include"))):
            for place in (include, os.path.join(include, "cccl")):
                if os.path.isfile(os.path.join(place, name)):
                    return place
    return None


def _settings(config_settings):
    import nlohmann_json

    settings = dict(config_settings or {})
    settings.setdefault("cmake.define.TORCH_DIR", _find_torch())
    settings.setdefault(
        "cmake.define.JSON_DIR", os.path.join(os.path.dirname(nlohmann_json.__file__), "include")
    )
    for name, setting in _CUDA_HEADERS.items():
        if headers := _cuda_headers(name):
            settings.setdefault(f"cmake.define.{setting}", headers)
    return settings


def get_requires_for_build_wheel(config_settings=None):
    return [*_backend.get_requires_for_build_wheel(config_settings), *_cuda_header_packages()]


def get_requires_for_build_editable(config_settings=None):
    return [*_backend.get_requires_for_build_editable(config_settings), *_cuda_header_packages()]


def _minor_of_torch():
    with open(os.path.join(_find_torch(), "version.py"), encoding="utf-8") as file:
        return re.search(r"^__version__\b[^=\n]*=\s*['\"](\d+\.\d+)", file.read(), re.MULTILINE)[1]


def _say_which_torch(folder, name):
    """Rewrites a wheel: its version and its requirements name the torch that it was built for, as torch promises no ABI
    between minor versions. Returns the new name."""
    distribution, version, tags = name.removesuffix(".whl").split("-", 2)
    minor = _minor_of_torch()
    named = f"{version}+torch{minor}"
    old, new = f"{distribution}-{version}.dist-info/", f"{distribution}-{named}.dist-info/"
    new_name = f"{distribution}-{named}-{tags}.whl"
    record = []
    with zipfile.ZipFile(os.path.join(folder, name)) as given, zipfile.ZipFile(
        os.path.join(folder, new_name), "w", zipfile.ZIP_DEFLATED
    ) as made:
        for entry in given.infolist():
            if entry.filename == old + "RECORD":
                continue
            data = given.read(entry)
            if entry.filename == old + "METADATA":
                text = data.decode().replace(f"\nVersion: {version}\n", f"\nVersion: {named}\n", 1)
                text, count = re.subn(r"\nRequires-Dist: torch\b[^\n]*", f"\nRequires-Dist: torch=={minor}.*", text, count=1)
                assert count == 1 and f"\nVersion: {named}\n" in text, text
                data = text.encode()
            entry.filename = re.sub(rf"^{re.escape(distribution)}-{re.escape(version)}\.(dist-info|data)/",
                                    rf"{distribution}-{named}.\1/", entry.filename)
            made.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            record.append(f"{entry.filename},sha256={digest},{len(data)}\n")
        made.writestr(new + "RECORD", "".join(record) + f"{new}RECORD,,\n")
    os.remove(os.path.join(folder, name))
    return new_name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = _backend.build_wheel(wheel_directory, _settings(config_settings))
    return _say_which_torch(wheel_directory, name)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
