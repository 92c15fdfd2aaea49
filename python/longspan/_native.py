"""Loads the operators of _core.so as torch.ops.longspan."""

from __future__ import annotations

import pathlib
from typing import Any

import torch

from longspan.errors import CommunicationError, LongspanError, UsageError

_LIBRARY = torch.library.Library("longspan", "FRAGMENT")
_HERE = pathlib.Path(__file__).parent


def _load() -> None:
    built = _HERE / "_built_for_torch.txt"
    core = _HERE / "_core.so"
    if not core.is_file() or not built.is_file():
        raise LongspanError(
            f"{core} is missing: this installation has no operators for Python. Install the wheel of your torch, or build "
            "from the sources with `pip install .`."
        )
    # torch promises no ABI between minor versions.
    wanted = built.read_text().strip()
    if _minor(wanted) != _minor(torch.__version__):
        raise LongspanError(
            f"this installation of longspan was built for torch {_minor(wanted)}, and torch {torch.__version__} is imported. "
            f"Install the wheel for torch {_minor(torch.__version__)} (its version ends with "
            f"+torch{_minor(torch.__version__)}), or torch {_minor(wanted)}."
        )
    torch.ops.load_library(str(core))
    # A failed collective in a backward of autograd calls this function.
    _LIBRARY.impl("raise_communication_error", _raise_communication_error)


def _raise_communication_error(message: str) -> None:
    raise CommunicationError(message)


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


_load()


def autocast(x: torch.Tensor) -> torch.Tensor:
    """Returns x in the dtype that torch.autocast has now for matrix products; x itself outside of autocast and for fp64."""
    kind = x.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind):  # meta tensors have no autocast
        return x
    if not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def call(name: str, *arguments: Any) -> Any:
    """Calls an operator. Raises UsageError and CommunicationError in place of torch's exceptions."""
    operator = getattr(torch.ops.longspan, name).default
    try:
        return operator(*arguments)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except torch.distributed.DistError as error:
        raise CommunicationError(str(error)) from None
