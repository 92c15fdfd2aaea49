"""What is the user's stays, what two runs write does not mix, and what a link points to is not published."""

import fcntl
import json
import os
import pathlib
import shutil
import stat
import subprocess

import pytest
from conftest import CHATML, PROGRAM, Running, settings_of
from faults import wait_for

NO_LOCKS = r"""
#include <errno.h>
int flock(int descriptor, int operation) { errno = ENOLCK; return -1; }
"""
COPIED = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
          "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json"}


@pytest.fixture
def settings(models, data, tmp_path):
    def make(name="run", model=models["llama"], **keys):
        return settings_of(model, data, tmp_path / name, max_steps=1, **keys)
    return make


def succeeds(settings, **how):
    run = Running(settings, **how).wait()
    assert run.status == 0, run.text
    return run


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "a disk without locks"])
def test_two_runs_at_once(locks, settings, tmp_path, monkeypatch):
    """The second one ends at once and says who is there; what the first one leaves when it is killed is taken over."""
    if not locks:
        (tmp_path / "no_locks.c").write_text(NO_LOCKS)
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "no_locks.so", tmp_path / "no_locks.c"], check=True)
        monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "no_locks.so"))
    first = Running(settings() | dict(max_steps=1000000))
    wait_for(first, "'loss'")
    (tmp_path / "alias").symlink_to("run")  # the same folder by another name, so that logs are apart
    keys = settings("alias", overwrite_output_dir=True)
    second = Running(keys, 2).wait()
    assert set(second.statuses) == {1} and second.text.count("error: ") == 1, second.text
    pid = first.ranks[0].pid
    assert f"output_dir {tmp_path}/alias is in use by another run: host " in second.text, second.text
    assert f", process {pid}, since 20" in second.text and "Traceback" not in second.text, second.text
    # Also before any process is started.
    early = subprocess.run([PROGRAM, "train", tmp_path / "alias.yaml", "nproc_per_node=2"], capture_output=True, text=True, check=False)
    assert early.returncode == 1 and f"process {pid}, since 20" in early.stderr, early.stderr
    assert first.ranks[0].poll() is None and "error" not in first.text(), first.text()
    first.ranks[0].kill()
    first.wait()
    assert ".longspan-lock" in hidden(tmp_path / "run")
    succeeds(keys)
    assert not hidden(tmp_path / "run")


def copy_of(model, folder, **files):
    shutil.copytree(model, folder)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    return folder


def test_a_second_training_into_a_folder(settings, models, tmp_path):
    """It leaves nothing of the first one's model, and everything of the user's."""
    one = copy_of(models["llama"], tmp_path / "one", special_tokens_map__json='{"pad_token": "<|endoftext|>"}',
                  added_tokens__json="{}", chat_template__jinja=CHATML)
    two = copy_of(models["llama"], tmp_path / "two")
    for name in ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
        (two / name).unlink(missing_ok=True)
    config = json.loads((two / "tokenizer_config.json").read_text())
    (two / "tokenizer_config.json").write_text(json.dumps(config | dict(chat_template=CHATML)))
    output = succeeds(settings(model=one)).output_dir
    assert {"special_tokens_map.json", "added_tokens.json", "chat_template.jinja"} <= {p.name for p in output.iterdir()}
    mine = {"notes.txt": "mine", ".tmp/thesis": "years", ".checkpoint-x.partial/thesis": "years", "merges.txt": "mine"}
    for name, text in mine.items():
        (output / name).parent.mkdir(exist_ok=True)
        (output / name).write_text(text)
    (output / "vocab.json").symlink_to("notes.txt")
    (output / ".model.partial").mkdir()  # as a killed run leaves it
    (output / ".model.partial" / "config.json").write_text("{")
    again = settings(model=two, overwrite_output_dir=True)
    succeeds(again)
    for name, text in mine.items():
        assert (output / name).read_text() == text
    assert (output / "vocab.json").is_symlink()
    left = {path.name for path in output.iterdir()} & COPIED
    alone = succeeds(settings("alone", model=two)).output_dir
    assert left - {"merges.txt", "vocab.json"} == {path.name for path in alone.iterdir()} & COPIED
    assert hidden(output) == [".checkpoint-x.partial", ".tmp"]
    # What is in the way is named, not removed.
    (output / ".model.partial").mkdir()
    (output / ".model.partial" / "thesis").write_text("years")
    refused = Running(again).wait()
    assert refused.status == 1 and ".model.partial is in the way" in refused.text and "thesis" in refused.text, refused.text
    assert (output / ".model.partial" / "thesis").read_text() == "years"


