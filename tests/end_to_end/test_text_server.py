"""Rollouts of a server that takes and gives texts alone (`transformers serve`): their tokens, faults, new weights."""

import json
import pathlib
import shutil

import pytest
from conftest import run_to_end
from rollout_server import (
    END, GENERATIONS, GROUPS, MOST_OF_TEXTS, STEPS, Server, batch, files_of, refused, settings_for, transformers_kind, weights,
)
from safetensors.torch import load_file

TEXTS = dict(rollout_server="transformers", importance_sampling_correction="none", rollout_concurrency=1)


def tokens_of(tokenizer, text, reason):
    """The tokens that an answer must have, and whether it is truncated."""
    if reason == "length":
        text = text.rstrip("\ufffd") or text  # half of a character
    ids = tokenizer(text)["input_ids"] + [END] * (reason == "stop")
    return ids[:MOST_OF_TEXTS], reason == "length" or len(ids) > MOST_OF_TEXTS


@pytest.mark.parametrize("ranks", [1, 2])
def test_texts_become_tokens(ranks, models, tmp_path):
    from transformers import AutoTokenizer
    tokenizer, given = AutoTokenizer.from_pretrained(models["qwen2"]), []

    def change(number, choices):
        choice = choices[0]["choices"][0]
        given.append((choice["text"], choice["finish_reason"]))
        return choices

    with Server(transformers_kind(models["qwen2"]), change=change) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server, **TEXTS, rollout_model="base", num_iterations=2,
                                      rollout_temperature=0.7, sequence_parallel_size=ranks), ranks)
    assert len(server.asked) == len(given) == 2 * GROUPS * GENERATIONS
    assert {reason for _, reason in given} == {"stop", "length"}
    assert len({(body["prompt"], body["seed"]) for body in server.asked}) == len(server.asked)
    for number in range(2):
        rows = batch(run, number)
        for row, body, (text, reason) in zip(rows, *(part[number * len(rows):] for part in (server.asked, given))):
            answer = [token for token, trained in zip(row["token_ids"], row["mask"]) if trained]
            assert (answer, row.get("truncated", False)) == tokens_of(tokenizer, text, reason)
            assert tokenizer.decode(row["token_ids"][:-len(answer)]) == body["prompt"] and "logprobs" not in row
            assert body["model"] == "base" and json.loads(body["generation_config"])["temperature"] == 0.7
    assert len(run.logged("loss")) == STEPS
    assert not run.logged("sampling/logp_difference") and not run.logged("sampling/importance_ratio")


def test_faults_that_pass_change_nothing(models, tmp_path):
    kind = transformers_kind(models["qwen2"])
    with Server(kind) as server:
        plain = run_to_end(settings_for(models, tmp_path, "plain", server, **TEXTS))
    with Server(kind, status=lambda number: {1: 500, 7: 503}.get(number)) as server:
        busy = run_to_end(settings_for(models, tmp_path, "busy", server, **TEXTS))
    assert weights(busy) == weights(plain) and "(status 500)" in busy.text


def replaced(where, value):
    def change(number, choices):
        place = choices[0]
        for key in where[:-1]:
            place = place[key]
        place[where[-1]] = value
        return choices
    return change


@pytest.mark.parametrize("change, sentence", [
    (replaced(["usage", "prompt_tokens"], 3), "the server read a prompt of another length: 3; sent were "),
    (replaced(["choices", 0, "text"], None), "the answer has no text (/choices/0/text); rollout_server is transformers"),
    (replaced(["choices", 0, "finish_reason"], "content_filter"), "the answer ended by \"content_filter\""),
    (replaced(["choices"], []), "the answer ended by nothing"),
], ids=["prompt", "text", "finish", "choices"])
def test_each_fault_of_an_answer(change, sentence, models, tmp_path):
    with Server(transformers_kind(models["qwen2"]), change=change) as server:
        run = refused(settings_for(models, tmp_path, "run", server, **TEXTS), sentence)
        assert f"{server.url}/v1/completions, prompt 1 of 2: " in run.text


