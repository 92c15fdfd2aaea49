"""`longspan bench attention`: table, file, picture; counted bytes are those of the formula."""

import json
import os
import struct
import subprocess

import pytest
from conftest import PROGRAM, free_port


def bench(output, *words, ranks=2, repeats=2):
    """As a user types it: ranks are started by torchrun."""
    command = [PROGRAM, "bench", "attention", "--device", "cpu", "--ranks", str(ranks), "--threads", "1",
               "--repeats", str(repeats), "--head-dim", "16", "--output", output, *map(str, words)]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    return subprocess.run(command, text=True, capture_output=True, env=environment, timeout=120)


def two_ranks(*words):
    """Both of them, started side by side as by a launcher."""
    place = dict(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    return [subprocess.Popen(
        [PROGRAM, "bench", "attention", "--device", "cpu", *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | place | dict(RANK=str(rank), LOCAL_RANK=str(rank))) for rank in (0, 1)]


def joined(output, *words, repeats=2):
    """As bench(), without torchrun; what rank 0 says."""
    ranks = two_ranks("--threads", "1", "--repeats", repeats, "--head-dim", "16", "--output", output, *words)
    texts = [rank.communicate(timeout=120) for rank in ranks]
    assert ranks[1].returncode == ranks[0].returncode, texts
    return subprocess.CompletedProcess(words, ranks[0].returncode, *texts[0])


def result_of(finished, output):
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads((output / "attention_bench.json").read_text())


def check(result, largest_error):
    for method in result["methods"]:
        assert method["sent_bytes"] == method["formula_bytes"], method["name"]
        assert max(method["relative_errors"].values()) < largest_error, method["name"]
        assert len(method["forward_seconds_of_repeats"]) == 2
        assert method["pass_seconds"] > 0 and method["tokens_per_second"] > 0
        assert method["load_by_pairs"] >= 1 and method["load_by_kernel_time"] >= 1


def test_every_method_has_a_row(tmp_path):
    finished = bench(tmp_path, "--documents", "301,40,171")
    result = result_of(finished, tmp_path)
    names = [method["name"] for method in result["methods"]]
    modes = {method["mode"] for method in result["methods"]}
    assert names[0] == "undistributed"
    assert {"ulysses", "zigzag-ring", "balanced-ulysses", "ring"} <= modes
    # fp32 rounds at 6e-8; gradients of some hundred keys gather some tens of that.
    check(result, 1e-5)
    # Queries and keys of 8 and 2 heads go out and results come back, half of them to the other rank.
    # Documents are not padded for Ulysses but at the row's end: 512 tokens.
    ulysses = next(m for m in result["methods"] if m["mode"] == "ulysses")
    assert ulysses["padded_tokens"] == 512
    assert ulysses["sent_bytes"]["forward"] == 512 * (2 * 8 + 2 * 2) * 16 * 4 // 2
    # Undistributed attention does all pairs; the ranks share them, padding is attended as well.
    pairs = 8 * sum(n * (n + 1) // 2 for n in (301, 40, 171))
    assert result["methods"][0]["attended_pairs_of_ranks"] == [pairs]
    balanced = next(m for m in result["methods"] if m["mode"] == "balanced-ulysses")
    assert sum(balanced["attended_pairs_of_ranks"]) == pairs
    for method in result["methods"]:
        assert method["name"] in finished.stdout
        assert all(0 <= b <= p for b, p in zip(method["buffer_bytes_of_ranks"],
                                               method["peak_bytes_of_ranks"]))
    assert "those of the formula" in finished.stdout
    picture = (tmp_path / "attention_bench.png").read_bytes()
    assert picture[1:4] == b"PNG"
    assert struct.unpack(">I", picture[16:20]) == (1700,)


def test_layer_in_bf16_with_checkpointing_and_waves(tmp_path):
    finished = joined(tmp_path, "--tokens", 256, "--layer", "--dtype", "bf16", "--checkpointing",
                     "--waves", "1,2", "--methods", "ulysses", "zigzag-ring")
    result = result_of(finished, tmp_path)
    names = [method["name"] for method in result["methods"]]
    assert [n.split(",")[0] for n in names] == ["undistributed", "ulysses", "ulysses", "zigzag-ring"]
    assert {"h", "q_proj", "k_proj", "v_proj", "o_proj"} <= set(
        result["methods"][0]["relative_errors"])
    check(result, 3e-2)  # bf16 rounds at 4e-3, and every product's input and output is rounded


def test_a_long_row_is_checked_on_a_shorter_one(tmp_path):
    finished = joined(tmp_path, "--tokens", 17000, "--documents", 2, "--warmup", 0, "--methods",
                     "zigzag-ring", "--no-undistributed", repeats=1)
    result = json.loads((tmp_path / "attention_bench.json").read_text())
    assert finished.returncode == 0
    assert [m["mode"] for m in result["methods"]] == ["zigzag-ring"]
    lengths = result["checked_document_lengths"]
    assert len(lengths) == 2 and sum(lengths) < 17000
    assert f"on a shorter row of {sum(lengths):,} tokens" in finished.stdout


def test_alone(tmp_path):
    result = result_of(bench(tmp_path, "--tokens", 64, ranks=1), tmp_path)
    assert [method["name"] for method in result["methods"]] == ["undistributed"]
    check(result, 1e-5)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--methods", "ullysses"], "ullysses is not a mode"),
        (["--methods", "ulysses", "--heads", "7", "--kv-heads", "1"], "Modes that can split them"),
        (["--heads", "6", "--kv-heads", "4"], "must divide"),
        (["--tokens", "100", "--documents", "60,60"], "120 tokens"),
        (["--tokens", "4", "--documents", "5"], "are too few for"),
        (["--dtype", "fp16"], "choose fp32 or bf16"),
        (["--wave", "2"], "nearest is --waves"),
        (["--tokens", "many"], "whole number"),
        (["--layer", "yes"], "takes no value"),
    ],
)
def test_mistakes_are_told_before_anything_starts(words, message, tmp_path):
    finished = bench(tmp_path / "out", *words)
    assert finished.returncode == 1
    assert message in finished.stderr and finished.stderr.startswith("error:")
    assert "checking" not in finished.stdout


def test_waves_that_a_method_refuses_are_left_out_unless_it_was_named(tmp_path):
    words = ["--tokens", 64, "--heads", 8, "--waves", "1,8"]
    finished = joined(tmp_path, *words)
    names = [method["name"] for method in result_of(finished, tmp_path)["methods"]]
    assert {"ulysses", "async-ulysses, heads in 1 wave", "balanced-ulysses, heads in 8 waves",
            "zigzag-ring"} <= set(names)
    assert "ulysses, heads in 8 waves" not in names
    assert "ulysses in 8 waves is left out: sequence_parallel_head_waves: 8" in finished.stdout
    refused = bench(tmp_path, *words, "--methods", "ulysses")
    assert refused.returncode == 1 and "head_waves: 8" in refused.stderr


def test_an_output_that_cannot_be_made_ends_every_rank_of_a_launcher(tmp_path):
    (tmp_path / "file").write_text("")
    ranks = two_ranks("--tokens", "64", "--output", tmp_path / "file/out")
    for process in ranks:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1 and "cannot make the folder" in errors, errors


def test_what_to_measure_must_be_named():
    for words in ([], ["memory"]):
        finished = subprocess.run([PROGRAM, "bench", *words], text=True, capture_output=True)
        assert finished.returncode == 1 and "longspan bench attention" in finished.stderr
