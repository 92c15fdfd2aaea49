"""Rollouts of the real `transformers serve` on the CPU, which gets new weights before each batch.

    python tests/long/transformers_server.py [--model FOLDER] [--steps N] [--batching]     a random model if none is given

Needs the packages of server-requirements.txt. A proxy notes what the server is asked and what it answers. The first run
sends one request at a time: transformers' own generate() then gives the same texts from the checkpoint of each version,
with the seed and the settings of the request. The second run sends several requests at a time, and batches ahead.
`--batching` adds a run with continuous batching, in which the server needs half a minute for the first answer of each
version."""

import argparse
import collections
import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from conftest import free_port, write_model  # noqa: E402
from rollout_server import batch_file, settings_for  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = pathlib.Path(os.environ.get("LONGSPAN_BUILD", ROOT / "build")) / "longspan"
START_SECONDS, RUN_SECONDS = 180, 3600


@contextlib.contextmanager
def real_server(log, *options):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--host", "127.0.0.1", "--port", str(port),
               "--device", "cpu", *options]
    with open(log, "w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | dict(HF_HUB_OFFLINE="1"))
    try:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=10).close()
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < end, pathlib.Path(log).read_text()
                time.sleep(0.2)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@contextlib.contextmanager
def proxy(url, seen):
    """Appends (path, body, status, answer) of each request to `seen`."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(handler):
            text = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
            request = urllib.request.Request(url + handler.path, text, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=600) as response:
                    status, answer = response.status, response.read()
            except urllib.error.HTTPError as error:
                status, answer = error.code, error.read()
            seen.append((handler.path, json.loads(text) if text else None, status, answer.decode()))
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer)

        def log_message(self, *_):
            pass

    service = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{service.server_port}"
    finally:
        service.shutdown()
        service.server_close()


def train(settings, folder):
    config = folder / f"{pathlib.Path(settings['output_dir']).name}.json"
    config.write_text(json.dumps(settings))
    begin = time.monotonic()
    ran = subprocess.run([PROGRAM, "train", config], capture_output=True, text=True, timeout=RUN_SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return time.monotonic() - begin


def check_batches(output, completions, steps, tokenizer):
    """Each row of the batches is an answer of the server to the row's prompt."""
    left = collections.Counter((body["prompt"], json.loads(answer)["choices"][0]["text"].rstrip("\ufffd"))
                               for _, body, _, answer in completions)
    rows = [json.loads(line) for number in range(steps) for line in batch_file(output, number).read_text().splitlines()]
    assert len(rows) == len(completions)
    for row in rows:
        trained = [token for token, is_trained in zip(row["token_ids"], row["mask"]) if is_trained]
        prompt = tokenizer.decode(row["token_ids"][:-len(trained)])
        assert (trained[-1] == tokenizer.eos_token_id) != row.get("truncated", False), row
        assert any(text.startswith(tokenizer.decode(trained, skip_special_tokens=True).rstrip("\ufffd")) and count > 0
                   for (asked, text), count in left.items() if asked == prompt), row
    differing = 0
    for _, _, _, answer in completions:
        choice, size = json.loads(answer)["choices"][0], json.loads(answer)["usage"]["completion_tokens"]
        differing += len(tokenizer(choice["text"])["input_ids"]) + (choice["finish_reason"] == "stop") != size
    return len(rows), differing


def check_by_generate(output, model, completions):
    """The texts of generate(), from the checkpoint that each request's version is."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    tokenizer, loaded = AutoTokenizer.from_pretrained(model), {}
    others = 0
    for _, body, _, answer in completions:
        version = int(body["model"].rpartition("-")[2])
        for one in {version, 0}:
            if one not in loaded:
                loaded[one] = AutoModelForCausalLM.from_pretrained(output / f"checkpoint-{one}" if one else model)
        inputs = tokenizer(body["prompt"], return_tensors="pt")
        texts = []
        for one in (version, 0):
            torch.manual_seed(body["seed"])
            out = loaded[one].generate(**inputs, generation_config=GenerationConfig(**json.loads(body["generation_config"])))
            texts.append(tokenizer.decode(out[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
        assert json.loads(answer)["choices"][0]["text"] == texts[0], (version, body)
        others += texts[0] != texts[1]
    versions = {body["model"] for _, body, _, _ in completions}
    return len(versions), others


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batching", action="store_true")
    arguments = parser.parse_args()
    from transformers import AutoTokenizer
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        model = arguments.model or str(folder / "model")
        if not arguments.model:
            write_model(folder / "model", "qwen2")
        tokenizer = AutoTokenizer.from_pretrained(model)
        runs = [("one", [], arguments.steps, dict(rollout_concurrency=1)),
                ("several", [], arguments.steps, dict(rollout_concurrency=8, async_steps=1))]
        if arguments.batching:
            runs.append(("batching", ["--continuous-batching"], 2, dict(rollout_concurrency=8)))
        for name, options, steps, keys in runs:
            seen = []
            with real_server(folder / f"{name}.log", *options) as url, proxy(url, seen) as address:
                keys = dict(rollout_server="transformers", rollout_update="disk", importance_sampling_correction="none",
                            learning_rate=1e-2, max_steps=steps, save_total_limit=None, rollout_timeout=300) | keys
                settings = settings_for(dict(qwen2=model), folder, name, address, **keys)
                seconds = train(settings, folder)
            assert {status for _, _, status, _ in seen} == {200}
            told = [path for path, *_ in seen if path != "/v1/completions"]
            assert told == ["/reset", "/load_model"] * (len(told) // 2) and len(told) >= 2 * steps - 2, told
            completions = [one for one in seen if one[0] == "/v1/completions"]
            rows, differing = check_batches(folder / name, completions, steps, tokenizer)
            print(f"{name}: {rows} answers in {seconds:.0f} s, {differing} with another number of tokens than the server "
                  "sampled", flush=True)
            if name == "one":
                versions, others = check_by_generate(folder / name, model, completions)
                assert versions == steps
                print(f"{name}: the same texts by generate() from {versions} versions; {others} differ from the first version's",
                      flush=True)
                assert others > 0


if __name__ == "__main__":
    main()
