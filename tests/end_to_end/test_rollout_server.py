"""Rollouts of a server, and rewards of a service: good answers, each fault, resumed runs, batches ahead."""

import json
import signal
import sys
import time

import pytest
from conftest import Running, free_port, run_to_end
from faults import wait_for
from rollout_server import (
    GENERATIONS, GROUPS, STEPS, RewardService, Server, batch, batch_file, refused, settings_for, weights,
)


@pytest.mark.parametrize("kind, ranks", [("vllm", 1), ("vllm", 2), ("sglang", 1), ("llama_cpp", 1), ("openai", 1)])
def test_each_kind_of_server(kind, ranks, models, tmp_path):
    with Server(kind) as server:
        named = {} if kind == "sglang" else dict(rollout_model="base")
        if kind == "llama_cpp":
            named |= dict(importance_sampling_correction="none", rollout_temperature=0.7)
        run = run_to_end(settings_for(models, tmp_path, "run", server, rollout_server=kind, num_iterations=2,
                                      rollout_concurrency=2, sequence_parallel_size=ranks, **named), ranks)
        assert len(server.asked) == (2 * GROUPS if kind != "llama_cpp" else 2 * GROUPS * GENERATIONS)
        assert server.most_open <= 2
        assert kind == "sglang" or all(body["model"] == "base" for body in server.asked)
    for number in range(2):
        rows = batch(run, number)
        assert len(rows) == GROUPS * GENERATIONS and len({row["group"] for row in rows}) == GROUPS
        for row in rows:
            answer = [token for token, trained in zip(row["token_ids"], row["mask"]) if trained]
            assert (2 in answer) == (not row.get("truncated", False)) and answer.count(2) <= 1
            assert "logprobs" not in row if kind == "llama_cpp" else len(row["logprobs"]) == len(answer)
            assert row["reward"] == pytest.approx(-len(answer) / 8)
            assert row["policy_version"] == 0
    assert len(run.logged("sampling/logp_difference")) == (0 if kind == "llama_cpp" else STEPS)


def test_faults_that_pass_change_nothing(models, tmp_path):
    """Answers that are missing are asked for again; a server that is slow, busy or not there yet is waited for."""
    with Server() as server:
        plain = run_to_end(settings_for(models, tmp_path, "plain", server))
    with Server(status=lambda number: {1: 500, 2: 429, 5: 503}.get(number), seconds=lambda number: 0.5 * (number == 3)) as server:
        busy = run_to_end(settings_for(models, tmp_path, "busy", server))
    assert weights(busy) == weights(plain)
    assert "Waiting for the server " in busy.text and "(status 500)" in busy.text

    port = free_port()
    late = Running(settings_for(models, tmp_path, "late", f"http://127.0.0.1:{port}/", rollout_timeout=60))
    wait_for(late, f"Waiting for the server http://127.0.0.1:{port} (connection refused).")
    with Server(port=port):
        late = late.wait()
    assert late.status == 0, late.text
    assert weights(late) == weights(plain)

    with Server(change=lambda number, choices: choices[:1]) as server:
        partial = run_to_end(settings_for(models, tmp_path, "partial", server))
        assert [body["n"] for body in server.asked[:2 * GENERATIONS]] == [3, 3, 2, 2, 1, 1]
        assert len({(str(body["prompt"]), body["seed"]) for body in server.asked}) == len(server.asked)
    assert len(batch(partial, 0)) == GROUPS * GENERATIONS

    def breaks_off(number, choices):
        return [dict(choice, finish_reason="abort") for choice in choices] if number == 1 else choices

    with Server(change=breaks_off) as server:
        broken_off = run_to_end(settings_for(models, tmp_path, "broken_off", server))
    assert weights(broken_off) == weights(plain)


def with_fields(**fields):
    return lambda number, choices: [choice | fields for choice in choices] if number >= 2 else choices


