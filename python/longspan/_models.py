"""The models that parallelize() takes, and their heads."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from longspan import _pictures
from longspan._loss import world_size
from longspan._rows import TAKEN_KEYS
from longspan.attention import Heads
from longspan.errors import UsageError

# Model types (config.model_type of the text part) that tests compare with one process.
CHECKED_TYPES = frozenset(["gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "phi3", "qwen2",
                           "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next"])

_LAYER_TYPES = frozenset(["full_attention", "sliding_attention", "linear_attention"])

# Names of models whose outputs are numbers of single tokens: language models, and models without a head.
_CLASSES = re.compile(r"(ForCausalLM|ForConditionalGeneration|(?<!PreTrained)Model)$")
# Names of models with heads over the tokens of a whole row, also of their bases.
_OTHER_HEADS = re.compile(r"For(Sequence|Token|Question|Multiple|NextSentence|Image|Audio|Masked)|DoubleHeads")


def heads_of(config: Any) -> list[Heads]:
    """Returns the kinds of attention of a model."""
    num_heads = config.num_attention_heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    if types is None:
        types = ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers
    kinds = []
    for kind in ("full_attention", "sliding_attention"):
        if count := list(types).count(kind):
            kinds.append(Heads(num_heads, num_kv_heads, head_dim, head_dim,
                               window if kind == "sliding_attention" else 0, count))
    if not kinds:
        raise UsageError(f"{config.model_type}: no layer has softmax attention, and at least one must")
    return kinds


def check_token_keys(token_keys: Any) -> None:
    if token_keys is None:
        return
    if not isinstance(token_keys, Mapping) or not all(isinstance(name, str) for name in token_keys) or not all(
            isinstance(number, Real) for number in token_keys.values()):
        raise UsageError(f"token_keys is {token_keys!r}, and must map names of keys to numbers of padding tokens, such as "
                         "{'weights': 0.0}")
    if taken := sorted(TAKEN_KEYS & set(token_keys)):
        raise UsageError(f"token_keys has {', '.join(taken)}, which longspan cuts itself: name only further keys of batches")


def base_of(model: torch.nn.Module) -> torch.nn.Module:
    """Returns transformers' model inside PEFT's. Raises UsageError for everything else that encloses a model, and for parameters
    that are sharded in another way than by DeepSpeed or by fully_shard() for the whole model, over all ranks."""
    from transformers import PreTrainedModel

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, and must be a model of transformers or PEFT")
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded where nobody has imported the module
    is_shard = fsdp is not None and isinstance(model, fsdp.FSDPModule)
    for parameter in model.parameters():
        mesh = getattr(parameter, "device_mesh", None)
        is_other = mesh is not None and not (is_shard and mesh.ndim == 1 and mesh.size() == world_size())
        if is_other or type(parameter).__name__ == "FlatParameter":
            raise UsageError("the model's parameters are sharded: call parallelize() before FSDP, tensor parallelism or "
                             "accelerator.prepare()")
    if isinstance(model, PreTrainedModel):
        return _unused(model)
    if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
        kinds = {str(getattr(one, "peft_type", "")).split(".")[-1] for one in model.peft_config.values()}  # pyright: ignore
        if prompts := kinds & {"PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT"}:
            raise UsageError(f"PEFT's {', '.join(sorted(prompts))} puts tokens before each row: use LoRA or another adapter "
                             "of weights")
        return base_of(model.get_base_model())  # pyright: ignore[reportCallIssue]
    raise UsageError(f"the model is a {type(model).__name__}, and must be a model of transformers or PEFT that no wrapper "
                     "(DDP, FSDP, DeepSpeed, torch.compile) encloses yet: call parallelize() first, and then the wrapper")


def _unused(model: torch.nn.Module) -> torch.nn.Module:
    if getattr(model, "_longspan_key", None) is not None:
        raise UsageError("parallelize() was called for this model before: call it once for each model")
    return model


def text_config_of(model: Any, allow_unchecked: bool) -> Any:
    config = model.config
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{name}: a model of an encoder and a decoder is not supported, only decoders")
    text = config.get_text_config()
    if text is not config and name not in _pictures.CHECKED_TYPES:
        raise UsageError(f"{name}: a model with other parts than its language model ({', '.join(config.sub_configs)}) is "
                         f"not supported, except {', '.join(sorted(_pictures.CHECKED_TYPES))}: load the language model "
                         "alone, with AutoModelForCausalLM")
    if getattr(text, "is_causal", True) is False or getattr(text, "use_bidirectional_attention", False):
        raise UsageError(f"{name}: attention of this config is not causal, and only causal attention is supported")
    if dropout := getattr(text, "attention_dropout", 0.0):
        raise UsageError(f"{name}: attention_dropout is {dropout}, and must be 0: set model.config.attention_dropout = 0 "
                         "before the model is made")
    unknown = set(getattr(text, "layer_types", None) or []) - _LAYER_TYPES
    if unknown:
        raise UsageError(f"{name}: layers of the type {', '.join(sorted(unknown))} are not supported; supported are "
                         f"{', '.join(sorted(_LAYER_TYPES))}")
    if text is config and text.model_type not in CHECKED_TYPES and not allow_unchecked:
        raise UsageError(f"model type {text.model_type} was never compared with training on one process; checked are "
                         f"{', '.join(sorted(CHECKED_TYPES))}: pass allow_unchecked=True and compare the loss and the norm "
                         "of gradients of a few steps")
    names = [kind.__name__ for kind in type(model).__mro__]
    if any(map(_OTHER_HEADS.search, names)) or not (allow_unchecked or any(map(_CLASSES.search, names))):
        raise UsageError(f"{type(model).__name__}: other heads than a language model's are not supported, as a rank has a part of "
                         "each row: load the model with AutoModelForCausalLM, or without a head with AutoModel")
    if not model._can_set_attn_implementation():
        raise UsageError(f"{name}: the model does not call transformers' AttentionInterface, so attention cannot be replaced")
    return text
