"""One rank of the peers of attention_speed.py: DeepSpeed's and yunchang's sequence-parallel attention,
and torch's own on one rank. Started with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the
environment. Usage: attention_worker.py JOB.json; rank 0 writes the job's "output".

Shapes: B = 1, T: tokens of the row, t: tokens of this rank, N: query heads, M: kv heads, H: head dim.
"""

import inspect
import json
import os
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.distributed as dist

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


# torch's flash attention on CPU in the peers' layout. Grouped queries without repeated keys: a batch
# of M attentions of N / M heads, whose keys have stride 0 over the heads.
def grouped(q_1TNH, k_1SMH):
    _, T, N, H = q_1TNH.shape
    M = k_1SMH.shape[2]
    return q_1TNH.reshape(T, M, N // M, H).permute(1, 2, 0, 3)


def spread(x_1SMH, num_heads):
    _, S, M, H = x_1SMH.shape
    return x_1SMH[0].transpose(0, 1).unsqueeze(1).expand(M, num_heads // M, S, H)


def ungrouped(x_MGTH):
    M, G, T, H = x_MGTH.shape
    return x_MGTH.permute(2, 0, 1, 3).reshape(1, T, M * G, H)


def kernel_forward(q, k, v, causal, scale):
    """out_1TNH, lse_1NT"""
    N = q.shape[2]
    out, lse = flash(grouped(q, k), spread(k, N), spread(v, N), 0.0, causal, scale=scale)
    return ungrouped(out), lse.reshape(1, N, -1)


def kernel_backward(dout, q, k, v, out, lse, causal, scale):
    N, M = q.shape[2], k.shape[2]
    dq, dk, dv = flash_backward(
        grouped(dout, k), grouped(q, k), spread(k, N), spread(v, N), grouped(out, k),
        lse.reshape(M, N // M, -1), 0.0, causal, scale=scale)
    over_group = [x.sum(1).transpose(0, 1).unsqueeze(0) for x in (dk, dv)]
    return ungrouped(dq), *over_group


class FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        out, lse = kernel_forward(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx, dout):
        return *kernel_backward(dout, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


def select_kernel(attn_type, stage="fwd-bwd", attn_processor=None):
    """In place of yunchang's choice among kernels for CUDA."""
    def fwd_only(q, k, v, dropout_p, softmax_scale, causal, **others):
        return kernel_forward(q, k, v, causal, softmax_scale)

    def bwd_only(dout, q, k, v, out, lse, dq, dk, dv, dropout_p, softmax_scale, causal, *others,
                 **more):
        for buffer, gradient in zip((dq, dk, dv),
                                    kernel_backward(dout, q, k, v, out, lse, causal, softmax_scale)):
            buffer.copy_(gradient)

    def fwd_bwd(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, **others):
        return FlashAttention.apply(q, k, v, causal, softmax_scale)

    return {"fwd-only": fwd_only, "bwd-only": bwd_only, "fwd-bwd": fwd_bwd}[stage]


def mend_fp32(module, name):
    """yunchang's rings are written for bf16. They sum gradients in fp32 and start from
    `buffer.to(torch.float32)`: a copy in bf16, but the buffer itself in fp32, which the next step
    overwrites. And one returns its gradient in bf16 always."""
    source = inspect.getsource(getattr(module, name))
    mended = source.replace(".to(torch.float32)", ".to(torch.float32, copy=True)").replace(
        ".to(torch.bfloat16)", ".to(q.dtype)")
    assert mended != source, f"{name} is not the function that this mends"
    exec(compile(mended, module.__file__, "exec"), vars(module))


def contiguous_order(T, rank, world):
    return torch.arange(T).chunk(world)[rank]


def zigzag_order(T, rank, world):
    chunks = torch.arange(T).chunk(2 * world)
    return torch.cat([chunks[rank], chunks[2 * world - 1 - rank]])


def make_methods(names):
    """name -> (attend(q, k, v) -> out, order of tokens; None: on rank 0 alone)"""
    methods = {}
    if "torch-sdpa" in names:
        def sdpa(q, k, v):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        methods["torch-sdpa"] = (sdpa, None)
    if "torch-flash" in names:
        methods["torch-flash"] = (
            lambda q, k, v: FlashAttention.apply(q, k, v, True, q.shape[-1] ** -0.5), None)
    if "deepspeed-ulysses" in names:
        from deepspeed import comm
        from deepspeed.sequence.layer import DistributedAttention
        comm.init_distributed("gloo", verbose=False)
        ulysses = DistributedAttention(
            lambda q, k, v: FlashAttention.apply(q, k, v, True, q.shape[-1] ** -0.5),
            dist.group.WORLD, scatter_idx=2, gather_idx=1)
        methods["deepspeed-ulysses"] = (lambda q, k, v: ulysses(q, k, v, 0), contiguous_order)
    if any(name.startswith("yunchang") for name in names):
        import yunchang
        import yunchang.ring.ring_flash_attn
        import yunchang.ring.zigzag_ring_flash_attn
        import yunchang.ulysses.attn_layer
        for module in ("yunchang.ring.ring_flash_attn", "yunchang.ring.zigzag_ring_flash_attn",
                       "yunchang.ulysses.attn_layer"):
            sys.modules[module].select_flash_attn_impl = select_kernel
        mend_fp32(yunchang.ring.ring_flash_attn, "ring_flash_attn_backward")
        mend_fp32(yunchang.ring.zigzag_ring_flash_attn, "zigzag_ring_flash_attn_backward")
        yunchang_ulysses = yunchang.UlyssesAttention(dist.group.WORLD)
        available = {
            "yunchang-ulysses":
                (lambda q, k, v: yunchang_ulysses(q, k, v, causal=True), contiguous_order),
            "yunchang-ring":
                (lambda q, k, v: yunchang.ring_flash_attn_func(q, k, v, causal=True),
                 contiguous_order),
            "yunchang-zigzag-ring":
                (lambda q, k, v: yunchang.zigzag_ring_flash_attn_func(q, k, v, causal=True),
                 zigzag_order),
        }
        methods |= {name: available[name] for name in names if name in available}
    return {name: methods[name] for name in names}


def random_row(job, tokens, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    heads = (job["heads"], job["kv_heads"], job["kv_heads"], job["heads"])
    return [torch.randn(1, tokens, n, job["head_dim"], generator=generator).to(dtype)
            for n in heads]


def whole(local, index, tokens):
    """The row out of every rank's part."""
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    places = [torch.empty_like(index) for _ in parts]
    dist.all_gather(parts, local.contiguous())
    dist.all_gather(places, index)
    row = torch.full((1, tokens, *local.shape[2:]), float("nan"), dtype=local.dtype)
    for part, place in zip(parts, places):
        row[:, place] = part
    return row


class Method:
    def __init__(self, name, attend, order, job):
        self.name, self.attend, self.order, self.job = name, attend, order, job
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.idle = order is None and self.rank != 0
        self.threads = job["threads"] * (self.world if order is None else 1)
        self.forward, self.backward = [], []
        length = job["tokens"] if order is None else job["tokens"] // self.world
        *self.inputs, self.dout = random_row(job, 1 if self.idle else length, 1 + self.rank)
        for x in self.inputs:
            x.requires_grad_(True)

    def check(self, expected):
        """Relative errors against undistributed attention in fp64, on a short row."""
        tokens = self.job["check_tokens"]
        row = random_row(self.job, tokens, 99)
        index = torch.arange(tokens) if self.order is None else \
            self.order(tokens, self.rank, self.world)
        local = [x[:, index].requires_grad_(True) for x in row[:3]]
        out = self.attend(*local)
        out.backward(row[3][:, index])
        results = [out.detach()] + [x.grad for x in local]
        if self.order is not None:
            results = [whole(x, index, tokens) for x in results]
        return {name: ((x.double() - y).norm() / y.norm()).item()
                for name, x, y in zip(("out", "q", "k", "v"), results, expected)}

    def time(self, keep):
        torch.set_num_threads(self.threads)
        for x in self.inputs:
            x.grad = None
        dist.barrier()
        begin = time.perf_counter()
        if not self.idle:
            out = self.attend(*self.inputs)
        dist.barrier()
        middle = time.perf_counter()
        if not self.idle:
            out.backward(self.dout)
        dist.barrier()
        end = time.perf_counter()
        torch.set_num_threads(self.job["threads"])
        if keep:
            self.forward.append(middle - begin)
            self.backward.append(end - middle)


def exact_solution(job):
    q, k, v, dout = random_row(job, job["check_tokens"], 99, torch.float64)
    leaves = [x.requires_grad_(True) for x in (q, k, v)]
    copies = job["heads"] // job["kv_heads"]
    heads_first = [q.transpose(1, 2)] + [x.repeat_interleave(copies, 2).transpose(1, 2)
                                        for x in (k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    out = out.transpose(1, 2)
    out.backward(dout)
    return [out.detach()] + [x.grad for x in leaves]


def main():
    with open(sys.argv[1]) as file:
        job = json.load(file)
    torch.set_num_threads(job["threads"])
    dist.init_process_group("gloo")
    methods = [Method(name, *method, job) for name, method in make_methods(job["methods"]).items()]
    expected = exact_solution(job)
    results = []
    for method in methods:
        errors = {} if method.idle else method.check(expected)
        results.append({"name": method.name, "threads_per_rank": method.threads,
                        "relative_errors": errors})
    for round_ in range(job["warmup"] + job["repeats"]):
        for method in methods if round_ % 2 == 0 else methods[::-1]:
            method.time(round_ >= job["warmup"])
    if dist.get_rank() == 0:
        for result, method in zip(results, methods):
            result["forward_seconds_of_repeats"] = method.forward
            result["backward_seconds_of_repeats"] = method.backward
        with open(job["output"], "w") as file:
            json.dump({"methods": results}, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
