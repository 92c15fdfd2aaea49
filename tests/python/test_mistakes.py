"""Mistakes of one rank: every rank of the group raises, and none waits for the rank that has left the call."""

import pytest
import torch
from forks import run_forks

# The function, changes of the rank that is wrong, and a part of the message. The other ranks make CALLS[function].
ATTENTION = dict(q=(8, 4, 16), k=(8, 2, 16), v=(8, 2, 16), dtype=torch.float, mode="zigzag-ring")
MISTAKES = [
    ("attention", dict(k=(8, 3, 16)), "whose number divides the heads of q"),
    ("attention", dict(q=(8, 64)), "must be [tokens, heads, elements]"),
    ("attention", dict(q=(6, 4, 16), k=(6, 2, 16), v=(6, 2, 16)), "attends with q [6, 4, 16]"),
    ("attention", dict(v=(8, 2, 8)), "v [8, 2, 8]"),
    ("attention", dict(dtype=torch.double), "of Double"),
    ("attention", dict(cu_seqlens=[0, 5, 24]), "documents"),
    ("attention", dict(cu_seqlens=[0, 5, 5, 24]), "must begin with 0 and increase"),
    ("attention", dict(mode="ring"), "mode ring"),
    ("attention", dict(mode="rings"), "mode rings"),
    ("attention", dict(window=3), "window 3"),
    ("attention", dict(window=0), "window is 0"),
    ("attention", dict(softcap=0.0), "softcap is 0"),
    ("attention", dict(ulysses_degree=0), "ulysses_degree is 0"),
    ("attention", dict(softcap="x"), "could not convert"),
    ("attention", dict(window=2.5), "window is 2.5"),
    ("attention", dict(documents=["24"]), "a length is '24'"),
    ("attention", dict(mode=5), "mode is 5, and must be a str"),
    ("attention", dict(sinks=[0.0] * 4), "sinks is [0.0, 0.0, 0.0, 0.0], and must be a torch.Tensor"),
    ("attention", dict(q=None), "'NoneType' object has no attribute 'dim'"),
    ("attention", dict(timeout=0), "timeout is 0, and must be"),
    ("to_seq", dict(timeout="x"), "timeout is 'x', and must be"),
    ("loss", dict(x=None), "'NoneType' object has no attribute"),
    ("share", dict(heads=None), "not iterable"),
    ("share", dict(heads=(2, 2.5, 8, 8)), "a number of Heads is 2.5"),
    ("share", dict(heads=(2, 1, 8, 8)), "the ranks of the group make different calls: rank 0 shares rows by allgather"),
    ("share", dict(device="gpu7"), "gpu7"),
    ("share", dict(dtype="bf16"), "dtype is 'bf16'"),
    ("share", dict(num_tokens=0), "num_tokens is 0"),
    ("to_heads", dict(x=(1, 3, 6, 8)), "of [1, 3, 6, 8]"),
    ("to_heads", dict(dtype=torch.double), "of [1, 4, 6, 8] Double"),
    ("to_heads", dict(seq_dim=2), "are both 2"),
    ("to_heads", dict(head_dim=5), "a dimension is 5"),
    ("to_heads", dict(unpadded_dim_size=99), "unpadded_dim_size is 99"),
    ("to_heads", dict(num_query_heads=9), "6 heads for 9 query heads"),
    ("to_heads", dict(async_op=True, x=(1, 4, 5, 8)), "of [1, 4, 5, 8]"),
    ("to_seq", dict(x=(1, 6, 2, 7)), "of [1, 6, 6, 7]"),
    ("to_seq", dict(x=(1, 6, 3, 8)), "passes 3 heads"),
    ("to_seq", dict(num_heads=None), "of [1, 6, 0, 8]"),
    ("qkv", dict(head_size=5), "must be a multiple of 3"),
    ("loss", dict(x=(2,)), "pass one number"),
    ("loss", dict(count=torch.ones(2)), "num_valid_tokens has the shape [2]"),
    ("loss", None, "reduces a loss"),
    ("inputs", dict(k_weight=(4, 5)), "k_weight has the shape [4, 5], and must be [elements, 6]"),
    ("inputs", dict(v_bias=torch.ones(3)), "v_bias has the shape [3]"),
    ("inputs", dict(norm_type="rmsnorm", norm_k_weight=torch.ones(3)), "norm_k_weight has the shape [3]"),
    ("inputs", dict(dtype=torch.double), "dtype"),
    ("projection", dict(x=(1, 6, 2, 9)), "heads of 9 do not divide"),
    ("module", dict(batch_dim_idx=1), "the three must differ"),
    ("module", dict(num_kv_heads=5), "num_kv_heads is 5"),
]
CALLS = dict(attention=ATTENTION, share=dict(heads=(2, 2, 8, 8)), to_heads=dict(x=(1, 4, 6, 8), seq_dim=1, head_dim=2),
             to_seq=dict(x=(1, 6, 2, 8), num_heads=6), qkv=dict(x=(1, 4, 36), head_size=2), loss=dict(x=()),
             inputs=dict(x=(1, 4, 6)),
             projection=dict(x=(1, 6, 2, 8)), module=dict(x=(1, 4, 6, 8), batch_dim_idx=0))


