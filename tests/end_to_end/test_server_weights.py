"""New weights for a server of rollouts: saved models, adapters, commands of the user."""

import os
import pathlib
import signal
import time

import pytest
from conftest import Running, run_to_end
from patience import patient_time
from rollout_server import GROUPS, STEPS, Server, batch, files_of, refused, settings_for
from safetensors.torch import load_file


def test_weights_from_the_disk(models, tmp_path):
    loaded = []

    def load(path, body):
        from transformers import AutoModelForCausalLM
        loaded.append(AutoModelForCausalLM.from_pretrained(body["model_path"]).state_dict())
        return 200

    with Server("sglang", tell=load) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server, rollout_server="sglang", rollout_update="disk",
                                      rollout_update_steps=2, max_steps=5, save_total_limit=None))
    folder = run.output_dir / "policy"
    assert [(path, body["model_path"]) for path, body in server.told] == [
        ("/update_weights_from_disk", str(folder / f"version-{version}")) for version in (0, 2, 4)]
    assert files_of(folder) == ["version-4"]
    assert [batch(run, number)[0]["policy_version"] for number in range(5)] == [0, 0, 2, 2, 4]
    for version, state in zip((0, 2, 4), loaded):
        folder = run.output_dir / f"checkpoint-{version}" if version else pathlib.Path(models["qwen2"])
        saved = load_file(folder / "model.safetensors")
        for name, tensor in saved.items():
            assert tensor.equal(state[name]), name


ADAPTERS = {"vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "model"),
            "sglang": ("/load_lora_adapter", "/unload_lora_adapter", "lora_path")}


@pytest.mark.parametrize("kind, ranks, keys", [("vllm", 1, {}), ("vllm", 2, dict(zero_stage=3)), ("sglang", 1, {})])
def test_weights_as_adapters(kind, ranks, keys, models, tmp_path):
    load, unload, field = ADAPTERS[kind]
    present, seen = {}, []

    def tell(path, body):
        if path == load:
            assert body["lora_name"] not in present
            files = files_of(body["lora_path"])
            assert "adapter_model.safetensors" in files and "adapter_config.json" in files
            present[body["lora_name"]] = load_file(f"{body['lora_path']}/adapter_model.safetensors")
        else:
            assert path == unload and present.pop(body["lora_name"])
        return 200

    def change(number, choices):
        seen.append(sorted(present))
        return choices

    with Server(kind, tell=tell, change=change) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server, rollout_server=kind, finetuning_type="lora",
                                      rollout_update="lora", sequence_parallel_size=ranks, **keys), ranks)
        names = [body[field] for body in server.asked]
    assert len(set(names)) == STEPS and all(name in before for name, before in zip(names, seen))
    assert [name.rpartition("-")[2] for name in names[::GROUPS]] == ["0", "1", "2", "3"]
    assert len(present) == 1 and files_of(run.output_dir / "policy") == ["version-3"]
    last = load_file(run.output_dir / "checkpoint-3" / "adapter_model.safetensors")
    for name, tensor in present.popitem()[1].items():
        assert tensor.equal(last[name]), name


def test_an_adapter_that_is_loaded_already(models, tmp_path):
    """The answer to a request is lost, and the server refuses the request when it is repeated."""
    present, told = set(), []

    def tell(path, body):
        name = body["lora_name"]
        if path != "/v1/load_lora_adapter":
            present.remove(name)
            return 200
        told.append(name)
        is_known = name in present
        present.add(name)
        return 400 if is_known else 504

    keys = dict(finetuning_type="lora", rollout_update="lora", max_steps=2)
    with Server(tell=tell, models=lambda: ["base", *present]) as server:
        run_to_end(settings_for(models, tmp_path, "run", server, **keys))
        assert len(told) == 4 and told[::2] == told[1::2]
        assert [body["model"] for body in server.asked[::GROUPS]] == told[::2]
    with Server(tell=tell, models=lambda: [name + "0" for name in present]) as server:  # no adapter of exactly this name
        refused(settings_for(models, tmp_path, "refused", server, **keys), "/v1/load_lora_adapter: status 400")


def test_weights_by_a_command(models, tmp_path):
    log = tmp_path / "log"
    command = f'ls "$LONGSPAN_PATH" > /dev/null && basename "$LONGSPAN_PATH" >> {log} && echo "$LONGSPAN_VERSION" >> {log}'
    with Server() as server:
        run_to_end(settings_for(models, tmp_path, "run", server, rollout_update="command", rollout_update_command=command,
                                max_steps=2))
        assert [path for path, _ in server.told] == ["/pause?mode=keep", "/reset_prefix_cache", "/resume"] * 2
    assert log.read_text().split() == ["version-0", "0", "version-1", "1"]
    with Server() as server:
        refused(settings_for(models, tmp_path, "fails", server, rollout_update="command", rollout_update_command="exit 3"),
                "rollout_update_command exit 3: returned status 3")
        assert [path for path, _ in server.told] == ["/pause?mode=keep", "/resume"]
    with Server(tell=lambda path, body: 404) as server:
        refused(settings_for(models, tmp_path, "404", server, rollout_update="command", rollout_update_command="true"),
                f"{server.url}/pause?mode=keep: status 404")
    pid = tmp_path / "pid"
    with Server() as server:  # a command may leave a process with its streams, such as a new server
        run_to_end(settings_for(models, tmp_path, "leaves", server, rollout_update="command", max_steps=1,
                                rollout_update_command=f"sleep 600 & echo $! > {pid}"))
        assert server.asked
    os.kill(int(pid.read_text()), signal.SIGKILL)
    with Server() as server:  # a server is not left paused
        settings = settings_for(models, tmp_path, "stopped", server, rollout_update="command", rollout_update_command="sleep 60")
        waiting = Running(settings)
        end = patient_time() + 60
        while not server.told:
            assert patient_time() < end and waiting.ranks[0].poll() is None, waiting.text()
            time.sleep(0.05)
        waiting.ranks[0].send_signal(signal.SIGTERM)
        waiting.wait()
        assert [path for path, _ in server.told] == ["/pause?mode=keep", "/resume"] and not server.asked


def test_adapters_of_batches_ahead(models, tmp_path):
    """An adapter stays until the batches are done that ask for it."""
    present = set()

    def tell(path, body):
        (present.add if path == "/v1/load_lora_adapter" else present.remove)(body["lora_name"])
        return 200

    def change(number, choices):
        return choices if server.asked[number]["model"] in present else "no such adapter"

    with Server(tell=tell, change=change, seconds=lambda number: 0.2) as server:
        run_to_end(settings_for(models, tmp_path, "run", server, finetuning_type="lora", rollout_update="lora",
                                async_steps=1, max_steps=6))
        names = [body["model"].rpartition("-")[2] for body in server.asked[::GROUPS]]
    assert names == ["0", "0", "1", "2", "3", "4"]
