"""Configurations as the library reads them: a file, and words `key=value`."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Union

from longspan.errors import UsageError

Config = Union[Mapping[str, Any], str, "os.PathLike[str]"]
Overrides = Union[Mapping[str, Any], Sequence[str]]


@contextlib.contextmanager
def given_config(config: Config, overrides: Overrides) -> Iterator[tuple[str, list[str]]]:
    """Yields the file and the words. A dict becomes a temporary file; messages of UsageError call this file
    "config"."""
    if isinstance(overrides, Mapping):
        overrides = [f"{key}={_text(value)}" for key, value in overrides.items()]
    words = list(overrides)
    if not isinstance(config, Mapping):
        yield os.fspath(config), words
        return
    with tempfile.TemporaryDirectory(prefix="longspan-") as folder:
        file = str(pathlib.Path(folder) / "config.json")
        pathlib.Path(file).write_text(_text(dict(config)), encoding="utf-8")
        try:
            yield file, words
        except UsageError as error:
            raise UsageError(str(error).replace(file, "config")) from error.__cause__


def _text(value: Any) -> str:
    try:
        return json.dumps(value, default=os.fspath)
    except (TypeError, ValueError) as error:
        wanted = "wanted are strings, numbers, True or False, None, lists and dicts"
        raise UsageError(f"config: {error}; {wanted}") from None
