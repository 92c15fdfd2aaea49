"""Small models of transformers' families, and training without Longspan to compare with."""

import torch

TEXT = dict(vocab_size=96, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=6,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=False,
            use_cache=False)  # with a cache transformers ignores the documents of packed rows
OPTIONS = {
    "llama": {},
    "qwen2": {},
}


def small_model(family, **options):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **TEXT | OPTIONS[family] | options)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


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


def train(model, batches, accumulation=1):
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
        return results, [model(**batch).loss.item() for batch in list(batches)[:2]]
