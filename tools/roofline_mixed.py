"""Hybrids and mixtures of experts for tools/roofline: a model is the sizes in its config.json, and each kind of layer has its
FLOPs, bytes and launches here. Letters are those of tools/roofline; K, W: key and value dim of a recurrence; C: tokens of a
chunk of its rule; E, k: experts of a layer, and of a token."""

from dataclasses import dataclass

C = 64  # tokens of a chunk of the gated delta rule
SCANS = 4  # of a step: forward, again, in the backward, and in reverse


@dataclass(frozen=True)
class Mixed:
    """The keys of config.json that have sizes."""

    name: str
    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool = False
    intermediate_size: int = 0
    # Hybrids, whose attention has gates.
    full_attention_interval: int = 1
    linear_num_key_heads: int = 0
    linear_num_value_heads: int = 0
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    # Mixtures of experts.
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0

    @property
    def is_hybrid(self):
        return self.full_attention_interval > 1

    @property
    def attentions(self):
        return self.num_hidden_layers // self.full_attention_interval

    @property
    def recurrences(self):
        return self.num_hidden_layers - self.attentions

    @property
    def queries(self):
        return self.num_attention_heads * self.head_dim

    @property
    def attention(self):
        """Numbers of its matrices."""
        keys = self.num_key_value_heads * self.head_dim
        return self.hidden_size * ((3 if self.is_hybrid else 2) * self.queries + 2 * keys)

    @property
    def normed(self):
        """Projections to queries, with their gates, and to keys, which have a norm for each head."""
        return self.hidden_size * ((1 + self.is_hybrid) * self.queries + self.num_key_value_heads * self.head_dim)

    @property
    def channels(self):
        """Channels of the convolution: queries, keys, values."""
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + self.values

    @property
    def values(self):
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def recurrence(self):
        """Numbers of its matrices: channels, output's gate, two gates of each head, output."""
        return self.hidden_size * (self.channels + 2 * self.values + 2 * self.linear_num_value_heads)

    @property
    def expert(self):
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def shared(self):
        return 3 * self.hidden_size * self.shared_expert_intermediate_size

    @property
    def router(self):
        """With the gate of a shared expert."""
        return self.hidden_size * (self.num_experts + (self.shared > 0))

    @property
    def mlp(self):
        return 0 if self.num_experts else 3 * self.hidden_size * self.intermediate_size

    @property
    def experts(self):
        """Numbers of all experts of all layers."""
        return self.num_hidden_layers * self.num_experts * self.expert

    @property
    def head(self):
        return self.vocab_size * self.hidden_size

    @property
    def other(self):
        """Numbers of everything but the experts."""
        feed_forward = self.mlp + (self.router + self.shared if self.num_experts else 0)
        return (self.attentions * self.attention + self.recurrences * self.recurrence
                + self.num_hidden_layers * feed_forward + self.head * (1 if self.tie_word_embeddings else 2))

    @property
    def parameters(self):
        return self.other + self.experts

    @property
    def of_token(self):
        """Numbers of the matrices of layers that a token meets."""
        heads = self.head * (1 if self.tie_word_embeddings else 2)
        return self.other - heads + self.num_hidden_layers * self.num_experts_per_tok * self.expert


HYBRID = Mixed("Qwen3.5-9B", hidden_size=4096, intermediate_size=12288, num_hidden_layers=32, vocab_size=248320,
               num_attention_heads=16, num_key_value_heads=4, head_dim=256, full_attention_interval=4,
               linear_num_key_heads=16, linear_num_value_heads=32, tie_word_embeddings=True)
MIXTURE = Mixed("Qwen3-30B-A3B", hidden_size=2048, num_hidden_layers=48, vocab_size=151936, num_attention_heads=32,
                num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768)
BOTH = Mixed("Qwen3-Next-80B", hidden_size=2048, num_hidden_layers=48, vocab_size=151936, num_attention_heads=16,
             num_key_value_heads=2, head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
             linear_num_value_heads=32, num_experts=512, num_experts_per_tok=10, moe_intermediate_size=512,
             shared_expert_intermediate_size=512)


# FLOPs of a token

def heads_of(model):
    """M, N, K, W."""
    return (model.linear_num_key_heads, model.linear_num_value_heads, model.linear_key_head_dim,
            model.linear_value_head_dim)


def rule_products(model):
    """Batched gemms of a chunk in a layer's rule (kernels/delta_part.cpp), in a forward and in its backward: heads, bytes of a
    number (bf16, and fp32 for key heads), rows, inner numbers and columns."""
    M, N, K, W = heads_of(model)
    products, solved = (M, 4, 2 * C, K, C), (N, 2, C, C, K + W)
    forward = [products, solved, (N, 2, C, K + C, W)]
    backward = [products, solved, (N, 2, K + C, C, W), (N, 2, C, W, K + C), (N, 2, C, W, K), (N, 2, C, W, K),
                (N, 2, C, K + W, C), (N, 2, C, C, K + W), (M, 4, 2 * C, C, K), (M, 4, C, 2 * C, K)]
    return forward, backward


