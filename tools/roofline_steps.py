"""Launches, seconds and tables of the hybrids and mixtures of roofline_mixed.py, for tools/roofline."""

import math
from dataclasses import dataclass, replace

from roofline_machine import (AFTER, BEFORE, LAUNCH, MACHINE, MEMORY, NETWORK, PEAK, Group, Part, attention_part, gathers_of,
                              head_part, num_chunks, optimizer_part, seconds_of, states_part, sums_of)
from roofline_mixed import (BOTH, C, HYBRID, MIXTURE, SCANS, expert_bytes, expert_flops, heads_of, mixer_bytes, product_flops,
                            routing_of, row_bytes, rule_bytes, rule_numbers_before, rule_step, rule_step_before, useful_flops)

SEGMENT = 512  # tokens that one pass of the gated delta rule took before there were kernels for recurrences
# Bytes of the backward of a part of a row, or so many tensors [tokens, value heads, key dim] (longspan/spec/composed_rule.h).
RULE_BYTES, RULE_TENSORS, LEAST_CHUNKS = 2 << 30, 4, 8
FP32 = 67e12  # data sheet of an H100 SXM: fp32 FLOP/s without tensor cores. No batched gemm has been measured.
# Multiprocessors, their fp32 lanes, each with a product and a sum at once, and clocks/s; columns of a block (delta_arguments.h).
MULTIPROCESSORS, LANES, SCAN_COLUMNS = 132, 128, (16, 32)
CLOCK = FP32 / (2 * LANES * MULTIPROCESSORS)
# FLOP/s of gemms of experts in bf16, and of the gradients of their matrices; measured on an H200 with 1024 rows for each
# expert (docs/gpu-measurements.md): all experts at once, and one after the other.
GROUPED, ONE_BY_ONE = (223e12, 175e12), (149e12, 145e12)
IN_FP32 = 88e12  # all at once, matrices in fp32, which gemms of few rows read as they are
CAST_ROWS = 128  # of an expert, from which on a pass casts its matrices first (longspan/spec/expert_casts.h)
TILE = 128  # rows of an expert that a block computes
# Before recurrences had kernels and experts were computed at once.
APART = replace(AFTER, name="before")


# Launches

@dataclass(frozen=True)
class MixedLaunches:
    """Kernels of a step beside those of tools/roofline, as null GPUs count them: of steps that differ in one number alone."""

    period: int  # layers up to an attention, whatever their rows
    inputs: int  # of a period, for each chunk of the steps before mixers: forward, again, backward
    feed_forward: int  # of a layer, for each chunk of those behind them
    last: int  # the same in the last layer, which computes rows with a label alone
    last_layer: int = 0  # of the last layer, whatever its rows


STEP, HEAD = AFTER.launches.step, AFTER.launches.head
UPDATED_AT_ONCE, NORMS_AT_ONCE, INDEXED = 2240 * 65536, 128, 2**31  # as in tools/roofline
PART = 7 + 7 + 16  # kernels of a part of a row in a recurrence: forward, again, backward
# Bytes of accumulators in a call of flash attention 2's backward, and rows beside a document's (attention/flash_accumulators.h);
# kernels of each further call, with which a rank's sums take one kernel more than the casts of a single call.
ACCUMULATORS, ROWS_BESIDE, CALL = 2 << 30, 128, 9
SEGMENT_BEFORE = 587  # of a segment, before there were kernels for recurrences: two counts, to 0.1 %
EXPERT_BEFORE = 39  # of an expert, before all were computed at once
COUNTED_LAUNCHES = {
    HYBRID.name: MixedLaunches(period=291, inputs=99, feed_forward=25, last=28),
    MIXTURE.name: MixedLaunches(period=32, inputs=29, feed_forward=99, last=102, last_layer=10),
    BOTH.name: MixedLaunches(period=425, inputs=75, feed_forward=159, last=159),
}


