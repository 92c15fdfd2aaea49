"""Small models of transformers' families, and training without Longspan to compare with."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TEXT = dict(vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=False,
            use_cache=False)  # with a cache transformers ignores the documents of packed rows
LINEAR = dict(layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=8, linear_value_head_dim=6)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
OPTIONS = {
    "llama": {},
    "qwen2": {},
    "qwen3": dict(use_sliding_window=True, sliding_window=9, max_window_layers=1),
    "mistral": dict(sliding_window=9),
    "phi3": dict(sliding_window=None, pad_token_id=0),
    "gemma2": dict(sliding_window=9, layer_types=["sliding_attention", "full_attention"], attn_logit_softcapping=0.5,
                   query_pre_attn_scalar=1, initializer_range=0.1, attn_implementation="eager"),
    "gemma3_text": dict(sliding_window=9, layer_types=["sliding_attention", "full_attention"]),
    "gpt_oss": dict(sliding_window=9, layer_types=["sliding_attention", "full_attention"], num_local_experts=4,
                    num_experts_per_tok=2),
    "qwen3_next": LINEAR | EXPERTS | dict(shared_expert_intermediate_size=32),
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR | EXPERTS | dict(shared_expert_intermediate_size=32),
    "qwen3_moe": EXPERTS | dict(norm_topk_prob=True),
    "qwen3_vl_moe_text": EXPERTS,
}


def small_model(family, **options):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **TEXT | OPTIONS[family] | options)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return func(*args, **kwargs or {})


def uneven_batches(count, rows=2, tokens=41):
    """Batches with padding at the right, and labels of a part of the tokens."""
    generator = torch.Generator().manual_seed(5)
    batches = []
    for step in range(count):
        ids = torch.randint(1, 96, (rows, tokens), generator=generator)
        mask = torch.ones_like(ids)
        mask[1:, tokens - 7 - step % 5:] = 0
        labels = ids.masked_fill((mask == 0) | (torch.rand(ids.shape, generator=generator) < 0.3), -100)
        batches.append(dict(input_ids=ids * mask, attention_mask=mask, labels=labels))
    return batches


def packed_batches(count, lengths=(17, 5, 12)):
    """Batches of one packed row."""
    generator = torch.Generator().manual_seed(6)
    batches = []
    for _ in range(count):
        ids = torch.randint(1, 96, (1, sum(lengths)), generator=generator)
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        batches.append(dict(input_ids=ids, position_ids=positions, labels=ids.masked_fill(positions == 0, -100)))
    return batches


def unpacked(batch):
    """The documents of a packed row as rows of their own. transformers' gpt-oss and gated delta networks ignore documents."""
    if "position_ids" not in batch:
        return batch
    ends = [*(batch["position_ids"][0] == 0).nonzero().view(-1).tolist(), batch["input_ids"].shape[1]]
    parts = [slice(a, b) for a, b in zip(ends, ends[1:])]

    def stack(row, padding):
        return torch.nn.utils.rnn.pad_sequence([row[0, part] for part in parts], True, padding)

    return dict(input_ids=stack(batch["input_ids"], 0), labels=stack(batch["labels"], -100),
                attention_mask=stack(torch.ones_like(batch["input_ids"]), 0))


def train(model, batches, accumulation=1, evaluated=2):
    """A plain loop. Returns the loss and the norm of gradients of each step, and the loss of evaluation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-2)
    results, losses = [], []
    model.train()
    for number, batch in enumerate(batches, 1):
        loss = model(**batch).loss / accumulation
        loss.backward()
        losses.append(loss.item())
        if number % accumulation == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            results.append((sum(losses), norm.item()))
            losses = []
    model.eval()
    with torch.no_grad():
        return results, [model(**batch).loss.item() for batch in list(batches)[:evaluated]]
