"""Small models, a tokenizer and data sets, made at test time, and ways to run `longspan`."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import warm_start  # noqa: E402
from device import DEVICE, choose, device_keys, gpus_for, keys_for, program_of  # noqa: E402
from hybrid_models import HYBRIDS, hybrid  # noqa: E402
from kinds import KINDS  # noqa: E402
from patience import wait_patiently  # noqa: E402
from shared import locked, made_once, replace_text  # noqa: E402
from thinned import thin  # noqa: E402
from thread_ranks import trainings  # noqa: E402
from tolerance import ADAM_EPSILON, TOLERANCE, of_run  # noqa: E402, F401

# Shells start what runs in the background with SIGINT ignored, nohup does so with SIGHUP, and both would be inherited
# by every run that is tested here.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("LONGSPAN_BUILD", ROOT / "build"))
PROGRAM = program_of(BUILD)
# torch's cache of compiled graphs has the same key for all instruction sets: code for the vectors of one, compiled for
# another, leaves elements out.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(BUILD / "inductor" / os.environ.get("ATEN_CPU_CAPABILITY", "chosen"))
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def pytest_configure(config):
    warm_start.install()
    config.addinivalue_line("markers", "long: takes more than ten seconds, and is begun first")
    config.addinivalue_line("markers", "thinned(n): `make test` runs a part of its cases (thinned.py)")
    config.addinivalue_line("markers", "rest: `make test` leaves it out (thinned.py)")


def pytest_collection_modifyitems(config, items):
    """Each of pytest's workers gets a run of neighbours, and takes from others' runs when its own are done: the long ones
    come first in each, so that none is left for the end."""
    choose(config, items)
    thin(config, items)
    num_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    long = [item for item in items if item.get_closest_marker("long")]
    rest = [item for item in items if not item.get_closest_marker("long")]
    left, ordered = len(items), []
    for worker in range(num_workers):
        first = long[worker::num_workers]
        size = left // (num_workers - worker)
        ordered += first + rest[: size - len(first)]
        del rest[: size - len(first)]
        left -= size
    items[:] = ordered + rest


@functools.cache
def words_of_the_program(key):
    """What may be written for a key, in the order of the program's table."""
    said = subprocess.run([PROGRAM, "schema"], capture_output=True, text=True, timeout=30, check=True).stdout
    return json.loads(said)["properties"][key]["anyOf"][0]["enum"]


def modes_of_the_program():
    """The methods of sequence parallelism, in the order of the program's register."""
    first, *modes = words_of_the_program("sequence_parallel_mode")
    assert first == "auto" and modes
    return modes


def words_of_real_text():
    """Words out of the Python standard library's own text."""
    text = pathlib.Path(random.__file__).read_text(encoding="utf-8")
    return re.findall(r"[A-Za-z]+", text)