def test_a_prompt_without_text(models, tmp_path):
    """The server's tokenizer adds a token that the run's prompts do not have."""
    model = tmp_path / "model"
    shutil.copytree(models["qwen2"], model)
    file = json.loads((model / "tokenizer.json").read_text())
    bos = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    file["post_processor"] = dict(
        type="TemplateProcessing", single=[bos, {"Sequence": {"id": "A", "type_id": 0}}],
        pair=[bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        special_tokens={"<|endoftext|>": dict(id="<|endoftext|>", ids=[0], tokens=["<|endoftext|>"])})
    (model / "tokenizer.json").write_text(json.dumps(file))
    with Server(transformers_kind(models["qwen2"])) as server:
        settings = settings_for(models, tmp_path, "run", server, **TEXTS) | dict(model_name_or_path=str(model))
        refused(settings, "prompt 1 of 2: the text of the prompt does not encode to the ")
        assert not server.asked


def stream(*events):
    return 200, "".join(f"data: {json.dumps(event)}\n\n" for event in events)


def test_weights_from_folders(models, tmp_path):
    """Each version is a model of its own, which requests name."""
    loaded, states = set(), {}

    def tell(path, body):
        if path == "/reset":
            loaded.clear()
            return 200
        assert path == "/load_model" and {"model.safetensors", "tokenizer.json"} <= set(files_of(body["model"]))
        loaded.add(body["model"])
        states[body["model"]] = load_file(f"{body['model']}/model.safetensors")
        return stream(dict(status="loading", model=body["model"]), dict(status="ready", model=body["model"]))

    def change(number, choices):
        return choices if loaded == {server.asked[number]["model"]} else "no such model, or others beside it"

    with Server(transformers_kind(models["qwen2"]), tell=tell, change=change) as server:
        run = run_to_end(settings_for(models, tmp_path, "run", server, **TEXTS, rollout_update="disk", save_total_limit=None))
    folder, each = run.output_dir / "policy", GROUPS * GENERATIONS
    names = [str(folder / f"version-{version}") for version in range(STEPS)]
    assert server.told == [part for name in names for part in (("/reset", None), ("/load_model", dict(model=name)))]
    assert [body["model"] for body in server.asked] == [name for name in names for _ in range(each)]
    assert files_of(folder) == [f"version-{STEPS - 1}"]
    assert [batch(run, number)[0]["policy_version"] for number in range(STEPS)] == list(range(STEPS))
    for version, name in enumerate(names):
        saved = load_file((run.output_dir / f"checkpoint-{version}" if version else pathlib.Path(models["qwen2"])) / "model.safetensors")
        assert all(tensor.equal(states[name][key]) for key, tensor in saved.items())


def test_folders_of_batches_ahead(models, tmp_path):
    """A folder stays until the batches are done that name it: the server may have to load it again."""
    def change(number, choices):
        return choices if (pathlib.Path(server.asked[number]["model"]) / "model.safetensors").exists() else "no such model"

    with Server(transformers_kind(models["qwen2"]), change=change, seconds=lambda number: 0.03) as server:
        run_to_end(settings_for(models, tmp_path, "run", server, **TEXTS, rollout_update="disk", async_steps=1, max_steps=5))
        names = [body["model"].rpartition("-")[2] for body in server.asked[::GROUPS * GENERATIONS]]
    assert names == ["0", "0", "1", "2", "3"]


def test_a_folder_that_is_not_loaded(models, tmp_path):
    """The server tells of the failure in a stream of status 200."""
    failed = stream(dict(status="loading"), dict(status="error", message="data: no room"))
    with Server(transformers_kind(models["qwen2"]), tell=lambda path, body: failed if path == "/load_model" else 200) as server:
        run = refused(settings_for(models, tmp_path, "run", server, **TEXTS, rollout_update="disk"), "data: no room")
        assert f"{server.url}/load_model: status 200" in run.text and "Start transformers serve without a model" in run.text
        assert not server.asked


@pytest.mark.parametrize("keys, sentence", [
    (dict(importance_sampling_correction="token_truncate"), "importance_sampling_correction: rollout_server: transformers does not"),
    (dict(importance_sampling_clip_max=2), "importance_sampling_clip_max: 2 has no effect"),
    (dict(rollout_update="disk", rollout_model="base"), "rollout_model: base has no effect with rollout_update: disk"),
    (dict(rollout_update="lora", finetuning_type="lora"), "rollout_update: lora is for a server that can load adapters"),
])
def test_keys_that_do_not_fit(keys, sentence, models, tmp_path):
    refused(settings_for(models, tmp_path, "run", "http://127.0.0.1:1", **TEXTS | keys), sentence)