@pytest.mark.parametrize("change, sentence", [
    (lambda number, choices: "<html>no</html>", "prompt 1 of 2: the answer is no JSON: <html>no</html>"),
    (lambda number, choices: json.dumps(dict(error="none")), "the response has no list of 1 to 3 answers"),
    (lambda number, choices: choices * 2, "the response has no list of 1 to 3 answers"),
    (with_fields(prompt_token_ids=[5, 6]), "the server read another prompt than the sent one: [5,6]"),
    (with_fields(token_ids=[10 ** 6], logprobs=dict(token_logprobs=[-1])), "1000000 is no token id"),
    (with_fields(token_ids=None), "the answer has no token ids"),
    (with_fields(logprobs=dict(token_logprobs=[-1])), "and 1 log-probability"),
    (with_fields(token_ids=[2, 2], logprobs=dict(token_logprobs=[-1, -1])), "goes on after its token 2"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_each_fault_of_an_answer(change, sentence, models, tmp_path):
    with Server(change=change) as server:
        run = refused(settings_for(models, tmp_path, "run", server, rollout_concurrency=1), sentence, ranks=2)
        assert f"{server.url}/v1/completions, prompt " in run.text


def test_ends_that_are_not_known(models, tmp_path):
    """The last token of a program that returns the end has ended the answer. Of any other, it must be an end of this run."""
    change = with_fields(token_ids=[11, 12], logprobs=dict(token_logprobs=[-1, -1]), finish_reason="stop")
    with Server(change=change) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server))
    assert all(row["token_ids"][-2:] == [11, 12] and "truncated" not in row for row in batch(run, 1))
    with Server("openai", change=change) as server:
        refused(settings_for(models, tmp_path, "openai", server, rollout_server="openai"), "is no token that ends an answer")


def test_refused_requests_and_dead_servers(models, tmp_path):
    with Server(status=lambda number: 404) as server:
        refused(settings_for(models, tmp_path, "404", server), f"{server.url}/v1/completions: status 404, busy", ranks=2)
    url = f"http://127.0.0.1:{free_port()}"
    begin = time.monotonic()
    refused(settings_for(models, tmp_path, "dead", url, rollout_timeout=2),
            f"{url}: connection refused, for 2 s (rollout_timeout). Start the server", ranks=2)
    assert time.monotonic() - begin >= 2
    with Server(seconds=lambda number: 5) as server:
        refused(settings_for(models, tmp_path, "slow", server, rollout_timeout=1), "no whole answer within 1 s, for 1 s")
    refused(settings_for(models, tmp_path, "https", "https://127.0.0.1:1"), "https is not supported")


@pytest.mark.parametrize("ranks", [1, 2])
def test_api_key(ranks, models, tmp_path, monkeypatch):
    """Requests for answers and of new weights have the key. No file of the run and no message has it."""
    secret = "s3cret-key"
    keys = dict(sequence_parallel_size=ranks, finetuning_type="lora", rollout_update="lora", max_steps=1,
                rollout_api_key_env="SERVER_KEY")
    with Server(api_key=secret) as server:
        settings = settings_for(models, tmp_path, "run", server, **keys)
        without = {key: value for key, value in settings.items() if key != "rollout_api_key_env"}
        refused(without, "status 401, ", ranks)
        refused(settings, "rollout_api_key_env: the environment variable SERVER_KEY is not set; set it to", ranks)
        monkeypatch.setenv("SERVER_KEY", "a b")
        refused(settings, "SERVER_KEY has a character that a header cannot have", ranks)
        monkeypatch.setenv("SERVER_KEY", "wr0ng-key")
        wrong = refused(settings, "Unauthorized: Bearer ...", ranks)
        assert "wr0ng-key" not in wrong.text and "in rollout_api_key_env" in wrong.text
        monkeypatch.setenv("SERVER_KEY", secret)
        run = Running(settings, ranks).wait()
        assert run.status == 0, run.text
        assert len(server.asked) == GROUPS and server.told[-1][0] == "/v1/load_lora_adapter"
    assert secret not in run.text
    files = [path for path in run.output_dir.rglob("*") if path.is_file()]
    assert files and not any(secret.encode() in path.read_bytes() for path in files)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stopped_while_it_waits(ranks, models, tmp_path):
    """A stop saves a checkpoint, and the resumed run is the undisturbed one to the bit, by its files."""
    keys = dict(sequence_parallel_size=ranks)
    with Server() as server:
        plain = run_to_end(settings_for(models, tmp_path, "plain", server, **keys), ranks)
    with Server(status=lambda number: 503 if number >= 2 * GROUPS else None) as server:
        waiting = Running(settings_for(models, tmp_path, "run", server, **keys), ranks)
        wait_for(waiting, "(status 503)")
        for rank in waiting.ranks:
            rank.send_signal(signal.SIGINT)
        waiting.wait()
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    with Server() as server:
        resumed = run_to_end(settings_for(models, tmp_path, "run", server, **keys, resume_from_checkpoint=True), ranks)
        assert len(server.asked) == 2 * GROUPS
    assert weights(resumed) == weights(plain)


def test_a_resumed_run_reads_its_files(models, tmp_path):
    with Server() as server:
        keys = dict(num_iterations=2, max_steps=6)
        whole = run_to_end(settings_for(models, tmp_path, "run", server, **keys))
        bytes_of_whole = weights(whole)
        (whole.output_dir / "model.safetensors").unlink()
        asked = len(server.asked)
        # The first update on the second batch is done, the second is not.
        resume = dict(keys, resume_from_checkpoint=str(whole.output_dir / "checkpoint-3"))
        resumed = run_to_end(settings_for(models, tmp_path, "run", server, **resume))
        assert len(server.asked) == asked
        for number in (1, 2):
            file = whole.output_dir / "rollouts" / f"batch-{number:06}.jsonl"
            assert resumed.text.count(f"Rollouts of batch {number} are read from {file}.") == 1
        assert weights(resumed) == bytes_of_whole

        refuse = lambda sentence: refused(settings_for(models, tmp_path, "run", server, **resume), sentence)  # noqa: E731
        file = whole.output_dir / "rollouts" / "batch-000001.jsonl"
        text = file.read_text()
        file.unlink()
        refuse("batch-000001.jsonl: the file is missing, and the checkpoint was saved between updates on the file's rollouts")
        file.write_text("".join(json.dumps(json.loads(row) | dict(reward=1)) + "\n" for row in text.splitlines()))
        refuse("differ from the rollouts of the run that saved the checkpoint")
        file.write_text("".join(text.splitlines(True)[1:]))
        refuse(f"does not have {GROUPS} groups of {GENERATIONS} rollouts each")

        anew = run_to_end(settings_for(models, tmp_path, "run", server, **keys, overwrite_output_dir=True,
                                       resume_from_checkpoint=False))
        kept = whole.output_dir / "rollouts.kept"
        assert anew.text.count(f"Rollouts of an earlier run are kept in {kept}.") == 1
        assert len(list(kept.glob("batch-*"))) == 3 and len(server.asked) == 2 * asked
    assert weights(anew) == bytes_of_whole


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_ahead(ranks, models, tmp_path):
    """The server samples while the model trains: requests for the next batch come before the model of the last one is saved."""
    keys = dict(sequence_parallel_size=ranks, async_steps=2, rollout_update="command", rollout_update_command="true")
    with Server(seconds=lambda number: 0.1) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server, **keys), ranks)
        assert len(server.asked) == STEPS * GROUPS
        assert [batch(run, number)[0]["policy_version"] for number in range(STEPS)] == [0, 0, 0, 1]
        whole = weights(run)
        (run.output_dir / "model.safetensors").unlink()
        resume = dict(keys, resume_from_checkpoint=str(run.output_dir / "checkpoint-1"))
        told = len(server.told)
        resumed = run_to_end(settings_for(models, tmp_path, "run", server, **resume), ranks)
        assert len(server.asked) == STEPS * GROUPS and len(server.told) == told
        assert weights(resumed) == whole
        # One batch is sampled anew, with the weights of the batch that it is sampled beside.
        (run.output_dir / "rollouts" / "batch-000003.jsonl").unlink()
        (run.output_dir / "model.safetensors").unlink()
        resumed = run_to_end(settings_for(models, tmp_path, "run", server, **resume), ranks)
        assert len(server.asked) == (STEPS + 1) * GROUPS
        assert weights(resumed) == whole


