"""data_probe, which lives as long as pytest's worker and loads each real tokenizer once: that takes most of a second."""

import atexit
import json
import subprocess

from conftest import BUILD


class DataProbe:
    """The process, or none yet."""

    def __init__(self):
        self.process = None

    def rows(self, file):
        """The rows of a file, and the notes on it."""
        lines = self.examples(f"rows {file}")
        return [line["row"] for line in lines if "row" in line], [line["note"] for line in lines if "note" in line]

    def examples(self, config):
        """What the training rows of a configuration's file become: data_probe.cpp."""
        if self.process is None:
            self.process = subprocess.Popen([BUILD / "data_probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                            encoding="utf-8", bufsize=1)
            atexit.register(self.process.kill)
        self.process.stdin.write(f"{config}\n")
        lines = []
        while (line := self.process.stdout.readline()) != "\n":
            assert line, "data_probe has died"
            lines.append(json.loads(line))
        assert not any("error" in line for line in lines), lines
        return lines


data_probe = DataProbe()
