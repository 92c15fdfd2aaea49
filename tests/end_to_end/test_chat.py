"""`longspan chat` at a terminal, and what `chat` and `generate` say of mistakes."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import termios
import time

import pytest
from conftest import PROGRAM, write_model


CONTROLS = "\x1b\\[[0-9;?]*[a-zA-Z]|\r"  # where the cursor goes, and colours


class Terminal:
    """The program at a terminal of its own."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, b"\x28\x00\x50\x00" + b"\0" * 4)

        def own_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [PROGRAM, "chat", *map(str, arguments)], stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal,
            env=dict(os.environ, TERM="xterm", OMP_NUM_THREADS="1"))
        os.close(slave)
        self.text = ""

    def until(self, pattern, seconds=60):
        """What came since the last call, up to the pattern."""
        end = time.time() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.time() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    self.text += re.sub(CONTROLS, "", os.read(self.master, 65536).decode(errors="replace"))
        begin, self.text = self.text[:found.end()], self.text[found.end():]
        return begin

    def type(self, keys):
        os.write(self.master, keys.encode())

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.fixture
def terminal():
    opened = []

    def open_one(*arguments):
        opened.append(Terminal(*arguments))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """It never ends an answer by itself: no token of it has the end's number."""
    folder = tmp_path_factory.mktemp("chat")
    write_model(folder, "qwen2", max_position_embeddings=60000, initializer_range=0.1)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n{% endfor %}<|im_start|>assistant\n"
    (folder / "chat_template.jinja").write_text(template)
    for name, place in (("config.json", "eos_token_id"), ("generation_config.json", "eos_token_id"),
                        ("tokenizer_config.json", "eos_token")):
        settings = json.loads((folder / name).read_text())
        settings[place] = None
        (folder / name).write_text(json.dumps(settings))
    return folder


PROMPT = "> $"


def test_a_conversation(model, terminal):
    chat = terminal(model, "max_new_tokens=20", "temperature=0")
    begin = chat.until(PROMPT)
    assert "Qwen2ForCausalLM" in begin and "/clear" in begin and "greedy, at most 20 tokens" in begin
    chat.type("random numbers\r")
    first = chat.until(r"20 tokens, [0-9.]+ tokens/s; cut at max_new_tokens=20")
    chat.until(PROMPT)
    chat.type("random numbers\r")
    second = chat.until(r"tokens/s; cut")
    chat.until(PROMPT)
    chat.type("/clear\r")
    chat.until("A new conversation")
    chat.until(PROMPT)
    chat.type("random numbers\r")
    third = chat.until(r"tokens/s; cut")
    answer = lambda shown: shown.split("random numbers")[-1].split("20 tokens")[0]  # noqa: E731
    assert answer(first) == answer(third) != answer(second)
    chat.until(PROMPT)
    chat.type("/sistem x\r")
    chat.until("There is no command /sistem")
    chat.until(PROMPT)
    chat.type("/exit\r")
    assert chat.process.wait(20) == 0


def test_keys_that_stop(model, terminal):
    chat = terminal(model, "max_new_tokens=50000")
    chat.until(PROMPT)
    chat.type("random\r")
    time.sleep(1)
    chat.type("\x03")
    chat.until(r"[0-9]+ tokens, [0-9.]+ tokens/s; stopped", seconds=20)
    chat.until(PROMPT)
    chat.type("\x04")
    assert chat.process.wait(20) == 0


def test_keys_that_leave(model, terminal):
    """Ctrl-C at the prompt clears the line; only a second one right after leaves."""
    chat = terminal(model, "max_new_tokens=5", "temperature=0")
    for _ in range(2):
        chat.until(PROMPT)
        chat.type("not what I meant\x03")
        chat.until("Ctrl-D or /exit leaves, and so does")
        chat.until(PROMPT)
        chat.type("random\r")
        chat.until("5 tokens")
    chat.until(PROMPT)
    chat.type("\x03")
    chat.until("Ctrl-D or /exit leaves, and so does")
    chat.until(PROMPT)
    chat.type("\x03")
    assert chat.process.wait(20) == 0


def test_an_interrupt_without_a_terminal(model):
    with subprocess.Popen([PROGRAM, "chat", model, "max_new_tokens=50000"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        process.stdin.write(b"random")
        process.stdin.close()
        assert process.stdout.read(20)  # the answer has begun
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == 130


def test_a_question_that_is_waited_for(model):
    master, slave = pty.openpty()
    with subprocess.Popen([PROGRAM, "chat", model, "max_new_tokens=5"], stdin=slave, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        os.write(master, b"random\n\x04")
        answer, said = process.communicate(timeout=60)
    os.close(master)
    os.close(slave)
    assert process.returncode == 0 and answer and "Type the question; Ctrl-D" in said


def run(*words, stdin=""):
    ran = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, input=stdin, timeout=60)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stderr if ran.returncode else ran.stdout


def test_mistakes(model, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    assert "the nearest is temperature" in run("chat", model, "temprature=1")
    assert "the nearest is batch_size" in run("generate", prompts, model, "--batchsize", "2")
    assert "wanted is a number above 0, at most 1" in run("chat", model, "top_p=2")
    assert "the model's folder is missing" in run("chat") and "is missing" in run("generate", prompts)
    assert "contradict" in run("chat", model, "temperature=0", "top_k=3", stdin="a")
    assert "there is no such folder" in run("chat", tmp_path / "gone", stdin="a")
    assert "no question on stdin" in run("chat", model)
    assert "cannot read" in run("generate", tmp_path / "gone.jsonl", model)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "moved/away"}))
    assert 'base model is "moved/away"' in run("chat", adapter, stdin="a")
    prompts.write_text("short\n" + "long " * 30000)
    assert "line 2: the prompt has" in run("generate", prompts, model)
    (tmp_path / "out.jsonl").write_text("mine")
    prompts.write_text("short\n")
    assert "nothing was written" in run("generate", prompts, model, f"output={tmp_path / 'out.jsonl'}")
    assert (tmp_path / "out.jsonl").read_text() == "mine"


