"""Models of texts and pictures against transformers' own, small and random, with pictures in the row."""

import copy
import json
import shutil
import subprocess

import peft
import pytest
import test_models as texts
import torch
import transformers
from conftest import BUILD
from experts import by_file_name
from safetensors.torch import load_file, save_file
from test_bf16 import APART, quartiles_apart
from test_models import relative_error

PROBE = BUILD / "vision_probe"
IMAGE, VIDEO, START, END = 300, 301, 302, 303
TOKENS = dict(image_token_id=IMAGE, video_token_id=VIDEO, vision_start_token_id=START, vision_end_token_id=END)
TEXT = dict(vocab_size=307, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512)
MROPE = dict(rope_type="default", rope_theta=1e6, mrope_section=[2, 3, 3])
HYBRID = TEXT | dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
                     linear_key_head_dim=16, linear_value_head_dim=8,
                     rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.5,
                                          mrope_section=[2, 1, 1], mrope_interleaved=True))
TOWER = dict(depth=3, hidden_size=32, intermediate_size=40, num_heads=2, patch_size=4, out_hidden_size=64)
# The class, the configuration of the language model and that of the tower.
MODELS = {
    "qwen2_vl": (transformers.Qwen2VLConfig, TEXT | dict(rope_parameters=MROPE),
                 dict(depth=3, embed_dim=32, hidden_size=64, mlp_ratio=2, num_heads=2, patch_size=4)),
    "qwen2_5_vl": (transformers.Qwen2_5_VLConfig, TEXT | dict(rope_parameters=MROPE),
                   TOWER | dict(window_size=16, fullatt_block_indexes=[1])),
    "qwen3_vl": (transformers.Qwen3VLConfig,
                 TEXT | dict(head_dim=16, rope_parameters=MROPE | dict(mrope_section=[4, 2, 2], mrope_interleaved=True)),
                 TOWER | dict(num_position_embeddings=25, deepstack_visual_indexes=[0, 1])),
    "qwen3_vl_moe": (transformers.Qwen3VLMoeConfig,
                     TEXT | dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                 mlp_only_layers=[1],
                                 rope_parameters=MROPE | dict(mrope_section=[4, 2, 2], mrope_interleaved=True)),
                     TOWER | dict(num_position_embeddings=25, deepstack_visual_indexes=[0, 1])),
    "qwen3_5": (transformers.Qwen3_5Config, HYBRID, TOWER | dict(num_position_embeddings=25)),
    "qwen3_5_moe": (transformers.Qwen3_5MoeConfig,
                    HYBRID | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
                                  shared_expert_intermediate_size=24),
                    TOWER | dict(num_position_embeddings=25)),
    # Pictures of 9 tokens, more than the window of the first layer; the others see the whole row.
    "gemma3": (transformers.Gemma3Config,
               TEXT | dict(head_dim=16, query_pre_attn_scalar=20, sliding_window=5, pad_token_id=None,
                           layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
               dict(num_hidden_layers=3, hidden_size=32, intermediate_size=40, num_attention_heads=2, patch_size=4,
                    image_size=24, vision_use_head=False)),
}
# Of pictures in patches: one whose sides differ, one of a single merged patch, one of many windows, one of several frames.
GRIDS = [[1, 4, 6], [1, 2, 2], [1, 10, 6], [3, 2, 4]]
# Gemma's pictures have one size.
GRIDS_OF = {"gemma3": [[1, 6, 6]] * 4}
# Names of the files that are one parameter here, or have another name.
OLD = {"qwen2_vl", "qwen2_5_vl"}


def is_of_tower(key):
    """Whether a parameter of transformers belongs to the tower."""
    return any(part in key for part in (".visual.", ".vision_tower.", ".multi_modal_projector."))


def make_model(name, **changes):
    kind, text, vision = MODELS[name]
    tokens = TOKENS
    if name == "gemma3":
        tokens = dict(image_token_index=IMAGE, boi_token_index=START, eoi_token_index=END, mm_tokens_per_image=9)
    config = kind(text_config=dict(text) | changes, vision_config=dict(vision), **tokens)
    torch.manual_seed(5)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32,
                                                                 attn_implementation="sdpa")
    from_zero = name in ("qwen3_5", "qwen3_5_moe", "gemma3")
    for key, parameter in model.named_parameters():
        if is_of_tower(key) and name == "gemma3" and "mm_soft" in key:
            parameter.data.uniform_(-0.5, 0.5)
        elif "norm" in key and key.endswith("weight") and not is_of_tower(key) and from_zero and "linear_attn" not in key:
            parameter.data.uniform_(-0.5, 0.5)
        elif ("norm" in key or "ln_q" in key) and key.endswith("weight"):
            parameter.data.uniform_(0.5, 1.5)
        elif key.endswith(("bias", "A_log", "conv1d.weight")):
            parameter.data.normal_(std=0.3)
        elif key.endswith("mlp.gate.weight"):  # large, so that few choices of experts are close
            parameter.data.normal_(std=0.5)
        else:
            parameter.data.normal_(std=0.15)
    return model.eval()


