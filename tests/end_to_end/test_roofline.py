"""tools/roofline: its launches are held to what null GPUs count and its seconds to what an H100 took, its FLOPs to those of MFU,
and docs/gpu-measurements.md has its tables."""

import dataclasses
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROOFLINE = ROOT / "tools" / "roofline"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests" / "gpu")]

import roofline_mixed as mixed  # noqa: E402
import roofline_steps as steps  # noqa: E402
import runs  # noqa: E402


def run(path, *arguments):
    return subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True)


def test_it_is_as_near_as_it_says():
    ended = run(ROOFLINE, "--check")
    assert ended.returncode == 0, ended.stderr
    assert "counted" in ended.stdout and "measured" in ended.stdout


def test_the_page_says_what_it_prints():
    ended = run(ROOFLINE)
    assert ended.returncode == 0, ended.stderr
    page = (ROOT / "docs" / "gpu-measurements.md").read_text().splitlines()
    lines = [line for line in ended.stdout.splitlines() if line.startswith("| ")]
    assert len(lines) > 12
    for line in lines:
        assert line in page, line


def test_useful_flops_are_those_of_mfu():
    """tests/gpu/runs.py counts them for measured runs. Queries also see themselves."""
    tokens = 32768
    for model, shape in ((mixed.HYBRID, "qwen3.5-9b-of-4-layers"), (mixed.MIXTURE, "30b-a3b-of-2-layers")):
        model = dataclasses.replace(model, num_hidden_layers=runs.SHAPES[shape]["num_hidden_layers"])
        themselves = 6 * model.queries * tokens * model.attentions
        assert mixed.useful_flops(model, tokens) + themselves == runs.flops(shape, tokens, tokens), shape


def test_parts_of_a_small_model_by_hand():
    model = mixed.Mixed("by hand", hidden_size=2, num_hidden_layers=2, vocab_size=8, num_attention_heads=1,
                        num_key_value_heads=1, head_dim=4, full_attention_interval=2, linear_num_key_heads=1,
                        linear_num_value_heads=2, linear_key_head_dim=3, linear_value_head_dim=5, num_experts=4,
                        num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=7)
    assert model.attention == 2 * (4 + 4 + 4 + 4 + 4)  # queries, their gate, keys, values, output
    assert model.recurrence == 2 * ((3 + 3 + 10) + 10 + 10 + 2 * 2)  # channels, gate, output, two gates of each head
    assert model.expert == 3 * 2 * 6 and model.router == 2 * (4 + 1)
    assert model.parameters == model.attention + model.recurrence + 2 * (4 * 36 + 3 * 2 * 7 + 10) + 2 * 8 * 2
    # A token's row of 64: products with one key head's keys twice; of two value heads, the inverse with keys and values, the
    # state's output, the chunk's.
    assert mixed.rule_gemms(model) == 2 * (2 * 64 * 3 + 2 * (64 * 3 + 64 * 5 + 3 * 5 + 64 * 5))
    inverse, out, states, keys = 2 * 64 * (3 + 5), 2 * (3 + 64) * 5, 2 * 3 * 5, 2 * 2 * 64 * 3  # of a token and a head
    # In a step products with the inverse three times, outputs of the chunk twice, and two gradients of each; two of the scan.
    gemms, of_keys, inverses, scans = mixed.rule_step(model)
    assert gemms == 2 * (5 * inverse + 4 * out + 2 * states) and of_keys == 5 * keys
    assert inverses == 2 * (3 + 4) * 64 * 64 and scans == 2 * 4 * 2 * states
    # Mixers: forward, again, and two gradients; queries, gates and keys once more. The router: four. The shared expert: three,
    # three again, two again, six gradients.
    assert mixed.product_flops(model) == 2 * (4 * (40 + 80) + 2 * (4 + 4 + 4) + 2 * (4 * 10 + 14 * 14))
    # Two experts of a token in two layers: three gemms, two again, three gradients of rows; three of matrices; 12 numbers each.
    assert mixed.expert_flops(model) == (2 * 2 * 2 * 8 * 12, 2 * 2 * 2 * 3 * 12)