ORDERS = {
    "two questions": (["user", "user"], "message 2 is the user's, wanted is one of assistant, function_call"),
    "an answer first": (["assistant", "user"], "message 1 is the assistant's, wanted is one of user, tool"),
    "a late system message": (["user", "assistant", "system", "user"], "message 3 is the system's, wanted is one of user, tool"),
    "two system messages": (["system", "system", "user"], "message 2 is the system's, wanted is one of user, tool"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_turns_out_of_order(model, tmp_path, order):
    roles, message = ORDERS[order]
    file = tmp_path / "prompts.jsonl"
    row = {"messages": [{"role": role, "content": "a"} for role in roles]}
    file.write_text('{"prompt": "a"}\n' + json.dumps(row) + "\n")
    said = run("generate", file, model, "template=chatml", "max_new_tokens=2")
    assert "prompts.jsonl, line 2: " + message in said and "chatml" in said


def test_a_model_that_diverged(model, tmp_path):
    from safetensors.torch import load_file, save_file

    bad = tmp_path / "bad"
    shutil.copytree(model, bad)
    tensors = load_file(bad / "model.safetensors")
    tensors["model.norm.weight"][:] = float("nan")
    save_file(tensors, bad / "model.safetensors", {"format": "pt"})
    for keys in (["temperature=0"], ["temperature=1", "top_k=5"]):
        ran = subprocess.run([PROGRAM, "chat", bad, *keys], input="a", capture_output=True, text=True, timeout=60)
        assert ran.returncode == 1 and "NaN" in ran.stderr and "diverged" in ran.stderr


def test_settings_that_are_not_built(model, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(model, other)
    settings = json.loads((other / "generation_config.json").read_text())
    settings |= dict(min_p=0.1, num_beams=4, no_repeat_ngram_size=0, typical_p=1.0, bad_words_ids=[[3]],
                     output_scores=True, length_penalty=2.0, of_tomorrow=0.5)
    (other / "generation_config.json").write_text(json.dumps(settings))
    for folder, warning in ((model, None), (other, "has bad_words_ids [[3]], min_p 0.1, num_beams 4, of_tomorrow 0.5: that has no effect here")):
        ran = subprocess.run([PROGRAM, "chat", folder, "max_new_tokens=2"], input="a", capture_output=True, text=True)
        assert ran.returncode == 0
        assert warning in ran.stderr if warning else "no effect" not in ran.stderr


def test_an_output_that_cannot_be_written_is_found_first(model, tmp_path):
    broken = tmp_path / "model"  # loading it would fail
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\n")
    assert "cannot write" in run("generate", prompts, broken, f"output={tmp_path / 'gone' / 'out.jsonl'}")
    (tmp_path / "out.jsonl").write_text("mine")
    assert "is there already" in run("generate", prompts, broken, f"output={tmp_path / 'out.jsonl'}")
    (tmp_path / "out.jsonl").unlink()
    assert "out.jsonl" not in run("generate", prompts, broken, f"output={tmp_path / 'out.jsonl'}")
    assert not (tmp_path / "out.jsonl").exists()


def test_text_without_a_template(model, tmp_path):
    """A base model goes on with the text, and says so."""
    base = tmp_path / "base"
    shutil.copytree(model, base)
    (base / "chat_template.jinja").unlink()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("random integer\n")
    ran = subprocess.run([PROGRAM, "generate", prompts, base, "max_new_tokens=5"], capture_output=True, text=True)
    assert ran.returncode == 0 and "no chat template: texts are continued" in ran.stderr
    with_template = run("generate", prompts, base, "max_new_tokens=5", "template=chatml")
    assert json.loads(ran.stdout)["predict"] != json.loads(with_template)["predict"]

    user, answer = dict(role="user", content="one"), dict(role="assistant", content="two")
    refused = {
        "are 3 messages": [dict(messages=[user, answer, user])],
        "are 2 messages": [dict(system="Be brief.", prompt="one")],
        "is a message of role observation": [dict(messages=[dict(role="tool", content="one")])],
        "are tools": [dict(prompt="one", tools=[dict(type="function", function=dict(name="f"))])],
    }
    for reason, rows in refused.items():
        prompts = tmp_path / "rows.json"
        prompts.write_text(json.dumps(rows))
        ran = subprocess.run([PROGRAM, "generate", prompts, base], capture_output=True, text=True)
        assert ran.returncode != 0 and f"here {reason}; name a template" in ran.stderr, ran.stderr
    for key in ("default_system=Be brief.", "enable_thinking=false"):
        ran = subprocess.run([PROGRAM, "chat", base, key], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert ran.returncode != 0 and f"{key.split('=')[0]} is for a chat" in ran.stderr, ran.stderr
