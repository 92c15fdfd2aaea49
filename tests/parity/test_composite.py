"""Models of texts and pictures (Qwen3.5, Gemma 3 and Mistral Small as published): their language model is trained, and transformers loads what is saved as
the same kind of model. Folders whose files name or stack tensors otherwise."""

import json
import shutil
import subprocess
import textwrap

import pytest
import torch
from conftest import PROGRAM, ROOT, Running, run_to_end, settings_of, write_model, write_tokenizer
from model_configs import CONFIGS
from safetensors.torch import load_file, save_file
from shared import made_once
from test_lora import write_adapter
from test_models import make_model, make_row, probe, reference_logits, relative_error
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

QWEN_VISION = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=64, num_position_embeddings=16)
VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
# transformers' prefix of the classes, the part for pictures, what the whole's config says beside, and the beginnings of the
# files' names: of the language model's, of other parts'.
QWEN_NAMES = ("model.language_model.", ("model.visual.",))
LLAVA_NAMES = ("language_model.model.", ("vision_tower.", "multi_modal_projector."))
KINDS = {
    "qwen3_5": ("Qwen3_5", QWEN_VISION, dict(), QWEN_NAMES),
    "qwen3_5_moe": ("Qwen3_5Moe", QWEN_VISION, dict(), QWEN_NAMES),
    "gemma3": ("Gemma3", VISION, dict(mm_tokens_per_image=4, tie_word_embeddings=True), LLAVA_NAMES),
    "mistral": ("Mistral3", VISION | dict(model_type="pixtral"), dict(tie_word_embeddings=False), LLAVA_NAMES),
}


def language_tensors(folder):
    """By the names that a language model alone has in its files."""
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    for _, _, _, (model, others) in KINDS.values():
        tensors = {name.replace(model, "model.").replace("language_model.lm_head", "lm_head"): tensor
                   for name, tensor in tensors.items() if not name.startswith(others)}
    return tensors


def other_parts(model):
    """Tensors of the model that are not its language model's."""
    return {name: tensor for name, tensor in model.state_dict().items()
            if not name.startswith(("model.language_model.", "lm_head."))}


@pytest.fixture(scope="module")
def places(place):
    """Of each kind a model of texts and pictures, and the folder of its language model alone, with the same tensors."""
    def make(folder):
        import transformers

        prefix, vision, keys, _ = KINDS[folder.name.removesuffix("_with_pictures")]
        text = write_model(folder / "text", folder.name.removesuffix("_with_pictures"))
        text_config = json.loads((text / "config.json").read_text())
        config = getattr(transformers, f"{prefix}Config")(text_config=text_config, vision_config=vision, **keys)
        torch.manual_seed(1)
        model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config)
        language = AutoModelForCausalLM.from_pretrained(text)
        model.model.language_model.load_state_dict(language.model.state_dict())
        model.lm_head.load_state_dict(language.lm_head.state_dict())
        write_tokenizer(folder / "whole")
        model.save_pretrained(folder / "whole", max_shard_size="150KB")
        (folder / "whole" / "preprocessor_config.json").write_text('{"patch_size": 16}')

    return {kind: made_once(place / f"{kind}_with_pictures", make) for kind in KINDS}


def train(settings, num_ranks=1):
    return run_to_end(settings, num_ranks)


WAYS = {
    "one process": ("qwen3_5", 1, dict()),
    "Gemma 3": ("gemma3", 1, dict()),
    "Mistral 3": ("mistral", 1, dict()),
    "experts, ZeRO 3": ("qwen3_5_moe", 2, dict(zero_stage=3, sequence_parallel_size=2, sequence_parallel_mode="ulysses")),
}