def make_row(grids, seed=3):
    """Text, pictures between, text: tokens, labels shifted, token types and features."""
    generator = torch.Generator().manual_seed(seed)
    tokens, types, features, first = [], [], [], 0
    for grid in grids + [None]:
        text = torch.randint(300, (5,), generator=generator).tolist()
        tokens += text
        types += [0] * 5
        features += [-1] * 5
        if grid is None:
            break
        count = grid[0] * grid[1] * grid[2] // 4
        tokens += [START] + [IMAGE] * count + [END]
        types += [0] + [1] * count + [0]
        features += [-1] + list(range(first, first + count)) + [-1]
        first += count
    labels = tokens[1:] + [-100]
    labels = [-100 if label >= 300 else label for label in labels]
    return torch.tensor(tokens), torch.tensor(labels), torch.tensor(types), features


def run_probe(folder, tmp_path, job, patches):
    (tmp_path / "job.json").write_text(json.dumps(job))
    save_file({"patches": patches}, tmp_path / "patches.safetensors")
    run = subprocess.run([PROBE, folder, tmp_path / "job.json", tmp_path / "patches.safetensors",
                          tmp_path / "result.safetensors"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return load_file(tmp_path / "result.safetensors")


def own_name(key):
    """Returns the program's name of a parameter of transformers."""
    if key.startswith("model.visual."):
        return key.removeprefix("model.")
    if is_of_tower(key):
        return key.replace("model.", "visual.", 1)
    return key.replace("model.language_model.", "model.")


def whole_pictures(patches):
    """Gemma's pictures of 6 x 6 patches, which are in blocks of 2 x 2."""
    return patches.view(-1, 3, 3, 2, 2, 3, 4, 4).permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(-1, 3, 24, 24)


def prepared(name, model, grids, dtype=torch.float32, **job):
    """A row: what transformers' model is given for it, its labels, the probe's job, and the patches."""
    tokens, labels, types, features = make_row(grids)
    size = 4 * 4 * 3 * (1 if name == "gemma3" else 2)
    patches = torch.randn(sum(t * h * w for t, h, w in grids), size, generator=torch.Generator().manual_seed(1)).to(dtype)
    job = dict(tokens=tokens.tolist(), labels=labels.tolist(), feature=features, grids=grids, merge_size=2) | job
    if name == "gemma3":
        given = dict(input_ids=tokens[None], token_type_ids=types[None], pixel_values=whole_pictures(patches))
        return given, labels, job | dict(positions=[], two_way=True), patches.float()
    given = dict(input_ids=tokens[None], mm_token_type_ids=types[None], image_grid_thw=torch.tensor(grids))
    positions, _ = model.model.get_rope_index(**given)
    return given | dict(pixel_values=patches), labels, job | dict(positions=positions[:, 0].tolist()), patches.float()


@torch.no_grad()
def features_of(model, given):
    """Features of the merger, then of each merger of deepstack, side by side."""
    pixels = given["pixel_values"].to(model.dtype)
    if "image_grid_thw" not in given:
        return model.model.get_image_features(pixels, return_dict=True).pooler_output.flatten(0, 1)
    output = model.model.get_image_features(pixels, given["image_grid_thw"], return_dict=True)
    deep = getattr(output, "deepstack_features", None) or []
    return torch.cat([torch.cat(list(part)) for part in [output.pooler_output, *deep]], 1)


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_towers_in_bf16(name, tmp_path):
    """As near to the truth as transformers' towers: test_bf16.py says why, and derives APART for 97 tokens."""
    # 100 tokens of text; of Qwen's pictures 92 features
    grids = GRIDS_OF["gemma3"][:1] * 19 if name == "gemma3" else [[1, 14, 14], [2, 6, 4], [1, 10, 6]] + [[1, 2, 2]] * 16
    torch.set_num_threads(1)
    in_bf16 = make_model(name).bfloat16()
    in_bf16.save_pretrained(tmp_path / "model")
    exact = copy.deepcopy(in_bf16).double()
    given, labels, job, patches = prepared(name, exact, grids, torch.bfloat16, parameter_dtype="bfloat16",
                                           compute_dtype="bfloat16")
    results = run_probe(tmp_path / "model", tmp_path, job, patches)
    truth, theirs = [features_of(model, given) for model in (exact, in_bf16)]
    assert 0 < max(quartiles_apart(results["features"], theirs, truth)) < APART
    for model in (exact, in_bf16):
        logits = model(**given | dict(pixel_values=given["pixel_values"].to(model.dtype))).logits[0]
        torch.nn.functional.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), labels).backward()
    apart = []
    for (key, right), other in zip(exact.named_parameters(), in_bf16.parameters()):
        if is_of_tower(key) and right.grad.norm() > 1e-6 and right.numel() >= 64:
            own = results["gradient." + own_name(key)]
            assert torch.cosine_similarity(own.double().flatten(), right.grad.flatten(), dim=0) > 0.5, key
            apart.append(relative_error(own, right.grad) / relative_error(other.grad, right.grad))
    assert 0 < torch.tensor(apart).median().item() < APART


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", list(MODELS))
def test_logits_and_gradients(name, checkpointing, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    given, labels, job, patches = prepared(name, model, GRIDS_OF.get(name, GRIDS), checkpointing=checkpointing,
                                           save_to=str(tmp_path / "saved"))
    logits = model(**given).logits[0]
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    results = run_probe(tmp_path / "model", tmp_path, job, patches)
    assert relative_error(results["features"], features_of(model, given)) < 1e-5
    assert relative_error(results["logits"], logits.detach()) < 1e-5
    assert abs(results["loss"].item() - loss.item()) < 1e-5
    expected_of = by_file_name({own_name(key): p.grad for key, p in model.named_parameters()})
    for key, expected in expected_of.items():
        gradient = results.pop("gradient." + key)
        if is_of_tower(f".{key}") and key.endswith("k_proj.bias"):
            # It adds the same to all scores of a query, where keys are not rotated: its gradient is 0.
            assert max(gradient.norm(), expected.norm()) < 1e-4 * expected_of[key.replace("k_proj", "q_proj")].norm(), key
        else:
            assert relative_error(gradient, expected) < 1e-4, key
    assert not [key for key in results if key.startswith("gradient.")]
    again, info = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    # Files of the same names as those that transformers wrote, which for Gemma are not the published ones.
    saved = load_file(tmp_path / "saved" / "model.safetensors").keys()
    assert {key.replace("vision_tower.vision_model.", "vision_tower.") for key in saved} == \
        load_file(tmp_path / "model" / "model.safetensors").keys()
    assert any(".vision_model." in key for key in saved) == (name == "gemma3")
    # And they are read again.
    assert torch.equal(run_probe(tmp_path / "saved", tmp_path, job, patches)["logits"], results["logits"])


@pytest.mark.parametrize("name", sorted(OLD))
def test_published_layout(name, tmp_path):
    """Files as they are published: a flat config.json and other names of tensors."""
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    text.pop("model_type")
    flat = text | config | dict(rope_theta=rope["rope_theta"],
                                rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(flat))
    tensors = {}
    for key, value in model.state_dict().items():
        key = key.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
        tensors[key] = value.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tokens, labels, types, features = make_row(GRIDS)
    patches = torch.randn(sum(t * h * w for t, h, w in GRIDS), 96, generator=torch.Generator().manual_seed(1))
    positions, _ = model.model.get_rope_index(input_ids=tokens[None], mm_token_type_ids=types[None],
                                              image_grid_thw=torch.tensor(GRIDS))
    job = dict(tokens=tokens.tolist(), labels=labels.tolist(), feature=features, grids=GRIDS, merge_size=2,
               positions=positions[:, 0].tolist())
    ours, expected = [run_probe(place, tmp_path, job, patches)["logits"] for place in (folder, tmp_path / "model")]
    assert torch.equal(ours, expected)
    loaded, info = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]


