"""A server that answers prompts like vLLM, SGLang, llama.cpp's server or `transformers serve`, with faults that a test
chooses."""

import contextlib
import http.server
import json
import os
import random
import threading
import time

from conftest import Running, add_dataset, settings_of

END = 2  # <|im_end|> of write_tokenizer
TOKENS = range(10, 200)
STEPS, GROUPS, GENERATIONS = 4, 2, 3  # of a run
MOST_OF_TEXTS = 8  # max_completion_length of runs with a server of texts


def answer_of(prompt, seed, number, most):
    """Token ids, their log-probabilities, and whether the end token is among them: a function of the arguments alone."""
    rng = random.Random(f"{prompt} {seed} {number}")
    size = rng.randint(1, most)
    ids = [rng.choice(TOKENS) for _ in range(size)]
    if size < most or rng.random() < 0.5:
        ids[-1] = END
    return ids, [-rng.uniform(4, 8) for _ in ids], ids[-1] == END


def vllm_choice(prompt, ids, logprobs, ended):
    return dict(index=0, text="?", finish_reason="stop" if ended else "length", token_ids=ids, prompt_token_ids=prompt,
                logprobs=dict(token_logprobs=logprobs, tokens=["?"] * len(ids)))


def sglang_choice(prompt, ids, logprobs, ended):
    finish = dict(type="stop", matched=END) if ended else dict(type="length", length=len(ids))
    return dict(text="?", output_ids=ids, meta_info=dict(
        prompt_tokens=len(prompt), finish_reason=finish, completion_tokens=len(ids),
        output_token_logprobs=[[logprob, token, None] for token, logprob in zip(ids, logprobs)]))


def llama_choice(prompt, ids, logprobs, ended):
    return dict(content="?", tokens=ids, stop=True, stop_type="eos" if ended else "limit", tokens_evaluated=len(prompt))


def read_vllm(body):
    assert body["return_token_ids"] is True and body["top_k"] == -1 and END in body["stop_token_ids"]
    return body["prompt"], body["n"], body["max_tokens"], body["seed"]


def read_sglang(body):
    sampling = body["sampling_params"]
    assert body["return_logprob"] is True and sampling["top_p"] == 1 and END in sampling["stop_token_ids"]
    return body["input_ids"], sampling["n"], sampling["max_new_tokens"], 0


def read_llama(body):
    assert body["return_tokens"] is True and body["samplers"] == ["temperature"]
    return body["prompt"], 1, body["n_predict"], body["seed"]


def read_openai(body):
    return body["prompt"], body["n"], body["max_tokens"], body["seed"]


KINDS = {
    "vllm": ("/v1/completions", read_vllm, vllm_choice, lambda choices: dict(object="text_completion", choices=choices)),
    "sglang": ("/generate", read_sglang, sglang_choice, lambda choices: choices if len(choices) > 1 else choices[0]),
    "llama_cpp": ("/completion", read_llama, llama_choice, lambda choices: choices[0]),
    "openai": ("/v1/completions", read_openai, vllm_choice, lambda choices: dict(choices=choices)),
}