@pytest.mark.parametrize("name", WAYS)
def test_training(name, places, data, tmp_path):
    """To the bit what the language model alone becomes; the rest is as it was, and goes along into checkpoints."""
    kind, num_ranks, keys = WAYS[name]
    keys |= dict(max_steps=3, save_strategy="steps", save_steps=2, gradient_accumulation_steps=1)
    whole = train(settings_of(places[kind] / "whole", data, tmp_path / "whole", **keys), num_ranks)
    text = train(settings_of(places[kind] / "text", data, tmp_path / "text", **keys), num_ranks)
    assert f"{KINDS[kind][0]}ForConditionalGeneration is trained on texts alone" in whole.text
    assert "trained on texts alone" not in text.text
    assert whole.logged("loss") == text.logged("loss") and whole.logged("grad_norm") == text.logged("grad_norm")
    ours, expected = language_tensors(whole.output_dir), language_tensors(text.output_dir)
    assert ours.keys() == expected.keys() and all(torch.equal(ours[key], expected[key]) for key in expected)

    before = AutoModelForImageTextToText.from_pretrained(places[kind] / "whole", dtype=torch.float32)
    for folder in (whole.output_dir, whole.output_dir / "checkpoint-2"):
        saved, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        assert type(saved).__name__ == f"{KINDS[kind][0]}ForConditionalGeneration"
        assert not info["missing_keys"] and not info["unexpected_keys"]
        others = other_parts(before)
        assert others and all(torch.equal(value, others[key]) for key, value in other_parts(saved).items())
        assert (folder / "preprocessor_config.json").read_text() == '{"patch_size": 16}'
    saved = AutoModelForImageTextToText.from_pretrained(whole.output_dir, dtype=torch.float32)
    tokens, labels = make_row(400, [60])
    logits = saved(input_ids=tokens[None]).logits[0]
    assert relative_error(reference_logits(before, tokens, [60]), logits) > 1e-3
    results = probe(whole.output_dir, tmp_path, tokens, labels, [60], ["logits"])
    assert relative_error(results["logits"], logits) < 1e-5

    # It goes on from its checkpoint, whose weights have the long names.
    again = train(settings_of(places[kind] / "whole", data, tmp_path / "again", **keys,
                              resume_from_checkpoint=str(whole.output_dir / "checkpoint-2")), num_ranks)
    assert "step 2 of 3" in again.text
    resumed = language_tensors(again.output_dir)
    assert all(torch.equal(resumed[key], ours[key]) for key in ours)


def test_merged_adapter(places, tmp_path):
    """`longspan export` writes a model of texts and pictures, too."""
    start = write_adapter(places["qwen3_5"] / "text", tmp_path / "adapter", init_lora_weights=False)
    merged = {}
    for name in ("whole", "text"):
        config = tmp_path / f"{name}.json"
        config.write_text(json.dumps(dict(model_name_or_path=str(places["qwen3_5"] / name), adapter_name_or_path=start,
                                          export_dir=str(tmp_path / name))))
        ran = subprocess.run([PROGRAM, "export", config], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        merged[name] = language_tensors(tmp_path / name)
    assert all(torch.equal(merged["whole"][key], value) for key, value in merged["text"].items())
    _, info = AutoModelForImageTextToText.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def stacked(tensors, num_experts):
    """Experts as published: gate_up_proj [experts, 2 x intermediate, hidden] and down_proj, both without .weight."""
    together = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    prefixes = {name.partition(".experts.")[0] + ".experts" for name in tensors if ".experts." in name}
    for prefix in prefixes:
        parts = {part: [tensors[f"{prefix}.{number}.{part}.weight"] for number in range(num_experts)]
                 for part in ("gate_proj", "up_proj", "down_proj")}
        together[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in
                                                          zip(parts["gate_proj"], parts["up_proj"])])
        together[f"{prefix}.down_proj"] = torch.stack(parts["down_proj"])
    assert prefixes
    return together


@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_next", "qwen3-moe-some-dense"])
def test_stacked_experts(name, tmp_path):
    """Both ways of the files are the same model to the bit; transformers reads both, and what is saved of either."""
    model = make_model(CONFIGS[name])
    model.save_pretrained(tmp_path / "apart")
    model.config.save_pretrained(tmp_path / "stacked")
    tensors = load_file(tmp_path / "apart" / "model.safetensors")
    # Beside the model Qwen's files have layers that predict further tokens, which transformers drops as well.
    beside = {"mtp.fc.weight": torch.ones(2, 2)} if name != "qwen3-moe-some-dense" else {}
    save_file(stacked(tensors, 8) | beside, tmp_path / "stacked" / "model.safetensors", {"format": "pt"})
    tokens, labels = make_row(CONFIGS[name].vocab_size, [60])
    results = {way: probe(tmp_path / way, tmp_path, tokens, labels, [60], ["logits", "gradients"],
                          save_to=str(tmp_path / f"{way}-saved"))
               for way in ("apart", "stacked")}
    assert all(torch.equal(results["stacked"][key], value) for key, value in results["apart"].items())
    assert relative_error(results["stacked"]["logits"], reference_logits(model, tokens, [60])) < 1e-5
    for way in ("stacked", "stacked-saved"):
        loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / way, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
        assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items()), way