def test_rows_of_experts_by_hand():
    """Two machines of one GPU. Three rows of ten bytes leave the first one, and two come to it."""
    routing = mixed.Routing(((5, 3), (2, 7)), machine=1)
    own, others = 3 * 10 + 4, 2 * 10 + 4
    assert routing.through_card(0, 10, counts=8) == (3 * own + 2 * others + 8, 2 * own + 3 * others + 8)
    assert routing.through_card(1, 10, counts=8) == (2 * own + 3 * others + 8, 3 * own + 2 * others + 8)
    even, _ = mixed.routing_of(mixed.MIXTURE, 1 << 20, 128, "even")
    assert even.busiest(2 * 2048) == even.rows[0][0] * 120 * (5 * 2 * 2048 + 2 * 4)
    for kind in ("even", "1/n", "the same"):
        shares = mixed.shares_of(16, 64, 4, kind)
        assert abs(sum(shares) - 1) < 1e-12 and max(shares) <= 1, (kind, shares)
    assert mixed.shares_of(16, 64, 4, "the same")[0] == 1  # four experts of a rank


def test_tiles_of_experts_by_hand():
    """Of 3072 tokens each of 128 experts gets 192 rows, a tile and a half, and of 1024 a half."""
    assert steps.experts_part(mixed.MIXTURE, 3072, 1, 1, steps.AFTER)[1:] == (192, 0.75)
    assert steps.experts_part(mixed.MIXTURE, 1024, 1, 1, steps.AFTER)[1:] == (64, 0.5)


def test_parts_of_a_row():
    """As docs/gpu.md says of Qwen3.5's heads."""
    parts = {tokens: steps.num_parts(mixed.HYBRID, tokens) for tokens in (15360, 15361, 65536, 131072, 1 << 20)}
    assert parts == {15360: 1, 15361: 2, 65536: 5, 131072: 5, 1 << 20: 5}


def test_calls_of_attention_by_hand():
    """131,072 rows of 16 heads of 256 numbers fit in 2 GiB; a call in parts has 128 queries less."""
    calls = {tokens: steps.attention_calls(mixed.HYBRID, tokens) for tokens in (130944, 130945, 2 * 130944, 2 * 130944 + 1)}
    assert calls == {130944: 1, 130945: 2, 2 * 130944: 2, 2 * 130944 + 1: 3}


def test_bytes_of_the_rule_by_hand():
    """One key head and one value head of two numbers: in each chunk of 64 tokens, what operations read and write in fp32 and in
    bf16."""
    model = mixed.Mixed("by hand", 1, 2, 1, 1, 1, 1, full_attention_interval=2, linear_num_key_heads=1,
                        linear_num_value_heads=1, linear_key_head_dim=2, linear_value_head_dim=2)
    K = V = 64 * 2  # numbers of a matrix of keys
    square, state = 64 * 64, 2 * 2
    left, right, held = K + square, K + V, state + V
    heads, products = 2 * K, 2 * square
    wide = 3 * (heads + (heads + K + products) + (products + heads))  # of length one, their products, what operands read
    wide += products + heads + 2 * heads - heads + products  # gradients of operands; there is no earlier value head
    wide += heads + products + K + heads  # added to gradients of heads, which are read and written
    wide += K + products + heads + K + heads  # the same of keys; gradients of queries and keys
    narrow = 3 * (heads + (V + left + right + K + square) + (square + right + right) + (K + K + V + V + state))
    narrow += 2 * ((left + held + V) + V + V) + V + V  # outputs, in the order of tokens; their gradients in chunks
    narrow += 2 * (left + V + held) + 2 * (V + state + K) + 2 * (right + right + square)  # gradients of gemms
    narrow += K + K + V + V + state + state  # the scan in reverse
    narrow += square + square + left + right + K + state + state + V + V + heads + heads
    assert mixed.rule_bytes(model) == (4 * wide + 2 * narrow) / 64