@pytest.mark.parametrize("name", list(MODELS))
def test_texts_alone(name, tmp_path):
    """Without pictures positions have one axis, and the tower is saved as it was read."""
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    documents = [40, 1, 23]
    tokens, labels = texts.make_row(300, documents)
    logits = texts.reference_logits(model, tokens, documents)
    torch.nn.functional.cross_entropy(logits, labels).backward()
    results = texts.probe(tmp_path / "model", tmp_path, tokens, labels, documents, ["logits", "gradients"],
                          save_to=str(tmp_path / "saved"))
    assert relative_error(results["logits"], logits.detach()) < 1e-5
    gradients = by_file_name({own_name(key): parameter.grad for key, parameter in model.named_parameters()
                              if not is_of_tower(key)})
    assert {f"gradient.{key}" for key in gradients} == {key for key in results if key.startswith("gradient.")}
    for key, expected in gradients.items():
        assert relative_error(results["gradient." + key], expected) < 1e-4, key
    again, info = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_published_experts(tmp_path):
    """Qwen3-VL's experts as they are published: matrices as [in, out]. transformers 5 writes them as [out, in]."""
    model = make_model("qwen3_vl_moe")
    model.save_pretrained(tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "published")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    turned = {key: value.transpose(1, 2).contiguous() if ".experts." in key else value for key, value in tensors.items()}
    assert any(turned[key].shape != value.shape for key, value in tensors.items())
    save_file(turned, tmp_path / "published" / "model.safetensors", {"format": "pt"})
    tokens, labels, types, features = make_row([])
    job = dict(tokens=tokens.tolist(), labels=labels.tolist(), feature=features, grids=[], merge_size=2,
               positions=[list(range(len(tokens)))] * 3, save_to=str(tmp_path / "saved"))
    patches = torch.zeros(1, 96)
    results = [run_probe(tmp_path / name, tmp_path, job, patches) for name in ("published", "model")]
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[1])
    assert relative_error(results[0]["logits"], model(input_ids=tokens[None]).logits[0].detach()) < 1e-5
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == tensors.keys() and all(torch.equal(saved[key], tensors[key]) for key in tensors)