def test_a_language_model_saved_by_transformers(places, tmp_path):
    """Loaded from a model of texts and pictures it keeps that one's names in its files."""
    AutoModelForCausalLM.from_pretrained(places["qwen3_5"] / "whole").save_pretrained(tmp_path / "text")
    names = load_file(tmp_path / "text" / "model.safetensors")
    assert "model.language_model.embed_tokens.weight" in names and not any("visual" in name for name in names)
    tokens, labels = make_row(400, [60])
    ours, expected = [probe(folder, tmp_path, tokens, labels, [60], ["logits"])["logits"]
                      for folder in (tmp_path / "text", places["qwen3_5"] / "text")]
    assert torch.equal(ours, expected)


def test_what_is_refused(places, data, tmp_path):
    folder = tmp_path / "without"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((places["qwen3_5"] / "whole" / name).read_bytes())
    tensors = load_file(places["qwen3_5"] / "text" / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    refused = Running(settings_of(folder, data, tmp_path / "out")).wait()
    assert refused.status == 1 and "no tensors of its vision part" in refused.text, refused.text
    made = subprocess.run([PROGRAM, "init", "--config", places["mistral"] / "whole", "--output", tmp_path / "made"],
                          capture_output=True, text=True)
    assert made.returncode == 1 and "only its language model can be made" in made.stderr, made.stderr


def test_a_new_model_with_its_tower(places, tmp_path):
    made = subprocess.run([PROGRAM, "init", "--config", places["qwen3_5"] / "whole", "--output", tmp_path / "made"],
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    _, info = AutoModelForImageTextToText.from_pretrained(tmp_path / "made", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


def test_a_model_of_texts_and_pictures_of_another_kind(data, tmp_path):
    """It is refused, and its language model is trained once it is saved by the lines of docs/configuration.md."""
    import transformers

    text = json.loads((write_model(tmp_path / "llama", "llama") / "config.json").read_text())
    config = transformers.LlavaConfig(text_config=text, vision_config=VISION | dict(model_type="clip_vision_model"),
                                      tie_word_embeddings=False)
    whole = tmp_path / "whole"
    write_tokenizer(whole)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(whole)
    refused = Running(settings_of(whole, data, tmp_path / "out")).wait()
    assert refused.status == 1 and "model_type llava has a text_config beside parts for pictures" in refused.text
    page = (ROOT / "docs" / "configuration.md").read_text()
    (lines,) = [part for part in page.split("```python\n") if part.lstrip().startswith("from transformers import")]
    lines = textwrap.dedent(lines.partition("```")[0])
    exec(lines.replace('"FOLDER"', repr(str(whole))).replace('"TEXT_FOLDER"', repr(str(tmp_path / "text"))))
    write_tokenizer(tmp_path / "text")
    tokens, labels = make_row(400, [60])
    ours = probe(tmp_path / "text", tmp_path, tokens, labels, [60], ["logits"])["logits"]
    assert relative_error(ours, reference_logits(AutoModelForImageTextToText.from_pretrained(whole), tokens, [60])) < 1e-5


def test_layers_for_further_tokens(places, data, tmp_path):
    """A line says that they are left out, and what is saved asks nobody to look for them."""
    folder = shutil.copytree(places["qwen3_5"] / "text", tmp_path / "model")
    save_file(load_file(folder / "model.safetensors") | {"mtp.fc.weight": torch.ones(2, 2)}, folder / "model.safetensors",
              {"format": "pt"})
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(keys | dict(mtp_num_hidden_layers=1)))
    line = "layers that predict further tokens (multi-token prediction) are not trained"
    finished = train(settings_of(folder, data, tmp_path / "ours", max_steps=1))
    assert finished.text.count(line) == 1
    assert json.loads((finished.output_dir / "config.json").read_text())["mtp_num_hidden_layers"] == 0
    _, info = AutoModelForCausalLM.from_pretrained(finished.output_dir, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert line not in train(settings_of(finished.output_dir, data, tmp_path / "again", max_steps=1)).text