def test_a_fault_ahead_ends_the_run(models, tmp_path):
    def change(number, choices):
        return choices if number < 2 * GROUPS else "no"

    with Server(change=change) as server:
        run = refused(settings_for(models, tmp_path, "run", server, async_steps=1), "the answer is no JSON: no", ranks=2)
    assert (run.output_dir / "checkpoint-1").is_dir()


@pytest.mark.parametrize("keys, sentence", [
    (dict(rollout_url=""), "rollout_url is missing"),
    (dict(rollout_update=None), "rollout_update is missing"),
    (dict(rollout_update="disk"), "rollout_update: disk is for a server that can load weights from a folder (sglang, transformers)"),
    (dict(rollout_update="lora"), "rollout_update: lora is for finetuning_type: lora"),
    (dict(rollout_update="command"), "rollout_update: command wants rollout_update_command"),
    (dict(rollout_server="sglang", rollout_model="base"), "rollout_model: base has no effect with a rollout_server whose"),
    (dict(rollout_server="llama_cpp"), "set importance_sampling_correction: none"),
    (dict(rollout="self", rollout_url="", rollout_update=None, async_steps=1), "async_steps: 1 has no effect without rollout: server"),
    (dict(rollout="self", rollout_update=None), "has no effect without rollout: server"),
    (dict(rollout_api_key_env="sk-1"), "give the name of a variable, not the API key itself"),
    (dict(max_staleness=1), "rollouts become older with each update"),
    (dict(max_staleness=1, async_steps=1, num_iterations=2, rollout_update="command", rollout_update_command="true"),
     "give at least 2"),
])
def test_keys_that_do_not_fit(keys, sentence, models, tmp_path):
    settings = settings_for(models, tmp_path, "run", "http://127.0.0.1:1", **keys)
    refused({key: value for key, value in settings.items() if value is not None}, sentence)


