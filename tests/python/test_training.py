"""longspan.train beside `longspan train`: the same files, events for callbacks, and ways to end."""

import json
import os
import pathlib
import signal

import pytest
from conftest import run_processes, settings_of
from faults import children_of
from ranks import BUILT  # noqa: F401  # puts the package on the path

STEPS = dict(max_steps=4, save_strategy="steps", save_steps=2, eval_dataset="held_out", eval_strategy="steps",
             eval_steps=2, gradient_accumulation_steps=1)
ENDLESS = dict(max_steps=100000, save_strategy="no", gradient_accumulation_steps=1, logging_steps=1)
WORKERS = dict(nproc_per_node=2, sequence_parallel_size=2)


@pytest.fixture
def settings(models, data, tmp_path):
    return lambda name, **keys: settings_of(models["qwen2"], data, tmp_path / name, **keys)


def recorder():
    import longspan

    class Recorder(longspan.Callback):
        def __init__(self):
            self.events = []

        def on_message(self, text):
            self.events.append(("message", text))

        def on_step(self, progress):
            self.events.append(("step", progress.step))

        def on_log(self, entry):
            self.events.append(("log", entry))

        def on_evaluation(self, entry):
            self.events.append(("evaluation", entry))

        def on_checkpoint(self, folder, step):
            self.events.append(("checkpoint", (folder, step)))

        def on_save(self, folder):
            self.events.append(("save", folder))

        def on_memory(self, peaks):
            self.events.append(("memory", len(peaks)))

        def of(self, kind):
            return [value for name, value in self.events if name == kind]

    return Recorder()


@pytest.fixture(params=[1, 2])
def processes(request):
    return {} if request.param == 1 else WORKERS


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_a_run_is_that_of_the_program(settings, processes, capfd):
    import longspan

    program = run_processes(settings("program", **STEPS, **processes))
    ours, heard = settings("ours", **STEPS, **processes), recorder()
    result = longspan.train(ours, callbacks=[heard])
    folder = program.output_dir.parent / "ours"
    assert weights(folder) == weights(program.output_dir)
    assert weights(folder / "checkpoint-2") == weights(program.output_dir / "checkpoint-2")
    assert (result.end, result.step, result.total_steps, result.saved_in) == ("done", 4, 4, str(folder))
    assert heard.of("step") == [0, 1, 2, 3, 4]
    assert heard.of("checkpoint") == [(str(folder / f"checkpoint-{step}"), step) for step in (2, 4)]
    assert heard.of("save") == [str(folder)] and heard.of("memory") == [len(processes) or 1]
    assert [entry["loss"] for entry in heard.of("log")[:-1]] == program.logged("loss")
    assert [entry["eval_loss"] for entry in heard.of("evaluation")] == program.logged("eval_loss")
    assert heard.of("log")[-1]["train_loss"] == result.loss
    out = capfd.readouterr()
    assert f"Saved {folder}/checkpoint-2" in out.out and str(heard.of("log")[0]) in out.out
    assert "4/4" in out.err  # the bar


def calls(at_step, action):
    import longspan

    class Calls(longspan.Callback):
        def on_step(self, progress):
            if progress.step == at_step:
                action()

    return Calls()


def checkpoints(settings):
    return sorted(name for name in os.listdir(settings["output_dir"]) if name.startswith("checkpoint-"))


