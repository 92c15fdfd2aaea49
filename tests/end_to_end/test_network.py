"""`longspan bench network`, the key network_rates, and the measurement of links at the start of a run on several machines."""

import json
import subprocess

import pytest
from conftest import PROGRAM, Running, free_port, settings_of
from faults import Launched, write_config
from machines import machines


@pytest.fixture
def settings(models, data, tmp_path):
    def make(name="run", **changes):
        return settings_of(models["llama"], data, tmp_path / name, max_steps=1) | changes
    return make


def bench(*words):
    return subprocess.run([PROGRAM, "bench", "network", "--device", "cpu", "--mib", "1", "--repeats", "2", *map(str, words)],
                          text=True, capture_output=True, timeout=120)


def test_rates_are_measured_and_taken(tmp_path, settings):
    finished = bench("--ranks", 4, "--ulysses-degree", 2, "--ring-degree", 1, "--fast-domain-size", 2, "--output", tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    measured = json.loads((tmp_path / "network.json").read_text())
    assert [(group["name"], group["groups"], group["ranks"]) for group in measured["groups"]] == [
        ("world", 1, 4), ("data", 2, 2), ("sequence", 2, 2), ("shard", 1, 4)]
    for group in measured["groups"]:
        assert group["name"] in finished.stdout
        assert all(rate > 0 for name, rate in group.items() if name.endswith(("second", "seconds"))), group
    rates = measured["rates"]
    assert rates["inside_bytes_per_second"] > 0 and rates["inside_delay_seconds"] > 0
    assert rates["between_bytes_per_second"] > 0 and measured["ranks_per_machine"] == 2  # fast domains in the place of machines
    keys = dict(sequence_parallel_size=2, network_rates=str(tmp_path / "network.json"))
    text = Running(settings(**keys), 2).wait().text
    assert "by measured rates of the network" in text and "Network between machines" not in text, text


@pytest.mark.parametrize("words, said", [
    (["--ranks", 1], "two processes or more"), (["--ranks", 4, "--ulysses-degree", 3], "must divide the 4 processes"),
    (["--ranks", 4, "--shard-size", 8], "--shard-size 8"), (["--ranks", 4, "--fast-domain-size", 3], "--fast-domain-size 3"),
], ids=["one", "degrees", "shards", "domains"])
def test_impossible_groups(words, said):
    finished = bench(*words)
    assert finished.returncode == 1 and finished.stderr.count("error: ") == 1 and said in finished.stderr, finished.stderr


def test_a_file_of_other_things(tmp_path, settings):
    (tmp_path / "rates.json").write_text("{}")
    ended = Running(settings(network_rates=str(tmp_path / "rates.json"))).wait()
    assert ended.status == 1 and "network_rates: " in ended.text and "longspan bench network" in ended.text, ended.text


def test_a_slow_card_is_named_at_the_start(settings):
    texts = []
    with machines(3) as names:
        for keys in ({}, dict(check_network=False)):
            started = settings(f"run{len(texts)}", **keys)
            config = write_config(started)
            ranks = [["ip", "netns", "exec", name, "env", f"RANK={rank}", "WORLD_SIZE=3", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                      "MASTER_ADDR=10.78.0.1", "MASTER_PORT=29533", PROGRAM, "train", config]
                     for rank, name in enumerate(names)]
            ended = Launched(ranks, started["output_dir"]).wait(timeout=90)
            assert ended.status == 0, ended.text
            texts.append(ended.text)
    checked, unchecked = texts
    assert checked.count("Network between machines: ") == 1, checked
    cards = [line for line in checked.splitlines() if "slow network: rank " in line]
    assert len(cards) == 1 and "warning: slow network: rank 1 (host " in cards[0], checked
    assert ", network interface card0) exchanges 1.0 MiB with other ranks at 0.00" in cards[0], cards
    assert "Network between machines" not in unchecked and "slow network" not in unchecked, unchecked


def test_different_keys_are_one_error(settings):
    """A rank with save_async calls other collectives than a rank without."""
    port = free_port()
    keys = [settings(f"run{rank}", save_async=rank == 1) for rank in (0, 1)]
    ranks = [["env", f"RANK={rank}", "WORLD_SIZE=2", f"LOCAL_RANK={rank}", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
              f"MASTER_PORT={port}", PROGRAM, "train", write_config(own)] for rank, own in enumerate(keys)]
    ended = Launched(ranks, keys[0]["output_dir"]).wait(timeout=90)
    assert ended.statuses == [1, 1], ended.text
    for text in ended.texts:
        assert text.count("error: ") == 1 and "Rank 0 has save_async: false. Rank 1 has save_async: true." in text, text
