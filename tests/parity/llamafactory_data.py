"""LLaMA-Factory's own templates, encoders, texts of pictures and losses, example files and data sets, of its source archive,
which is fetched once. The rest of it, which wants many packages, is left out."""

import ast
import enum
import importlib
import importlib.util
import logging
import sys
import types

import source_archives

VERSION = "0.9.5"  # of which template_format.h speaks


def source():
    """The release's folder: src, data, examples."""
    return source_archives.source("llamafactory", VERSION)


def fetch():
    return source() / "src" / "llamafactory"


class Role(str, enum.Enum):
    USER, ASSISTANT, SYSTEM, FUNCTION, OBSERVATION = "user", "assistant", "system", "function", "observation"


class TextOnly:
    def process_messages(self, messages, *_):
        return messages

    def process_token_ids(self, ids, labels, *_):
        return ids, labels


def module(name, **content):
    made = types.ModuleType(name)
    for key, value in content.items():
        setattr(made, key, value)
    sys.modules[name] = made


class Logger(logging.Logger):
    def info_rank0(self, *_):
        pass

    warning_rank0 = info_rank0


def load():
    """The modules template and processor.supervised, .pairwise."""
    folder = fetch()
    module("llamafactory", __path__=[str(folder)])
    module("llamafactory.extras", __path__=[], logging=types.SimpleNamespace(get_logger=Logger))
    module("llamafactory.extras.constants", IGNORE_INDEX=-100)
    module("llamafactory.data", __path__=[str(folder / "data")])
    module("llamafactory.data.data_utils", Role=Role, SLOTS=list)
    module("llamafactory.data.mm_plugin", get_mm_plugin=lambda *_, **__: TextOnly())
    module("llamafactory.data.processor", __path__=[str(folder / "data" / "processor")])
    return [importlib.import_module(f"llamafactory.data.{name}")
            for name in ("template", "processor.supervised", "processor.pairwise")]


def functions(path, names, known):
    """Functions of a file, by name, which see `known` and each other."""
    tree = ast.parse((fetch() / path).read_text())
    tree.body = [part for part in tree.body if getattr(part, "name", None) in names]
    exec(compile(tree, path, "exec"), known)
    return [known[name] for name in names]


def load_pictures():
    """The module mm_plugin, after load()."""
    module("torchaudio")
    module("llamafactory.extras.constants", IGNORE_INDEX=-100, IMAGE_PLACEHOLDER="<image>", VIDEO_PLACEHOLDER="<video>",
           AUDIO_PLACEHOLDER="<audio>")
    module("llamafactory.extras.packages", is_pillow_available=lambda: True, is_pyav_available=lambda: True,
           is_transformers_version_greater_than=lambda _: True)
    name = "llamafactory.data.mm_plugin_with_pictures"
    spec = importlib.util.spec_from_file_location(name, fetch() / "data" / "mm_plugin.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    del sys.modules["torchaudio"]  # transformers asks whether it is there
    return loaded
