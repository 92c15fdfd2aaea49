"""report_to: wandb, trackio, swanlab, mlflow, beside transformers' own callbacks: packages of these names write down each call of
both."""

import json
import os
import subprocess
import sys

import pytest
from conftest import Running, settings_of

SERVICES = ["wandb", "trackio", "swanlab", "mlflow"]
PACKAGE = '''
import json, os, sys, types
NAME = __name__
NONE = {"mlflow.active_run", "swanlab.get_run"}
KNOWN = {"wandb.run": None, "mlflow.__version__": "3.0.0", "trackio.__version__": "1.0.0",
         "mlflow.utils.validation.MAX_PARAM_VAL_LENGTH": 6000, "mlflow.utils.validation.MAX_PARAMS_TAGS_PER_BATCH": 100}

def note(path, args, words):
    with open(os.environ["CALLS"], "a") as file:
        file.write(json.dumps([path, list(args), words], default=str) + "\\n")

class Recorder(types.ModuleType):
    def __getattr__(self, name):
        path = self.__name__ + "." + name
        if path in KNOWN:
            return KNOWN[path]
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(path)
    def __call__(self, *args, **words):
        path = self.__name__
        note(path, args, words)
        if path == os.environ.get("RAISES"):
            raise RuntimeError("the server is gone")
        if path == os.environ.get("DIES"):
            os._exit(3)
        if path == "wandb.init":
            KNOWN["wandb.run"] = Recorder("wandb.run")
        if path == "mlflow.start_run":
            NONE.remove("mlflow.active_run")
        return None if path in NONE else Recorder(path + "()")
    def __setitem__(self, key, value):
        note(self.__name__ + "[]", [key, value], {})

module = Recorder(NAME)
module.__path__, module.__spec__, module.__file__ = [], __spec__, __file__
sys.modules[NAME] = module
if NAME == "wandb":
    for part in ("sdk", "sdk.lib", "sdk.lib.config_util"):
        sys.modules["wandb." + part] = types.ModuleType("wandb." + part)
    sys.modules["wandb.sdk.lib.config_util"].ConfigError = type("ConfigError", (Exception,), {})
'''
THEIRS = '''
import json, sys
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.integrations import integration_utils as kinds
history, output = json.load(open(sys.argv[1])), sys.argv[2]
args = TrainingArguments(output_dir=output, run_name="first", project="mine", report_to=[], use_cpu=True)
for kind in (kinds.WandbCallback, kinds.TrackioCallback, kinds.SwanLabCallback, kinds.MLflowCallback):
    callback, state, control = kind(), TrainerState(), TrainerControl()
    for entry in history:
        state.global_step = entry["step"]
        callback.on_log(args, state, control, logs={key: value for key, value in entry.items() if key != "step"})
    callback.on_train_end(args, state, control)
    del callback
'''
LOGS = {"wandb.run.summary[]", "wandb.log", "wandb.define_metric", "trackio.log", "swanlab.log", "mlflow.log_metrics"}
BEGINS = {"wandb.init", "trackio.init", "swanlab.init", "mlflow.start_run"}


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    for name in SERVICES:
        (folder / f"{name}.py").write_text(PACKAGE)
    return folder


