"""Counts of null GPUs (test_null_cuda.py) beside the formulas of tools/roofline: bytes through network cards, and FLOPs of
gemms."""

import dataclasses
import importlib.machinery
import importlib.util
import sys

import pytest
from conftest import ROOT
from test_null_cuda import LARGE, TOKENS, WIDE, large, pytestmark, start, train  # noqa: F401


def load_roofline():
    loader = importlib.machinery.SourceFileLoader("roofline", str(ROOT / "tools" / "roofline"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("roofline", loader))
    sys.modules["roofline"] = module  # its dataclasses look for it
    loader.exec_module(module)
    return module


# Bytes that four ranks, two on each of two machines, send through their network cards in a step, beside the formulas of
# tools/roofline: keys, and Send of each rank, ReduceScatter of each rank.
CARDS = {
    "heads": dict(sequence_parallel_mode="ulysses", zero_stage=3),
    "a ring, gradients exchanged": dict(sequence_parallel_mode="zigzag-ring", zero_stage=3, reduce_scatter="exchange"),
    "both": dict(sequence_parallel_mode="usp", sequence_parallel_ulysses_degree=2, zero_stage=2),
}


WARM_UP = 64 << 10  # bytes, at most


@pytest.mark.parametrize("way", CARDS)
def test_bytes_through_network_cards(large, train, way):
    roofline = load_roofline()
    folder, rows = large("dense")
    shape = roofline.Model("dense", D=WIDE["hidden_size"], I=WIDE["intermediate_size"], N=WIDE["num_attention_heads"],
                           M=WIDE["num_key_value_heads"], L=WIDE["num_hidden_layers"], V=WIDE["vocab_size"])
    _, counts = train(4, dict(NULL_CUDA_MEMORY=str(80 << 10), NULL_NCCL_MACHINE="2"), **dict(
        model=folder, dataset_dir=rows, cutoff_len=TOKENS, max_steps=1, gradient_accumulation_steps=1,
        sequence_parallel_size=4) | CARDS[way])
    gradients = 4 * (shape.parameters + (2 * shape.L + 1) * shape.D)  # with norms
    world = roofline.Group.of(4, machine=2)
    heads = world.exchange(roofline.ulysses_bytes(shape, TOKENS, world))[1]
    ring = world.hops(roofline.ring_bytes(shape, TOKENS, 4))[1]
    exchanged, summed = world.exchange(gradients)[1], world.ring(gradients)[1]
    across = roofline.Group(2, 1).hops(roofline.ring_bytes(shape, TOKENS, 2, heads=shape.M // 2))[1]
    sends, sums = {"heads": ([heads] * 4, summed), "both": ([across] * 4, summed),
                   "a ring, gradients exchanged": ([exchanged] * 2 + [exchanged + ring] * 2, 0)}[way]
    sent = [rank["card_bytes"] for rank in counts]
    exchanges = sorted(rank.get("Send", 0) + rank.get("AlltoAll", 0) for rank in sent)
    # The collectives that warm the groups up (comm/warm_up.h), and texts of all ranks, come on top.
    for found, formula in zip(exchanges + [rank.get("ReduceScatter", 0) for rank in sent], sends + [sums] * 4):
        assert formula <= found <= formula + WARM_UP, sent
    if CARDS[way]["zero_stage"] == 3:
        # A layer's matrices in bf16 forward, backward and for the file. Norms, and the embedding and the head, which nothing
        # needs again in the backward, are gathered in fp32; the last norm once.
        layer = 3 * (2 * shape.layer + 4 * 2 * shape.D)
        formula = world.ring(shape.L * layer + 2 * 4 * 2 * shape.V * shape.D + 4 * shape.D)[1]
        for rank in sent:
            assert formula <= rank["AllGather"] <= formula + WARM_UP, sent


# Rows that each of four ranks sends to each of 16 experts, four on a rank: a rank's tokens, four times. Each rank has other
# counts, some experts get none, and the first rank's get most.
ROUTED_TOKENS = 8192
PAIRS = ROUTED_TOKENS // 4 * 4
ROUTES = [
    [PAIRS - 1500, 0, 900, 0, 0, 0, 0, 100, 0, 0, 0, 0, 500, 0, 0, 0],
    [0, 1, 2, 3, PAIRS - 4006, 4000] + [0] * 10,
    [PAIRS // 2, 0, 0, 0, PAIRS // 4, 0, 0, 0, PAIRS // 8, 0, 0, 0, PAIRS // 8, 0, 0, 0],
    [0] * 8 + [7] * 4 + [PAIRS - 28, 0, 0, 0],
]
MESSAGE = 1024  # bytes of each message that warms a group up


@pytest.mark.long
def test_bytes_of_experts_follow_their_rows(large, train):
    """A row travels from its rank to the rank of its expert, whatever their machines. A card sends and receives the bytes of the
    roofline's formula for these rows, and whole messages that warm groups up."""
    roofline = load_roofline()
    folder, rows = large("mixture")
    assert all(sum(counts) == PAIRS for counts in ROUTES)
    # The host reads a rank's rows for each expert, and those that arrive from each rank for each of its own experts.
    lists = [counts + [number for other in ROUTES for number in other[4 * rank:4 * rank + 4]]
             for rank, counts in enumerate(ROUTES)]
    told = f"{32 * 8}:" + ";".join(",".join(map(str, numbers)) for numbers in lists)
    _, counts = train(4, dict(NULL_CUDA_MEMORY=str(80 << 10), NULL_NCCL_MACHINE="2", NULL_CUDA_COUNTS=told), **dict(
        model=folder, dataset_dir=rows, cutoff_len=ROUTED_TOKENS, max_steps=1, gradient_accumulation_steps=1,
        sequence_parallel_size=4, sequence_parallel_mode="ulysses", expert_parallel_size=4))
    world, shape = roofline.Group.of(4, machine=2), LARGE["mixture"][1]
    attention = roofline.Model("attention", D=shape["hidden_size"], I=0, N=shape["num_attention_heads"],
                               M=shape["num_key_value_heads"], L=shape["num_hidden_layers"], V=0)
    heads = world.exchange(roofline.ulysses_bytes(attention, ROUTED_TOKENS, world))[1]
    routing = roofline.Routing(tuple(tuple(sum(own[4 * to:4 * to + 4]) for to in range(4)) for own in ROUTES), machine=2)
    for rank, found in enumerate(counts):
        formula = routing.through_card(rank, 2 * shape["hidden_size"], counts=8 * 4)
        for way, bytes_of_rows in zip(("Send", "Recv"), formula):
            extra = found["card_bytes"].get(way, 0) + found["card_bytes"].get("AlltoAll", 0) - heads - bytes_of_rows
            assert 0 <= extra <= WARM_UP and extra % MESSAGE == 0, (rank, way, extra, found["card_bytes"], formula)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hybrid", "hybrid mixture"])
def test_flops_of_gemms_are_the_rooflines(large, train, name):
    """FLOPs of cuBLAS: all but attention, the states of recurrences and routed experts, whose kernels null GPUs do not look
    into. The last layer's output and feed-forward, and the head, have only rows with a label, which are a whole number."""
    load_roofline()
    mixed = sys.modules["roofline_mixed"]
    folder, rows = large(name)
    sizes = {field.name for field in dataclasses.fields(mixed.Mixed)}
    shape = {key: size for key, size in LARGE[name][1].items() if key in sizes}
    model = mixed.Mixed(**shape | dict(name=name, full_attention_interval=4))
    tokens = 4096
    _, (counts,) = train(1, dict(NULL_CUDA_MEMORY=str(80 << 10)), model=folder, dataset_dir=rows, cutoff_len=tokens,
                         max_steps=1, gradient_accumulation_steps=1, kept_mlp_layers=0)
    one = 2  # of the product of two numbers with which cuBLAS is loaded
    flops = sum(counts["gemm_flops"].values()) - one
    output = 4 * 2 * model.hidden_size * model.queries
    last = output + mixed.feed_forward_flops(model)
    of_rows = mixed.product_flops(model) + model.recurrences * sum(mixed.rule_step(model)[:2]) - last
    labels, rest = divmod(flops - tokens * of_rows, last + 6 * model.head)
    assert rest == 0 and tokens - 16 < labels < tokens, (labels, rest, counts["gemm_flops"])
