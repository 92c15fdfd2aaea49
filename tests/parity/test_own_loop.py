"""examples/library.cpp, a loop with a token-weighted loss, beside the same loop written with PyTorch by hand."""

import json
import re
import subprocess

import torch
from conftest import ADAM_EPSILON, BUILD, write_model

RATE, NUM_STEPS = 1e-3, 5


def test_a_weighted_loss_of_ones_own_is_that_of_a_loop_by_hand(tmp_path):
    from transformers import AutoModelForCausalLM

    model_folder = tmp_path / "model"
    write_model(model_folder, "qwen2")
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    rows = []
    for step in range(NUM_STEPS):
        ids = torch.randint(0, model.config.vocab_size, (40 + step,), generator=generator)
        weights = torch.rand(len(ids), generator=generator, dtype=torch.float64)
        rows.append((ids, weights))
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps(dict(ids=ids.tolist(), weights=weights.tolist())) + "\n" for ids, weights in rows)
    )
    config = dict(model_name_or_path=str(model_folder), learning_rate=RATE, finetuning_type="full", device="cpu",
                  adam_epsilon=ADAM_EPSILON)
    (tmp_path / "config.json").write_text(json.dumps(config))
    run = subprocess.run(
        [BUILD / "example_library", tmp_path / "config.json", tmp_path / "rows.jsonl", tmp_path / "trained"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    ours = [float(loss) for loss in re.findall(r"loss ([-+.\de]+),", run.stdout)]

    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, eps=ADAM_EPSILON)
    theirs = []
    for ids, weights in rows:
        logprobs = model(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        loss = -(weights[1:] * logprobs).sum() / weights[1:].sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    assert len(ours) == NUM_STEPS
    for our, their in zip(ours, theirs):
        assert abs(our - their) <= 1e-6 * their, (ours, theirs)