def test_rewards_of_a_service(models, tmp_path):
    with RewardService() as judge, Server() as server:
        keys = dict(rewards="http,format", reward_url=judge.url, reward_format="(?s).{0,9}", reward_weights="1,2", max_steps=2)
        run = run_to_end(settings_for(models, tmp_path, "run", server, **keys))
        for row, judged in zip(batch(run, 0), judge.bodies[0]):
            short = float(len(judged["completion"]) < 10)
            assert row["rewards"] == {"http": len(judged["completion"]) / 10, "format": short}
            assert row["reward"] == pytest.approx(row["rewards"]["http"] + 2 * short)
            assert judged["solution"] and "What is" in judged["prompt"]
        asked = len(server.asked)  # each start fails before the first checkpoint, and the next one uses its answers
        for reply, sentence in [(dict(text="[1]"), "the reward function http returned 1 reward for 6 answers"),
                                (dict(text="no"), f"reward_url {judge.url}"),
                                (dict(status=503, text="x"), f"reward_url {judge.url}: status 503, x (reward_timeout: 60 s)")]:
            judge.replies = reply
            refused(settings_for(models, tmp_path, "late", server, **keys), sentence)
            assert len(server.asked) == asked + GROUPS
        judge.replies = {}
        late = run_to_end(settings_for(models, tmp_path, "late", server, **keys))
        assert len(server.asked) == asked + 2 * GROUPS and "ended before its first checkpoint" in late.text
        assert weights(late) == weights(run)
        refused(settings_for(models, tmp_path, "refused", server, **keys | dict(reward_format="(")), "reward_format: ")
        # The reward of the second batch fails: its answers are kept, and a resumed run asks for their rewards alone.
        judge.bodies.clear()
        judge.replies = dict(after=1)
        settings, asked = settings_for(models, tmp_path, "goes_on", server, **keys), len(server.asked)
        refused(settings, f"reward_url {judge.url}: status 503")
        assert len(server.asked) == asked + 2 * GROUPS
        resumed = run_to_end(settings | dict(resume_from_checkpoint=True))
        assert len(server.asked) == asked + 2 * GROUPS and len(judge.bodies) == 3
        assert all("reward" in row for row in batch(resumed, 1))
        assert weights(resumed) == weights(run)


def test_an_environment_beside_a_reward_that_fails(models, tmp_path):
    """Answers that wait for their rewards have the environment's already. A run that goes on asks for the other ones."""
    (tmp_path / "environment.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin: print(json.dumps(dict(reward=2 + len(json.loads(line)['answer']))), flush=True)\n")
    keys = dict(rewards="environment,http", reward_weights="2,1", max_steps=1,
                environment_command=f"{sys.executable} {tmp_path / 'environment.py'}")
    with RewardService() as judge, Server() as server:
        settings = settings_for(models, tmp_path, "run", server, reward_url=judge.url, **keys)
        judge.replies = dict(after=0)
        failed = refused(settings, f"reward_url {judge.url}: status 503")
        assert all(set(row["rewards"]) == {"environment"} and "reward" not in row for row in batch(failed, 0))
        goes_on = run_to_end(settings)
        assert len(server.asked) == GROUPS and len(judge.bodies) == 2
    for row, judged in zip(batch(goes_on, 0), judge.bodies[1]):
        size = len(judged["completion"])
        assert row["rewards"] == {"environment": 2 + size, "http": size / 10}
        assert row["reward"] == pytest.approx(2 * (2 + size) + size / 10)


def test_rollouts_of_another_run_are_kept(models, tmp_path):
    with RewardService() as judge, Server() as server:
        settings = settings_for(models, tmp_path, "run", server, rewards="http", reward_url=judge.url, max_steps=1)
        judge.replies = dict(status=503, text="x")
        for number, change in enumerate([dict(), dict(seed=1), dict(overwrite_output_dir=True)]):
            refused(settings | change, "status 503")
            assert len(server.asked) == (number + 1) * GROUPS
        assert {path.name for path in (tmp_path / "run").glob("rollouts.kept*")} == {"rollouts.kept", "rollouts.kept-2"}
        # Answers of another question get no reward.
        rows = batch_file(tmp_path / "run", 0).read_text().splitlines()
        batch_file(tmp_path / "run", 0).write_text("\n".join(rows[GENERATIONS:] + rows[:GENERATIONS]) + "\n")
        refused(settings, "rollout 1 answers another question than the data set has in this place")