def calls(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def logs(found):
    """Summaries in any order; how mlflow waits is no number."""
    kept = [[path, args, {key: word for key, word in words.items() if key != "synchronous"}]
            for path, args, words in found if path in LOGS]
    return sorted((call for call in kept if call[0] == "wandb.run.summary[]"), key=str), [
        call for call in kept if call[0] != "wandb.run.summary[]"]


def test_calls_are_those_of_transformers(packages, models, data, tmp_path):
    own = dict(PYTHONPATH=str(packages), CALLS=str(tmp_path / "ours.jsonl"))
    keys = dict(report_to=SERVICES, run_name="first", project="mine", max_steps=3, eval_dataset="held_out", do_eval=True)
    run = Running(settings_of(models["llama"], data, tmp_path / "run", **keys), 2, **own).wait()
    assert run.status == 0, run.text
    ours = calls(tmp_path / "ours.jsonl")
    (tmp_path / "history.json").write_text(json.dumps(run.history))
    environment = os.environ | own | dict(CALLS=str(tmp_path / "theirs.jsonl"), WANDB_PROJECT="llamafactory")
    subprocess.run([sys.executable, "-c", THEIRS, tmp_path / "history.json", tmp_path / "output"], env=environment, check=True)
    theirs = calls(tmp_path / "theirs.jsonl")
    # Services take turns in our run, and follow each other in theirs.
    for name in SERVICES:
        mine, others = ([call for call in found if call[0].startswith(name)] for found in (ours, theirs))
        assert logs(mine) == logs(others) and len(logs(mine)[1]) >= 5, name
        begun, wanted = ([words for path, _, words in found if path in BEGINS] for found in (mine, others))
        assert len(begun) == len(wanted) == 1 and begun[0]["name" if name in ("wandb", "trackio") else
                                                         "experiment_name" if name == "swanlab" else "run_name"] == "first"
        assert begun[0].items() <= wanted[0].items(), name
    settings = next(args[0] for path, args, _ in ours if path == "wandb.config.update")
    assert settings["learning_rate"] == "0.001" and settings["stage"] == "sft"
    assert [words for path, _, words in ours if path == "wandb.finish"] == [{"exit_code": 0}]


def test_swanlabs_keys(packages, models, data, tmp_path):
    """As LLaMA-Factory gives them to SwanLab's own callback."""
    own = dict(PYTHONPATH=str(packages), CALLS=str(tmp_path / "calls.jsonl"))
    keys = dict(use_swanlab=True, swanlab_project="p", swanlab_run_name="r", swanlab_mode="local", swanlab_logdir="d", max_steps=1)
    run = Running(settings_of(models["llama"], data, tmp_path / "run", **keys), **own).wait()
    assert run.status == 0, run.text
    assert [words for path, _, words in calls(tmp_path / "calls.jsonl") if path == "swanlab.init"] == [
        dict(project="p", experiment_name="r", mode="local", logdir="d")]


@pytest.mark.parametrize("keys, warning", [
    (dict(RAISES="wandb.log"), "report_to: wandb has failed: the server is gone"),
    (dict(DIES="mlflow.log_metrics"), "report_to: mlflow has failed: its Python process has ended"),
], ids=["raises", "dies"])
def test_a_service_that_fails_ends_no_run(keys, warning, packages, models, data, tmp_path):
    own = dict(PYTHONPATH=str(packages), CALLS=str(tmp_path / "calls.jsonl")) | keys
    settings = settings_of(models["llama"], data, tmp_path / "run", report_to=["wandb", "mlflow"], max_steps=40)
    run = Running(settings, **own).wait()
    assert run.status == 0 and run.text.count(warning) == 1 and len(run.logged("loss")) == 40, run.text
    found = [path for path, _, _ in calls(tmp_path / "calls.jsonl")]
    assert found.count(next(iter(keys.values()))) == 1
    # The other one goes on.
    assert "DIES" in keys or found.count("mlflow.log_metrics") == len(run.history)


def test_a_missing_package_and_a_refusal_end_the_run_before_it_trains(packages, models, data, tmp_path):
    (tmp_path / "trackio").mkdir()  # a folder in the working directory is no package
    settings = settings_of(models["llama"], data, tmp_path / "run", report_to="trackio", max_steps=1)
    run = Running(settings, 2, PYTHONPATH=str(tmp_path)).wait()
    assert run.status != 0 and "pip install trackio" in run.text and "loss" not in run.text, run.text
    run = Running(settings, PYTHONPATH=str(packages), CALLS=os.devnull, RAISES="trackio.init").wait()
    assert run.status != 0 and "trackio: the package cannot begin a run: the server is gone" in run.text, run.text