def num_parts(model, tokens):
    """Parts of a row in the rule, by the bytes of a chunk in its backward: matrices of value heads in bf16, of key heads in fp32
    (longspan/spec/composed_rule.cpp)."""
    if not model.is_hybrid:
        return 0
    M, N, K, W = heads_of(model)
    operands = C * (2 * K + C + K + W + C) + 2 * (K + C) * W
    chunk = max(2 * N * (operands + C * (K + W) + C * max(W, C)) + 4 * M * C * (2 * K + 2 * C),
                2 * N * (operands + C * C) + 4 * M * C * (4 * K + 2 * C))
    chunks, room = math.ceil(tokens / C), max(RULE_BYTES, RULE_TENSORS * tokens * 2 * N * K)
    parts = math.ceil(chunks / max(LEAST_CHUNKS, int(room // chunk)))
    return math.ceil(chunks / math.ceil(chunks / parts))  # of equal size


def attention_calls(model, tokens):
    """Calls of flash attention 2's backward of one document: null GPUs have no cuDNN, which takes heads of up to 128 numbers."""
    multiple = 32 if model.head_dim <= 128 else 64
    padded = math.ceil(model.head_dim / multiple) * multiple
    rows = ACCUMULATORS // (4 * model.num_attention_heads * padded)
    return 1 if tokens + ROWS_BESIDE <= rows else math.ceil(tokens / (rows // ROWS_BESIDE * ROWS_BESIDE - ROWS_BESIDE))


# A step

def chunks_of(model, tokens, way):
    """Numbers of chunks of attention, of recurrences, and of feed-forwards."""
    D, least = model.hidden_size, 1024
    mixers = [num_chunks(tokens, 2 * max(D, width), way.input_bytes)
              for width in ((1 + model.is_hybrid) * model.queries, model.channels)]
    width = model.intermediate_size
    if model.num_experts:
        width = max(model.num_experts_per_tok * model.moe_intermediate_size, model.shared_expert_intermediate_size)
        least = 256 * math.ceil(model.num_experts / model.num_experts_per_tok)
    return *mixers, num_chunks(tokens, 2 * width, way.feed_forward_bytes, least=least)


def cut_to(model, layers, **others):
    return replace(model, name=f"{model.name}, {layers} layers", num_hidden_layers=layers, **others)


def counted():
    """(model, tokens, launches of a step on one null GPU, most apart, arguments of tests/null_cuda/large_step.py). 90 % of the
    tokens have a label."""
    hybrid, mixture, both = "qwen3.5-9b-of-4-layers", "30b-a3b-of-2-layers", "qwen3-next-of-4-layers"
    kept = " kept_mlp_layers=0"
    return ((cut_to(HYBRID, 4), 8192, 761, 0, f"{hybrid} 8192{kept}"),
            (cut_to(HYBRID, 4), 32768, 1866, 0, f"{hybrid} 32768{kept}"),
            (cut_to(HYBRID, 8), 32768, 3631, 0, f"{hybrid} 32768{kept} --memory 160 --config num_hidden_layers=8"),
            (cut_to(HYBRID, 4), 65536, 3217, 0, f"{hybrid} 65536{kept} --memory 160"),
            (cut_to(HYBRID, 4), 131072, 5536, 0, f"{hybrid} 131072{kept} --memory 400"),  # two calls of attention's backward
            (cut_to(MIXTURE, 2), 16384, 479, 0, f"{mixture} 16384"),
            (cut_to(MIXTURE, 4), 16384, 882, 1, f"{mixture} 16384 --memory 160 --config num_hidden_layers=4"),
            # The last chunk of experts has one row, whose choices another kernel sorts.
            (cut_to(MIXTURE, 2), 65536, 1372, 16, f"{mixture} 65536 --memory 160"),
            (cut_to(MIXTURE, 2), 40000, 885, 1, f"{mixture} 40000 --memory 160"),
            (cut_to(BOTH, 4, num_experts=64), 16384, 1625, 0, f"{both} 16384 --memory 160"),
            (cut_to(BOTH, 4, num_experts=64), 40000, 2831, 0, f"{both} 40000 --memory 160"))


def num_tensors(model):
    mixers = 9 * model.recurrences + (6 if model.num_experts or model.is_hybrid else 4) * model.attentions
    feed_forward = 3 if not model.num_experts else 3 * model.num_experts + 1 + (4 if model.shared else 0)
    return mixers + model.num_hidden_layers * (2 + feed_forward) + (2 if model.tie_word_embeddings else 3)


def launches_of(model, tokens, way, labels=1.0, size=1):
    """Launches of one GPU with so many tokens, without exchanges. `way`: APART computes recurrences by ATen's operators, and
    one expert after the other."""
    each = COUNTED_LAUNCHES[model.name.split(",")[0]]
    *mixers, feed_forward = chunks_of(model, tokens, way)
    labelled = int(tokens * labels)
    last = chunks_of(model, labelled, way)[2]
    heads = num_chunks(labelled, 4 * model.vocab_size, way.head_bytes, least=32, most=way.most_head_rows)
    launches = STEP + HEAD * heads + 1 + 2 * math.ceil(model.parameters / UPDATED_AT_ONCE)
    launches += math.ceil(num_tensors(model) / NORMS_AT_ONCE) + 2 * (math.ceil(4 * model.head / INDEXED) - 1)
    launches += model.attentions * (each.period + each.inputs * mixers[0]) + each.last_layer
    launches += each.feed_forward * feed_forward * (model.num_hidden_layers - 1) + each.last * last
    further = attention_calls(model, tokens) - 1
    launches += model.attentions * (CALL * further + (further > 0))
    if way is APART:
        launches += model.recurrences * SEGMENT_BEFORE * math.ceil(tokens / SEGMENT)
        return launches + model.num_hidden_layers * model.num_experts // size * EXPERT_BEFORE
    return launches + model.recurrences * PART * num_parts(model, tokens)


def experts_part(model, tokens, size, ranks, way):
    """Experts on one of `ranks`, `size` of which share out the experts. A block computes a tile of rows of an expert, which few rows
    do not fill. The matrices are read once for each gemm; from CAST_ROWS on, masters on one GPU are cast for each pass."""
    rows = tokens * model.num_experts_per_tok * size / model.num_experts
    fill = rows / (TILE * math.ceil(rows / TILE))
    at_once, gradients = ONE_BY_ONE if way is APART else GROUPED
    is_cast = rows >= CAST_ROWS or ranks > 1  # gathered in bf16 already
    for_rows, for_matrices = (flops * tokens for flops in expert_flops(model))
    own = model.experts / size
    moved = own * (11 / 3 * 2 + 8) + (own * 6 * 2 if is_cast and ranks == 1 else 0)
    seconds = for_rows / fill / (at_once if is_cast or way is APART else IN_FP32) + for_matrices / fill / gradients
    return Part("experts", for_rows + for_matrices, moved, seconds + moved / MEMORY), rows, fill


def scan_seconds(model, tokens, ranks, way):
    """Seconds of the scans of one of `ranks`, which has some heads of the whole row. A block passes columns of a head's
    state through all chunks, one after the other; blocks on one multiprocessor share its lanes."""
    _, N, K, W = heads_of(model)
    heads = math.ceil(N / ranks)
    columns = next((each for each in SCAN_COLUMNS if heads * math.ceil(W / each) <= MULTIPROCESSORS), SCAN_COLUMNS[-1])
    waves = math.ceil(heads * math.ceil(W / columns) / MULTIPROCESSORS)
    clocks = 2 * C * K * columns / LANES  # of a block in a chunk: an update, and the next state
    return model.recurrences * SCANS * math.ceil(tokens / C) * clocks * waves / CLOCK / way.gemm


def parts_of(model, tokens, ranks, way, size=1, world=None):
    """Parts of a step of one of `ranks`, which share the row by Ulysses and the recurrences by heads. `world`: ranks that divide the states
    (ZeRO 3); `size`: expert_parallel_size."""
    t, group, world = tokens / ranks, Group.of(ranks), world or ranks
    *mixers, feed_forward = chunks_of(model, t, way)
    flops = product_flops(model) * t
    parts = [Part("gemm", flops, seconds=flops / (way.gemm * PEAK))]
    layers = (model.attentions * mixers[0] * model.attention + model.recurrences * mixers[1] * model.recurrence
              + model.num_hidden_layers * feed_forward * (model.mlp + model.router + model.shared)) * (8 if way.fused else 12)
    parts.append(Part("sums of weight gradients", bytes=layers, seconds=layers / MEMORY))
    pairs = 2 * model.queries * tokens * t * model.attentions
    # cuDNN takes heads of up to 128 numbers.
    parts.append(attention_part(pairs, 2.5 * pairs, (way if model.head_dim <= 128 else BEFORE).attention))
    if model.is_hybrid:
        rows = model.recurrences * t
        if way is APART:
            in_bf16, in_fp32, scans, moved = 0, sum(rule_step_before(model)) * rows, 0, 4 * 5 * rule_numbers_before(model) * rows
        else:
            (in_bf16, *others, scans), moved = (each * rows for each in rule_step(model)), rule_bytes(model) * rows
            in_fp32 = sum(others)
        seconds = (in_bf16 / PEAK + in_fp32 / FP32) / way.gemm + moved / way.rows_rate
        seconds += 0 if way is APART else scan_seconds(model, tokens, ranks, way)
        parts.append(Part("recurrences", in_bf16 + in_fp32 + scans, moved, seconds))
    if model.num_experts:
        parts.append(experts_part(model, t, size, world, way)[0])
    moved = row_bytes(model, size > 1) * t
    parts.append(Part("row passes", bytes=moved, seconds=moved / way.rows_rate))
    heads = num_chunks(t, 4 * model.vocab_size, way.head_bytes, least=32, most=way.most_head_rows)
    parts.append(head_part(t, model.hidden_size, model.vocab_size, heads, way))
    parts.append(optimizer_part(model.parameters / world))
    if world > 1:
        hidden = sum(part.seconds for part in parts)
        sent = group.exchange(mixer_bytes(model, tokens, ranks))
        parts.append(Part("exchanges of heads", bytes=sum(sent), seconds=seconds_of(sent)))
        if size > 1:
            sent = Group.of(size).exchange(expert_bytes(model, t))
            parts.append(Part("exchanges of rows", bytes=sum(sent), seconds=seconds_of(sent)))
        states = [states_of(model.other, Group.of(world), way)]
        if model.num_experts:  # of a rank's experts, with the ranks that have the same ones
            states.append(states_of(model.experts / size, sharers_of(size, world), way))
        parts.append(states_part(states, hidden, way))
    return parts


def sharers_of(size, world):
    """The ranks with the experts of a rank."""
    return Group(world // size, min(world // size, max(1, MACHINE // size)))


def states_of(parameters, group, way):
    if group.ranks == 1:
        return (0.0, 0.0), (0.0, 0.0)
    return gathers_of(parameters, group), sums_of(parameters, group, way.rings)


# Tables

def step(model, tokens, ranks, way, size=1, world=None):
    """Seconds, MFU, launches, parts."""
    parts, launches = parts_of(model, tokens, ranks, way, size, world), launches_of(model, tokens / ranks, way, size=size)
    seconds = max(sum(part.seconds for part in parts), launches * LAUNCH)
    return seconds, useful_flops(model, tokens) / ranks / seconds / PEAK, launches, parts


def models_table():
    print("| model | tokens | GPUs | EP | | launches | PFLOP | TB | s | MFU | most of it |\n" + "|---" * 11 + "|")
    for model, tokens, world, size in ((HYBRID, 32768, 8, 1), (HYBRID, 131072, 8, 1), (MIXTURE, 32768, 8, 1),
                                       (MIXTURE, 32768, 8, 8), (MIXTURE, 131072, 64, 8), (BOTH, 131072, 64, 1),
                                       (BOTH, 131072, 64, 8)):
        for way in (APART, AFTER):
            seconds, mfu, launches, parts = step(model, tokens, MACHINE, way, size, world)
            largest = sorted(parts, key=lambda part: -part.seconds)[:2]
            most = ", ".join(f"{part.name} {100 * part.seconds / seconds:.0f} %" for part in largest)
            place = f"{model.name} | {tokens:,} | {world} | {size}" if way is APART else " | | | "
            print(f"| {place} | {way.name} | {launches:,} | {sum(part.flops for part in parts) / 1e15:.2f} "
                  f"| {sum(part.bytes for part in parts) / 1e12:.2f} | {seconds:.2f} | {100 * mfu:.0f} % | {most} |")


def experts_table(tokens=16384):
    """Bytes that ZeRO 3 gathers and sums of experts in a micro-batch of so many tokens on each GPU, and the rows that travel in the
    place of some or all of it."""
    print("| model | GPUs | EP | states: GB to the machine | through a card | s | rows: GB to the machine | through a card | s |\n"
          + "|---" * 9 + "|")
    for model in (MIXTURE, BOTH):
        for ranks, size in ((8, 1), (8, 8), (64, 1), (64, 8), (64, 64), (128, 1), (128, 8), (128, 128)):
            states = states_of(model.experts / size, sharers_of(size, ranks), AFTER)
            rows = Group.of(size).exchange(expert_bytes(model, tokens)) if size > 1 else (0.0, 0.0)
            sent = [sum(each) / 1e9 for each in zip(*states)]
            print(f"| {model.name} | {ranks} | {size} | {sent[0]:.1f} | {sent[1]:.1f} | {seconds_of(*states):.2f} "
                  f"| {rows[0] / 1e9:.1f} | {rows[1] / 1e9:.1f} | {seconds_of(rows):.2f} |")


def tiles_table():
    print("| model | EP | tokens of a GPU | rows of an expert | filled tiles | TFLOP/s |\n" + "|---" * 6 + "|")
    for model in (MIXTURE, BOTH):
        for size in (1, 8):
            for tokens in (512, 2048, 8192):
                part, rows, fill = experts_part(model, tokens, size, max(2, size), AFTER)
                print(f"| {model.name} | {size} | {tokens:,} | {rows:,.0f} | {100 * fill:.0f} % | {part.flops / part.seconds / 1e12:.0f} |")


def routes_table(tokens=16384, ranks=128):
    """Experts of each layer on all GPUs of 16 machines, each of which has so many tokens."""
    print("| routing | model | rows of the busiest GPU, of the mean | GB through the busiest card | s |\n" + "|---" * 5 + "|")
    for model in (MIXTURE, BOTH):
        for kind in ("even", "1/n", "the same experts for all tokens"):
            routing, shares = routing_of(model, tokens * ranks, ranks, kind)
            sent = model.num_hidden_layers * routing.busiest(2 * model.hidden_size)
            print(f"| {kind} | {model.name} | {max(shares) * ranks:.1f} | {sent / 1e9:.1f} | {sent / NETWORK:.2f} |")


def print_tables():
    for table in (models_table, experts_table, tiles_table, routes_table):
        table()
        print()