# Adapters of linear layers: their names, and parts of the model that have none. Qwen2.5-VL's tower has layers of the language
# model's names.
ADAPTERS = {
    "tower and texts": ("qwen2_5_vl", ["qkv", "up_proj", "q_proj"], None),
    "texts alone": ("qwen2_5_vl", ["up_proj", "q_proj"], r".*visual.*"),
    "projectors": ("qwen3_vl", ["linear_fc1", "proj", "o_proj"], r".*patch_embed.*"),
    "hybrid": ("qwen3_5", ["linear_fc2", "in_proj_qkv"], None),
    "tower and texts of Gemma": ("gemma3", ["fc1", "out_proj", "q_proj"], None),
    "texts of Gemma": ("gemma3", ["v_proj", "up_proj"], r".*vision_tower.*"),
}


@pytest.mark.parametrize("case", ADAPTERS)
def test_adapters(case, tmp_path):
    name, modules, excluded = ADAPTERS[case]
    model = make_model(name)
    model.save_pretrained(tmp_path / "model")
    with_adapter = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=12, target_modules=modules,
                                                              exclude_modules=excluded, init_lora_weights=False))
    with_adapter.save_pretrained(tmp_path / "adapter")
    given = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert any(map(is_of_tower, given)) == (not case.startswith("texts"))
    inputs, labels, job, patches = prepared(name, model, GRIDS_OF.get(name, GRIDS), adapter=str(tmp_path / "adapter"),
                                            save_adapter_to=str(tmp_path / "saved"))
    logits = with_adapter(**inputs).logits[0]
    torch.nn.functional.cross_entropy(logits, labels).backward()
    results = run_probe(tmp_path / "model", tmp_path, job, patches)
    assert relative_error(results["logits"], logits.detach()) < 1e-5
    trained = {own_name(key.removeprefix("base_model.model.").replace(".default.", ".")): parameter.grad
               for key, parameter in with_adapter.named_parameters() if parameter.requires_grad}
    gradients = {key.removeprefix("gradient."): value for key, value in results.items() if key.startswith("gradient.")}
    assert gradients.keys() == trained.keys()
    for key, expected in trained.items():
        assert relative_error(gradients[key], expected) < 1e-4, key
    # What is saved has PEFT's names, and PEFT puts an adapter on nothing else.
    saved = load_file(tmp_path / "saved" / "adapter_model.safetensors")
    assert saved.keys() == given.keys() and all(torch.equal(saved[key], given[key]) for key in given)
    again = peft.PeftModel.from_pretrained(make_model(name), tmp_path / "saved")
    assert {key for key, _ in again.named_parameters() if "lora_" in key} == \
        {key for key, _ in with_adapter.named_parameters() if "lora_" in key}
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits[0], logits.detach())