def test_ctrl_c_saves(settings, processes):
    import longspan

    keys = ENDLESS | processes | (dict(max_steps=100000) if processes else dict(max_steps=6))
    stopped, before = settings("stopped", **keys), signal.getsignal(signal.SIGINT)
    interrupts = calls(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        longspan.train(stopped, callbacks=[interrupts], progress=False)
    assert signal.getsignal(signal.SIGINT) is before
    (checkpoint,) = checkpoints(stopped)
    assert 2 <= int(checkpoint.split("-")[1]) < 1000
    assert not os.path.exists(f"{stopped['output_dir']}/model.safetensors")
    if not processes:  # the same call goes on
        whole = settings("whole", **keys)
        heard = recorder()
        assert longspan.train(stopped, callbacks=[heard], progress=False).step == 6
        assert heard.of("step")[0] == int(checkpoint.split("-")[1])
        assert longspan.train(whole, progress=False).end == "done"
        assert weights(pathlib.Path(whole["output_dir"])) == weights(pathlib.Path(stopped["output_dir"]))


def test_callbacks_end_a_run(settings):
    import longspan

    def stops():
        raise longspan.StopTraining

    stopped = settings("stopped", **ENDLESS)
    result = longspan.train(stopped, callbacks=[calls(2, stops)], progress=False)
    assert result.end == "stopped" and checkpoints(stopped) == [f"checkpoint-{result.step}"] and 2 <= result.step <= 3

    mine, failed = KeyError("mine"), settings("failed", **ENDLESS)

    def fails():
        raise mine

    with pytest.raises(KeyError) as caught:
        longspan.train(failed, callbacks=[calls(1, fails)], progress=False)
    assert caught.value is mine and len(checkpoints(failed)) == 1


def is_rank(pid, rank):
    """Whether a child is this rank of longspan.train(); a process of the tests has other children too."""
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return b"longspan._worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes() and b"RANK=%d" % rank in environment


def test_a_lost_worker(settings):
    import longspan

    def kills():
        worker, = [pid for pid in children_of(os.getpid()) if is_rank(pid, 1)]
        os.kill(worker, signal.SIGKILL)

    with pytest.raises(longspan.LongspanError, match="rank 1 ended with status -9"):
        longspan.train(settings("run", **ENDLESS, **WORKERS), callbacks=[calls(2, kills)], progress=False)


def test_mistakes(settings, monkeypatch):
    import longspan

    def refused(text, function, *arguments, **keys):
        with pytest.raises(longspan.UsageError) as caught:
            function(*arguments, **keys)
        assert text in str(caught.value), caught.value

    refused("config: unknown key learning_rat", longspan.train, settings("a", learning_rat=1))
    refused("nothing", longspan.train, settings("b", dataset="nothing"), progress=False)
    # Known to the workers alone.
    refused("nothing", longspan.train, settings("c", dataset="nothing", **WORKERS), progress=False)
    refused("command line: learning_rate", longspan.train, settings("d"), overrides=dict(learning_rate="fast"))
    refused("nproc_per_node", longspan.plan, settings("e", nproc_per_node=0))
    monkeypatch.setenv("NNODES", "2")
    refused("start the program by torchrun", longspan.train, settings("f", **WORKERS))


def test_plan(settings, models, tmp_path):
    import longspan

    alone = longspan.plan(dict(model_name_or_path=models["qwen2"], device="cpu", cutoff_len=4096))  # 8 rows at a time
    assert (alone.method, alone.world_size, alone.row_tokens) == ("local", 1, 8 * 4096)
    assert sum(line.device_bytes for line in alone.memory) == alone.device_bytes > 0
    assert {"Parameters", "Gradients", "Optimizer"} <= {line.name for line in alone.memory}
    assert "Parameters" in str(alone) and "CPU" in str(alone)
    shared = longspan.plan(settings("run", cutoff_len=4096, **WORKERS))
    assert shared.world_size == shared.sequence_parallel_size == 2 and shared.data_parallel_size == 1
    assert shared.method != "local" and shared.reason and shared.row_tokens == 4096
    config = tmp_path / "config.json"
    config.write_text(json.dumps(settings("run", cutoff_len=2048)))
    longer = longspan.plan(config, overrides=["cutoff_len=8192"], world_size=2)
    assert longer.data_parallel_size == 2 and longer.row_tokens == 8192
    with pytest.raises(longspan.UsageError, match="3"):
        longspan.plan(settings("run", sequence_parallel_size=3, sequence_parallel_mode="ulysses"), world_size=3)
