"""Published models have as many parameters here as in transformers, to the last, and as their files say."""

import json
import subprocess

import torch
from families import families_of_the_program
from published import PUBLISHED
from test_models import PROBE
from transformers import AutoConfig, AutoModelForCausalLM


def counted_by_transformers(folder):
    """Parameters, and the numbers of buffers that its files hold: shapes alone, on a device without memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    parameters = dict(model.named_parameters())  # a tied one once
    assert all(parameter.is_meta for parameter in parameters.values())
    saved = model.state_dict()
    buffers = sum(buffer.numel() for name, buffer in model.named_buffers() if name in saved)
    return sum(parameter.numel() for parameter in parameters.values()), buffers


def test_published_models(tmp_path):
    assert {keys["model_type"] for keys, _ in PUBLISHED.values()} == set(families_of_the_program())
    folders = []
    for name, (keys, _) in PUBLISHED.items():
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text(json.dumps(keys))
    said = subprocess.run([PROBE, "count", *(folder / "config.json" for folder in folders)], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    ours = [tuple(map(int, line.split())) for line in said.stdout.splitlines()]
    assert dict(zip(PUBLISHED, ours, strict=True)) == {folder.name: counted_by_transformers(folder) for folder in folders}
    for (name, (_, published)), (parameters, _) in zip(PUBLISHED.items(), ours):
        assert published in (None, parameters), name
    # DeepSeek's number has the routers' corrections, which are not trained.
    assert sum(ours[list(PUBLISHED).index("DeepSeek-V3")]) == 671_026_419_200
