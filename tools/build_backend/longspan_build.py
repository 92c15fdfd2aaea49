"""Build backend: scikit-build-core, told where the torch of the installing environment is.

pip builds in an isolated environment without torch. The program must be built against the torch that it will
run with, and that one is in the environment that pip installs into: the same interpreter's site-packages.
"""

import os
import sys
import sysconfig

from scikit_build_core import build as _backend
from scikit_build_core.build import *  # noqa: F401,F403


def _find_torch():
    candidates = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib"), *sys.path]
    for folder in candidates:
        torch = os.path.join(folder, "torch")
        if os.path.isfile(os.path.join(torch, "lib", "libtorch_cpu.so")):
            return torch
    raise SystemExit(
        f"longspan: no torch in {sysconfig.get_path('platlib')}. "
        "Install it there first (pip install torch), then run pip install again."
    )


def _settings(config_settings):
    import nlohmann_json

    settings = dict(config_settings or {})
    settings.setdefault("cmake.define.TORCH_DIR", _find_torch())
    settings.setdefault(
        "cmake.define.JSON_DIR", os.path.join(os.path.dirname(nlohmann_json.__file__), "include")
    )
    return settings


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return _backend.build_editable(wheel_directory, _settings(config_settings), metadata_directory)
