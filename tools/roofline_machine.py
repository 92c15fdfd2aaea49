"""The machine of tools/roofline: rates, groups of ranks with their links, and parts of a step."""

import math
from dataclasses import dataclass, replace

MIB = 2**20
LEAST_ROWS = 1024  # of a chunk, but for the head's
PEAK, MEMORY = 989e12, 3.35e12  # data sheet of an H100 SXM: bf16 FLOP/s without sparsity, bytes/s
MACHINE = 8  # GPUs
NVLINK, NETWORK = 370e9, 42e9  # bytes/s of a rank to others of its machine, and to other machines
LAUNCH = 10e-6  # seconds of the host


@dataclass(frozen=True)
class Group:
    """Ranks of a collective; `near` of them are on each machine. Each method returns the bytes that a rank sends to ranks
    of its machine, and through its network card."""

    ranks: int
    near: int

    @classmethod
    def of(cls, ranks, machine=MACHINE):
        """Neighbours."""
        return cls(ranks, min(ranks, machine))

    def exchange(self, whole):
        """All-to-all of a tensor of so many bytes, of which each rank gets an equal part."""
        return whole * (self.near - 1) / self.ranks, whole * (self.ranks - self.near) / self.ranks

    def ring(self, whole):
        """NCCL's all-gather or reduce-scatter of a tensor of so many bytes. Its rings cross from a machine to the next one
        through the cards of all its ranks in turn."""
        sent = whole * (self.ranks - 1) / self.ranks
        return self.inside(sent), sent / self.near if self.ranks > self.near else 0.0

    def hops(self, each):
        """A ring in the order of ranks, which passes so many bytes on as often as there are other ranks: only one rank of
        a machine sends to another one."""
        sent = each * (self.ranks - 1)
        return self.inside(sent), sent if self.ranks > self.near else 0.0

    def inside(self, sent):
        return sent if self.near > 1 else 0.0


def seconds_of(*sent):
    """Seconds of bytes that travel inside machines and between them at once."""
    return max(sum(inside for inside, _ in sent) / NVLINK, sum(card for _, card in sent) / NETWORK)


@dataclass
class Part:
    name: str
    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0


def num_chunks(rows, width, width_bytes, least=LEAST_ROWS, most=math.inf):
    return math.ceil(rows / min(most, max(least, width_bytes // width)))


@dataclass(frozen=True)
class Launches:
    """Kernels of a step, as null GPUs count them by name: of steps that differ in one number alone."""

    step: int
    layer: int  # whatever its rows
    inputs: int  # for each chunk of the steps before attention: norm, projections, rotation; forward, again, backward
    feed_forward: int  # for each chunk of those behind it
    last: int  # the same in the last layer, which computes only rows that have a label
    head: int  # for each chunk of the head


@dataclass(frozen=True)
class Way:
    """How a step is computed. Rates in FLOP/s, and bytes of a chunk's widest activation."""

    name: str
    attention: tuple  # FLOP/s, forward and backward: measured on an H100 (docs/gpu-measurements.md)
    input_bytes: int
    feed_forward_bytes: int
    head_bytes: int
    most_head_rows: int
    gemm: float  # of PEAK, for products of so many rows
    rows_rate: float  # bytes/s of passes over rows
    fused: bool
    hidden_reductions: bool
    launches: Launches
    rings: bool = True  # gradients are summed by NCCL's reduce-scatter, and not exchanged


# Without kernels over rows the program launches ATen's operators as it did before it had any. So what a chunk takes is
# counted; how many chunks there were follows from the CPU's sizes.
BEFORE = Way("before", attention=(350e12, 321e12), input_bytes=2 * MIB, feed_forward_bytes=8 * MIB, head_bytes=64 * MIB,
             most_head_rows=1024, gemm=0.55, rows_rate=0.80 * MEMORY, fused=False, hidden_reductions=False, rings=False,
             launches=Launches(step=45, layer=39, inputs=119, feed_forward=60, last=66, head=23))
AFTER = Way("after", attention=(661e12, 554e12), input_bytes=64 * MIB, feed_forward_bytes=256 * MIB, head_bytes=2048 * MIB,
            most_head_rows=4096, gemm=0.70, rows_rate=0.85 * MEMORY, fused=True, hidden_reductions=True,
            launches=Launches(step=29, layer=39, inputs=35, feed_forward=24, last=27, head=5))
# A GPU's chunks without kernels over rows: what null GPUs count beside BEFORE's launches of a chunk.
COMPOSED = replace(BEFORE, name="ATen's operators", input_bytes=AFTER.input_bytes, feed_forward_bytes=AFTER.feed_forward_bytes,
                   head_bytes=AFTER.head_bytes, most_head_rows=AFTER.most_head_rows, rings=True)


def attention_part(forward, backward, rates):
    return Part("attention", forward + backward, seconds=forward / rates[0] + backward / rates[1])


def head_part(tokens, D, V, chunks, way):
    """Logits in fp32, their gradient in bf16, three products, and for each chunk its weight and its gradient."""
    flops = 6 * tokens * V * D
    moved = tokens * V * (4 + 4 + 4 + 2) + chunks * V * D * (2 + 2 + (8 if way.fused else 12))
    return Part("head", flops, moved, flops / (way.gemm * PEAK) + moved / MEMORY)


def optimizer_part(own):
    """AdamW reads and writes master and two moments, and reads a gradient; masters are cast for use, forward and backward."""
    update = own * (7 * 4 + 4) + 2 * own * (4 + 2)
    return Part("optimizer and casts", bytes=update, seconds=update / (0.9 * MEMORY))


def gathers_of(parameters, group):
    """ZeRO 3, of a micro-batch: values in bf16, forward and backward."""
    return group.ring(2 * 2 * parameters)


def sums_of(parameters, group, rings):
    """The same: gradients in fp32."""
    return (group.ring if rings else group.exchange)(4 * parameters)


def states_part(sent, hidden, way):
    """`sent`: gathers and sums, of each group. They travel while the rank computes for `hidden` seconds, but not while
    exchanges take the same links."""
    gathers, sums = ([each[i] for each in sent] for i in range(2))
    moved = sum(inside for inside, _ in gathers + sums) + (0 if way.rings else sum(card for _, card in sums))
    if way.hidden_reductions:
        return Part("others' states", bytes=moved, seconds=max(0.0, seconds_of(*gathers, *sums) - hidden))
    return Part("others' states", bytes=moved, seconds=seconds_of(*sums))