def flops_of(products):
    return sum(2 * heads * rows * inner * columns // C for heads, _, rows, inner, columns in products)


def rule_gemms(model):
    return flops_of(rule_products(model)[0])


def rule_scan(model):
    """FLOPs of the states in a forward, which a kernel passes from chunk to chunk: an update, and the next state."""
    return 2 * 2 * model.linear_num_value_heads * model.linear_key_head_dim * model.linear_value_head_dim


def rule_step(model):
    """FLOPs of gemms in bf16, of gemms in fp32, of inverses and of scans, both in fp32, in a step: forward, again, and backward. Kernels
    scan three times and once in reverse, and make inverses three times, and once their gradients."""
    forward, backward = rule_products(model)
    in_bf16, in_fp32 = (flops_of([each for each in 2 * forward + backward if each[1] == size]) for size in (2, 4))
    return in_bf16, in_fp32, (3 + 4) * C * C * model.linear_num_value_heads, SCANS * rule_scan(model)


def rule_step_before(model):
    """FLOPs of gemms and of scans in a step, in fp32: forward, again, and in the backward once more with a graph, whose gradients are
    two gemms for each gemm, two for the scan, and a scan in reverse."""
    return 5 * rule_gemms(model) + rule_scan(model), 4 * rule_scan(model)


def feed_forward_flops(model):
    """A layer's feed-forward without its experts. An MLP's last gemm is not computed again; a shared expert, whose gate
    needs its output, is computed once more, and gate and up twice more."""
    if model.num_experts:
        return 2 * (4 * model.router + 14 * model.shared // 3)
    return 2 * 11 * model.mlp // 3


def product_flops(model):
    """FLOPs of all gemms but the experts' and the head's: forward, again, and two gradients. The backward computes the inputs
    of the heads' norms once more."""
    layers = model.attentions * (4 * model.attention + model.normed) + model.recurrences * 4 * model.recurrence
    return 2 * layers + model.num_hidden_layers * feed_forward_flops(model)


def expert_flops(model):
    """FLOPs of a token's experts in all layers: forward, gate and up again, gradients of rows; and gradients of matrices."""
    numbers = model.num_hidden_layers * model.num_experts_per_tok * model.expert
    return 2 * numbers * (8 / 3), 2 * numbers


def useful_flops(model, tokens):
    """Without recomputation."""
    rule = 3 * model.recurrences * (rule_gemms(model) + rule_scan(model))
    return (6 * (model.of_token + model.head) + rule + 6 * model.queries * tokens * model.attentions) * tokens


# Bytes of a token

def rule_bytes(model):
    """Bytes of a layer's rule in a step: each operation reads and writes for itself."""
    M, N, K, W = heads_of(model)
    state, left, right = K * W / C, K + C, K + W
    forward, backward = rule_products(model)
    moved = sum(heads * size * (rows * inner + inner * columns + rows * columns)
                for heads, size, rows, inner, columns in 2 * forward + backward) / C
    moved += 4 * M * 3 * K  # the last two gemms add
    # Kernels: heads of length one and their gradients; operands, in the backward with gradients of outputs; scans; outputs in
    # the order of tokens; gradients of operands, which add up those of heads over value heads.
    moved += 3 * M * (2 * 2 * K + 4 * 2 * K) + M * (4 * 2 * K + 2 * 4 * K)
    moved += 3 * N * (4 * (2 * C + 2 * K) + 2 * (W + left + right + K + C)) + N * 2 * 2 * W
    moved += N * 2 * (4 * (2 * K + 2 * W) + 5 * state) + 2 * N * 2 * 2 * W
    return (moved + N * (2 * (2 * C + left + right + K + 2 * state + 2 * W) + 4 * (2 * C + 2 * K + 4 * K))
            + 4 * M * (2 * C - 2 * K))


def rule_numbers_before(model):
    """Numbers in fp32 that a forward of the rule reads and writes, each operation for itself."""
    M, N, K, W = heads_of(model)
    state = K * W / C
    of_key_head = 2 * (K / 2 + K) + 2 * (2 * K + C)  # unit queries and keys of bf16; their products
    of_value_head = (2 * C + 2 * C  # the matrices of chunks
                     + 3 * 2 * K + W / 2 + W + 2 * W  # keys, keys and queries times decays; values in fp32, times beta
                     + C + 2 * K + C + 2 * W  # the inverse with keys and with values
                     + 2 * K + 2 * W + state  # the scan
                     + K + state + W + C + 2 * W + 3 * W  # outputs of states and of the chunk, and their sum
                     + 3 * W + W / 2)  # outputs in the order of tokens, in bf16
    return M * of_key_head + N * of_value_head


def row_bytes(model, exchanges):
    """Passes over rows in all layers, as in tools/roofline, and those of gates, convolutions, rules and experts."""
    D, L, I, k = model.hidden_size, model.num_hidden_layers, model.moe_intermediate_size, model.num_experts_per_tok
    norms = 2 * (D * (4 + 2) * 2 + D * (2 + 4 + 4 + 4))
    residuals = 2 * D * (2 + 4 + 4) * 2
    activation = (2 + 2 + 2) * 2 + (2 * 3 + 2 * 2)  # of gate and up, and of a gate behind a mixer
    attention = (model.queries + model.num_key_value_heads * model.head_dim) * 4 * 3 + model.is_hybrid * activation * model.queries
    recurrence = (4 + 4 + 6) * model.channels + activation * model.values
    feed_forward = activation * (model.mlp // (3 * D) + model.shared_expert_intermediate_size)
    if model.num_experts:
        # Activations and their weights for each expert; sums over experts, and of their gradients; scores. Rows that travel
        # are picked before and sorted behind each exchange.
        feed_forward += k * (activation + 16) * I + 2 * (2 * k * D + 8 * D) + 80 * model.num_experts
        feed_forward += exchanges * 5 * k * D * (2 + 2)
    return L * (norms + residuals + feed_forward) + model.attentions * attention + model.recurrences * recurrence


def expert_bytes(model, tokens, weight=4):
    """Rows of so many tokens to experts, in all layers, in an exchange: forward there and back; backward row, gradient and
    weight there, the row's and the weight's gradient back."""
    pairs = model.num_hidden_layers * tokens * model.num_experts_per_tok
    return pairs * (5 * model.hidden_size * 2 + 2 * weight)


def mixer_bytes(model, tokens, ranks):
    """Bytes that a rank exchanges for heads of attention and of recurrences, in bf16: forward, again and backward. A key head goes to
    each rank that has a head of its queries or values."""
    heads = 2 * model.head_dim * (model.num_attention_heads + max(model.num_key_value_heads, ranks)) * model.attentions
    keys = max(model.linear_num_key_heads, ranks) * 2 * model.linear_key_head_dim
    heads += (keys + 2 * model.values + 2 * model.linear_num_value_heads) * model.recurrences
    return tokens / ranks * 2 * 3 * heads


# Routing

@dataclass(frozen=True)
class Routing:
    """Rows that each rank of a group sends to the experts of each rank in a pass over a row, `rows[from][to]`. `machine`: its
    neighbours, each with a network card of its own."""

    rows: tuple
    machine: int = 8

    def far(self, rank):
        return [other for other in range(len(self.rows)) if other // self.machine != rank // self.machine]

    def through_card(self, rank, row, weight=4, counts=0):
        """Bytes that a rank sends to other machines and receives from them, forward and backward. `row`: bytes of a row;
        `counts`: bytes of the numbers of rows that go to each rank."""
        far = self.far(rank)
        leaving, arriving = sum(self.rows[rank][to] for to in far), sum(self.rows[by][rank] for by in far)
        # The rank's own rows go there three times (with a weight once) and come back twice (with a gradient of the weight).
        own, others = 3 * row + weight, 2 * row + weight
        fixed = len(far) * counts
        return leaving * own + arriving * others + fixed, arriving * own + leaving * others + fixed

    def busiest(self, row):
        return max(max(self.through_card(rank, row)) for rank in range(len(self.rows)))


def shares_of(ranks, experts, of_token, kind):
    """The share of all rows that goes to each rank. No expert has more than the share of one choice, since the choices of a
    token differ."""
    if kind == "even":
        weights = [1.0] * experts
    elif kind == "1/n":  # the n-th expert
        weights = [1 / (n + 1) for n in range(experts)]
    else:  # every token has the same experts, the first ones
        weights = [1.0 if n < of_token else 0.0 for n in range(experts)]
    shares, rest, total = [], 1.0, sum(weights)
    for weight in weights:  # the largest first
        shares.append(min(1 / of_token, rest * weight / total if total > 0 else 0.0))
        rest, total = rest - shares[-1], total - weight
    each = experts // ranks
    return [sum(shares[rank * each:(rank + 1) * each]) for rank in range(ranks)]


def routing_of(model, tokens, ranks, kind, machine=8):
    rows = model.num_experts_per_tok * tokens / ranks
    shares = shares_of(ranks, model.num_experts, model.num_experts_per_tok, kind)
    return Routing(tuple(tuple(rows * share for share in shares) for _ in range(ranks)), machine), shares