def write_tokenizer(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        words_of_real_text(),
        trainers.BpeTrainer(
            vocab_size=480,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    return fast


def write_model(folder, kind, dtype="float32", **overrides):
    """A random checkpoint of one of the kinds of kinds.py or hybrid_models.py."""
    import torch

    tokenizer = write_tokenizer(folder)
    shape = dict(
        vocab_size=len(tokenizer),
        num_hidden_layers=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    if kind in HYBRIDS:
        model_class, config = hybrid(kind, shape, overrides)
    else:
        model_class, config = KINDS[kind](shape | overrides)
    torch.manual_seed(0)
    model = model_class(config)
    for name, parameter in model.named_parameters():
        # transformers starts biases at 0 and norms at 1: an error in them would not show.
        if name.endswith(("bias", "sinks")) or "norm" in name:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        elif name.endswith((".gate.weight", ".router.weight")):  # large, so that few choices are close
            parameter.data.mul_(10)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            buffer.add_(0.1 * torch.randn_like(buffer))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


def write_dataset(folder, num_rows=24, seed=0, shortest=10, longest=90, name="chats"):
    """Alpaca rows of real words; adds the entry to dataset_info.json. Returns the rows."""
    words = words_of_real_text()
    rng = random.Random(seed)

    def sentence(least, most):
        begin = rng.randrange(len(words) - most)
        return " ".join(words[begin : begin + rng.randint(least, most)])

    rows = [
        {"instruction": sentence(3, 30), "input": "", "output": sentence(shortest, longest)}
        for _ in range(num_rows)
    ]
    add_dataset(folder, name, rows)
    return rows


def add_dataset(folder, name, rows, **entry):
    """Also while runs read the folder, and other workers add theirs."""
    folder.mkdir(exist_ok=True)
    with locked(folder):
        replace_text(folder / f"{name}.json", json.dumps(rows))
        info = folder / "dataset_info.json"
        known = json.loads(info.read_text()) if info.exists() else {}
        known[name] = {"file_name": f"{name}.json"} | entry
        replace_text(info, json.dumps(known))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.has_passed = report.passed
    return report


@pytest.fixture
def tmp_path(tmp_path, request):
    """pytest's folder, emptied when the test has passed: all together they take more than 10 GB. The folder itself stays, so
    that no other test gets its path, by which caches know files."""
    yield tmp_path
    if getattr(request.node, "has_passed", False):
        with contextlib.suppress(OSError):
            for path in tmp_path.iterdir():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder of all workers, for what none of them changes: see made_once."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "longspan"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def models(place):
    return {kind: str(made_once(place / kind, lambda folder: write_model(folder, folder.name))) for kind in ("qwen2", "llama")}


@pytest.fixture(scope="session")
def data(place):
    def make(folder):
        write_dataset(folder)
        write_dataset(folder, num_rows=5, seed=1, name="held_out")

    return str(made_once(place / "data", make))


class Finished:
    """A run that has ended."""

    def __init__(self, statuses, texts, output_dir):
        self.status, self.statuses = max(statuses, key=abs), statuses
        self.text, self.texts = "\n".join(texts), texts
        self.output_dir = output_dir

    @property
    def history(self):
        state = json.loads((self.output_dir / "trainer_state.json").read_text())
        return state["log_history"]

    def logged(self, key):
        return [entry[key] for entry in self.history if key in entry]


def free_port():
    """One that the system gives to no connection meanwhile: it takes theirs from 32768 on."""
    while True:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port


def write_config(settings):
    """Beside output_dir."""
    output_dir = pathlib.Path(settings["output_dir"])
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    config = output_dir.parent / (output_dir.name + ".yaml")
    config.write_text(json.dumps(settings))  # JSON is YAML
    return config


class Running:
    """`longspan train` on one or several ranks, each a process of its own. `own`: variables of each rank."""

    def __init__(self, settings, num_ranks=1, preexec=None, program=PROGRAM, own=None, **variables):
        config = write_config(settings | keys_for(num_ranks))
        self.output_dir = pathlib.Path(settings["output_dir"])
        environment = dict(os.environ, OMP_NUM_THREADS="1") | gpus_for(num_ranks) | variables
        if num_ranks > 1:
            environment |= dict(
                WORLD_SIZE=str(num_ranks),
                LOCAL_WORLD_SIZE=str(num_ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(free_port()),
            )
        self.logs, self.ranks = [], []
        for rank in range(num_ranks):
            place = dict(RANK=str(rank), LOCAL_RANK=str(rank)) if num_ranks > 1 else {}
            if own:
                place |= own[rank]
            self.logs.append(config.with_suffix(f".{rank}.log"))
            with open(self.logs[-1], "w") as log:
                self.ranks.append(
                    subprocess.Popen(
                        [program, "train", config],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment | place,
                        preexec_fn=preexec,
                    )
                )

    def wait(self, timeout=60):
        try:
            statuses = [wait_patiently(rank, timeout) for rank in self.ranks]
        finally:
            for rank in self.ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
        return Finished(statuses, [log.read_text() for log in self.logs], self.output_dir)

    def text(self):
        return "\n".join(log.read_text() for log in self.logs)


def run_processes(settings, num_ranks=1, timeout=60):
    """A run that must succeed, each rank a process."""
    finished = Running(settings, num_ranks).wait(timeout)
    assert set(finished.statuses) == {0}, finished.text
    return finished


def run_to_end(settings, num_ranks=1, timeout=60, stream=False):
    """A run that must succeed, with ranks that are threads of one process where nothing is tested of processes: they start in
    a tenth of the time, and texts has one text of them all. On GPUs, and on those that are simulated, each rank is a process. `stream`: its rows come from a source that is no data set."""
    if DEVICE != "cpu" and not stream:
        return run_processes(settings, num_ranks, timeout)
    config = write_config(settings)
    log = config.with_suffix(".log")  # of all ranks
    status = trainings.train(config, num_ranks, free_port(), log, timeout, stream)
    text = log.read_text()
    assert status == 0, text
    return Finished([0] * num_ranks, [text], pathlib.Path(settings["output_dir"]))


def settings_of(model, data, output_dir, **changes):
    return {
        "model_name_or_path": str(model),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "chats",
        "dataset_dir": str(data),
        "output_dir": str(output_dir),
        "logging_steps": 1,
        "save_strategy": "no",
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-3,
        "adam_epsilon": ADAM_EPSILON,
        "max_steps": 10,
    } | device_keys() | changes


@pytest.fixture
def train(models, data, tmp_path):
    """train(model="qwen2", num_ranks=1, **keys) runs to the end and must succeed. `way`: how."""
    count = 0

    def run(model="qwen2", num_ranks=1, way=run_to_end, **changes):
        nonlocal count
        count += 1
        return way(settings_of(models[model], data, tmp_path / f"run{count}", **changes), num_ranks)

    return run


@pytest.fixture(scope="session")
def known_run(place):
    """known_run(settings, num_ranks=1): as train, but run once for all tests and workers, in a folder of its own."""
    known = {}

    def run(settings, num_ranks=1, timeout=60, way=run_to_end):
        key = json.dumps([settings, num_ranks, way.__name__], sort_keys=True, default=str)
        folder = place / "runs" / hashlib.sha256(key.encode()).hexdigest()[:16]

        def make(folder):
            finished = way(settings | dict(output_dir=str(folder / "run")), num_ranks, timeout)
            (folder / "finished.json").write_text(json.dumps([finished.statuses, finished.texts]))

        if key not in known:
            made_once(folder, make)
            known[key] = Finished(*json.loads((folder / "finished.json").read_text()), folder / "run")
        return known[key]

    return run


@pytest.fixture
def reference(models, data, known_run):
    """reference(model, **keys): one process with whole states and the same global batches."""
    return lambda model, **changes: known_run(settings_of(models[model], data, "", **changes))


def bytes_of_weights(model):
    """Of a model's one file, without its header: a limit of file sizes that is only just too small for it."""
    (file,) = pathlib.Path(model).glob("*.safetensors")
    content = file.read_bytes()
    return len(content) - 8 - int.from_bytes(content[:8], "little")


def relative_difference(left, right):
    assert len(left) == len(right) > 0
    return max(abs(a - b) / max(abs(a), abs(b)) for a, b in zip(left, right))


def same_run(left, right, tolerance=None, keys=("loss", "grad_norm")):
    """Within what their settings make of roundings (tolerance.py), unless told otherwise."""
    for key in keys:
        apart = relative_difference(left.logged(key), right.logged(key))
        assert apart < (tolerance or of_run(left)), key