def transformers_kind(folder):
    """`transformers serve` with the tokenizer of a model: it takes and gives texts alone, tokenizes the prompt by itself,
    leaves special tokens out of answers, and says "length" of an answer whose last possible token ended it."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def read(body):
        settings = json.loads(body["generation_config"])
        assert set(body) == {"prompt", "model", "seed", "stream", "generation_config"} and isinstance(body["prompt"], str)
        assert settings["do_sample"] is True and settings["top_k"] == 0 and END in settings["eos_token_id"]
        return body["prompt"], 1, settings["max_new_tokens"], body["seed"]

    def choice_of(prompt, ids, logprobs, ended):
        text, size = tokenizer.decode(ids, skip_special_tokens=True), len(tokenizer(prompt)["input_ids"])
        reason = "stop" if ended and len(ids) < MOST_OF_TEXTS else "length"
        return dict(choices=[dict(index=0, text=text, finish_reason=reason)], object="text_completion",
                    usage=dict(prompt_tokens=size, completion_tokens=len(ids), total_tokens=size + len(ids)))

    return "/v1/completions", read, choice_of, lambda choices: choices[0]


class QuietHandler(http.server.BaseHTTPRequestHandler):
    def reply(self, status, text):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class Service:
    """A server on a thread, until the end of the block."""

    def __init__(self, handler, port=0):
        class Threads(http.server.ThreadingHTTPServer):
            request_queue_size = 64

        self._server = Threads(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs=dict(poll_interval=0.05), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Server(Service):
    """`status(number)`: of the request of that number for answers; None or 200: it succeeds. `seconds(number)`: before its
    answer. `change(number, choices)`: returns the choices, or text in place of the response. `tell(path, body)`: of any other
    request; returns the status, or the status and the body. `models()`: the names that it lists. With an `api_key`, any request
    without it gets status 401."""

    def __init__(self, kind="vllm", port=0, status=None, seconds=None, change=None, tell=None, models=lambda: [],
                 api_key=None):
        self.asked, self.told, self.open, self.most_open = [], [], 0, 0
        where, read, choice_of, response_of = KINDS[kind] if isinstance(kind, str) else kind
        lock = threading.Lock()

        class Handler(QuietHandler):
            def is_refused(handler):
                sent = handler.headers.get("Authorization")
                if sent == (f"Bearer {api_key}" if api_key else None):
                    return False
                handler.reply(401, json.dumps(dict(error=f"Unauthorized: {sent}")))
                return True

            def do_POST(handler):
                text = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
                if handler.is_refused():
                    return
                body = json.loads(text) if text else None
                if handler.path == where:
                    reply = self._complete(body, read, choice_of, response_of, lock, status, seconds, change)
                else:
                    with lock:
                        self.told.append((handler.path, body))
                    code = tell(handler.path, body) if tell else 200
                    reply = code if isinstance(code, tuple) else (code, json.dumps(dict(success=code == 200)))
                handler.reply(*reply)

            def do_GET(handler):
                assert handler.path == "/v1/models"
                if handler.is_refused():
                    return
                handler.reply(200, json.dumps(dict(object="list", data=[dict(id=name) for name in models()])))

        super().__init__(Handler, port)

    def _complete(self, body, read, choice_of, response_of, lock, status, seconds, change):
        with lock:
            number = len(self.asked)
            self.asked.append(body)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            time.sleep(seconds(number) if seconds else 0)
            code = (status(number) if status else None) or 200
            if code != 200:
                return code, "busy"
            prompt, count, most, seed = read(body)
            choices = [choice_of(prompt, *answer_of(prompt, seed, i, most)) for i in range(count)]
            changed = change(number, choices) if change else choices
            return 200, changed if isinstance(changed, str) else json.dumps(response_of(changed))
        finally:
            with lock:
                self.open -= 1


class RewardService(Service):
    """A reward is a tenth of the answer's length. `replies`: `text` and `status` of the next replies, and `after`: the number
    of the request that gets status 503."""

    def __init__(self):
        self.bodies, self.replies = [], {}

        class Handler(QuietHandler):
            def do_POST(handler):
                rows = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.bodies.append(rows)
                busy = len(self.bodies) - 1 == self.replies.get("after")
                text = self.replies.get("text") or json.dumps([len(row["completion"]) / 10 for row in rows])
                handler.reply(503 if busy else self.replies.get("status", 200), text)

        super().__init__(Handler)


def files_of(folder):
    """The names in a folder that a server is told of, while the request lasts."""
    return sorted(os.listdir(folder))


def questions(folder):
    rows = [{"instruction": f"What is {i} and {i + 1}?", "input": "", "output": str(2 * i + 1)} for i in range(6)]
    add_dataset(folder, "questions", rows)
    return folder


def settings_for(models, folder, name, server, **keys):
    settings = settings_of(models["qwen2"], questions(folder / "data"), folder / name, stage="grpo", dataset="questions")
    url = server if isinstance(server, str) else server.url
    return settings | dict(rollout="server", rollout_url=url, rollout_update="none", rewards="length",
                           num_generations=GENERATIONS, max_completion_length=8, cutoff_len=256,
                           per_device_train_batch_size=GROUPS, gradient_accumulation_steps=1, max_steps=STEPS,
                           save_strategy="steps", save_steps=1) | keys


def batch_file(folder, number):
    return folder / "rollouts" / f"batch-{number:06}.jsonl"


def batch(run, number):
    return [json.loads(line) for line in batch_file(run.output_dir, number).read_text().splitlines()]


def weights(run):
    return (run.output_dir / "model.safetensors").read_bytes()


def refused(settings, sentence, ranks=1, times=1, timeout=60):
    run = Running(settings | dict(sequence_parallel_size=ranks), ranks).wait(timeout)
    assert all(status != 0 for status in run.statuses), run.text
    assert run.text.count(sentence) == times, run.text
    return run