def test_links_do_not_publish_what_they_point_to(settings, models, tmp_path):
    secret = tmp_path / "id_rsa"
    secret.write_text('{"secret": "4711"}')
    secret.chmod(0o600)
    model = copy_of(models["llama"], tmp_path / "model")
    link = model / "generation_config.json"
    link.unlink(missing_ok=True)
    link.symlink_to(secret)
    told = f"{link} is a link to {secret.resolve()}, outside of its folder"
    run = Running(settings(model=model)).wait()
    assert run.status == 1 and told in run.text and not (tmp_path / "run").exists(), run.text
    export = tmp_path / "export.json"
    export.write_text(json.dumps(dict(model_name_or_path=str(model), export_dir=str(tmp_path / "merged"))))
    for command in (["export", export], ["init", "--config", models["llama"], "--tokenizer", model, "--output", tmp_path / "merged"],
                    ["generate", tmp_path / "prompts.txt", model]):
        (tmp_path / "prompts.txt").write_text("a\n")
        done = subprocess.run([PROGRAM, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and told in done.stderr and not (tmp_path / "merged").exists(), done.stderr


def test_hugging_faces_cache(settings, models, tmp_path):
    """Its snapshots are links to blobs beside them. Files come out with the rights that this process gives to new ones."""
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "1a2b3c"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(pathlib.Path(models["llama"]).iterdir()):
        blob = repository / "blobs" / f"{number:040x}"
        shutil.copy(path, blob)
        blob.chmod(0o666)
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    (tmp_path / "model").symlink_to(snapshot)
    output = succeeds(settings(model=tmp_path / "model", save_strategy="epoch"), preexec=lambda: os.umask(0o077)).output_dir
    assert (output / "tokenizer.json").exists() and (output / "checkpoint-1" / "tokenizer.json").exists()
    for path in [output, *output.rglob("*")]:
        assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_table_of_a_checkpoint_covers_itself(settings):
    keys = settings(save_strategy="steps", save_steps=1) | dict(max_steps=3)
    output = succeeds(keys).output_dir
    table = output / "checkpoint-3" / "checksums.json"
    changed = json.loads(table.read_text())
    del changed["files"]["trainer_log.jsonl"]
    table.write_text(json.dumps(changed))
    # As an older version has written it.
    table = output / "checkpoint-2" / "checksums.json"
    state = table.with_name("training_state.json")
    old = json.loads(state.read_text())
    del old["checksums_cover_themselves"]
    state.write_text(json.dumps(old))
    files = json.loads(table.read_text())["files"]
    del files["training_state.json"]
    table.write_text(json.dumps(dict(files=files)))
    # While another run reads it, it is not removed.
    with open(table) as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        again = succeeds(keys | dict(save_total_limit=1))
    assert "checkpoint-3 is broken: checksums.json: it is not what was written" in again.text, again.text
    assert f"Going on from {output}/checkpoint-2, step 2 of 3" in again.text, again.text
    assert sorted(path.name for path in output.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-3"]
    succeeds(keys | dict(save_total_limit=1, max_steps=4))
    assert [path.name for path in output.glob("checkpoint-*")] == ["checkpoint-4"]