def call(function, group, dtype=torch.float, **given):
    import longspan

    given = {name: torch.ones(size, dtype=dtype) if name in "qkvx" and size is not None else size for name, size in given.items()}
    given = dict(group=group, timeout=20) | given
    if function == "share":
        heads = given.pop("heads")
        return longspan.share(heads and longspan.Heads(*heads), mode="allgather", dtype=dtype, **given)
    if function == "attention":
        return longspan.attention(**given)
    if function == "to_heads":
        out = longspan.gather_seq_scatter_heads(**given)
        return out if isinstance(out, torch.Tensor) else out.wait()
    x = given.pop("x")
    if function == "to_seq":
        return longspan.gather_heads_scatter_seq(x, 2, 1, **given)
    if function == "qkv":
        return longspan.gather_seq_scatter_heads_qkv(x, 1, **given)
    if function == "loss":
        return longspan.reduce_sequence_parallel_loss(x, given.pop("count", 1), **given)
    if function == "inputs":
        weight, k_weight = torch.ones(4, 6), torch.ones(given.pop("k_weight", (4, 6)))
        return longspan.async_ulysses_qkv_projection(x, 1, 2, weight, None, k_weight, None, weight, given.pop("v_bias", None),
                                                     head_dim=2, **given)
    if function == "projection":
        return longspan.async_ulysses_output_projection(x, 1, 2, torch.ones(5, 48), None, **given)
    made = dict(timeout=given.pop("timeout"), num_kv_heads=given.pop("num_kv_heads", None))
    del given["group"]
    return longspan.DistributedAttention(lambda q, k, v: q, group, 2, 1, **made)(x, x, x, **given)


def mistakes(rank, size):
    """The messages of all mistakes of the last rank, with good calls before and after."""
    import longspan

    group, texts = torch.distributed.group.WORLD, []
    for function, changes, part in MISTAKES:
        print(function, changes, part, flush=True)
        call(function, group, **CALLS[function])
        wrong = function, (CALLS[function] | (changes or {}))
        if rank == size - 1 and changes is None:
            wrong = "attention", ATTENTION
        with pytest.raises(longspan.UsageError) as caught:
            call(*wrong[:1], group, **(wrong[1] if rank == size - 1 else CALLS[function]))
        texts.append(str(caught.value))
        call(function, group, **CALLS[function])
    return texts


def test_mistakes_of_one_rank():
    for texts in run_forks(3, mistakes, 3):
        assert [text for text, (_, _, part) in zip(texts, MISTAKES, strict=True) if part not in text] == []
