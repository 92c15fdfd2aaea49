"""Attention over rows that several ranks share.

A row is one sequence, or several packed sequences (documents). T: tokens of this rank, N: query heads, M: key and value
heads, H: elements of a query's or key's head, V: elements of a value's head.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from longspan import _native, checkpointing
from longspan.documents import Document, Documents, documents_of, documents_of_row, numbers_of, whole
from longspan.errors import CommunicationError, UsageError

DEFAULT_TIMEOUT = 1800  # seconds

_timeouts: dict[str, int] = {}  # by group: of the last call. With it a rank whose timeout is wrong reaches the others.


@dataclasses.dataclass(frozen=True)
class Sharing:
    """The ranks that share rows, and the method by which they do so.

    group: process group; None: this process alone.
    mode: a value of sequence_parallel_mode, such as "ulysses" or "zigzag-ring"; "local" for one rank; never "auto" (see
        share()).
    degrees: ranks of a Ulysses group, of a ring, of a window (an inner ring); 0: the method has no such degree.
    reason: why the method was chosen.
    timeout: seconds that a collective may take. A group's first call also waits for the ranks to meet: at most 300 s of the
        timeout, and 10 s more (GPUs: 90 s).
    """

    group: Optional[dist.ProcessGroup]
    mode: str
    degrees: tuple[int, int, int] = (0, 0, 0)
    reason: str = ""
    timeout: int = DEFAULT_TIMEOUT

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    @property
    def name(self) -> str:
        return name_of(self.group)


@dataclasses.dataclass(frozen=True)
class Heads:
    """The shape of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    window: int = 0  # keys that a query sees, including its own; 0: all
    num_layers: int = 1

    def _numbers(self) -> list[int]:
        return [self.num_layers, self.num_heads, self.num_kv_heads, self.head_dim, self.value_dim, self.window]


@dataclasses.dataclass(frozen=True)
class TokenOrder:
    """The tokens of a rank.

    index: for each token of the rank, its index in the unpadded row; -1: padding. int64 [T].
    documents: documents of the padded row: their lengths, and a Document in place of each that has branches.
    """

    index: torch.Tensor
    documents: tuple[Union[int, Document], ...]

    @property
    def row(self) -> torch.Tensor:
        """`documents` as a tensor for attend(). In a graph of torch.compile its values may change from row to row."""
        return torch.tensor(numbers_of(self.documents), dtype=torch.int64)

    def take(self, row: torch.Tensor, padding: float, dim: int = 0) -> torch.Tensor:
        """Returns this rank's tokens of a whole unpadded row, with `padding` in place of tokens that the row lacks."""
        index = self.index.to(row.device)
        taken = row.index_select(dim, index.clamp(min=0))
        shape = [1] * row.dim()
        shape[dim] = -1
        return taken.masked_fill((index < 0).view(shape), padding)


def share(
    heads: Union[Heads, Sequence[Heads]],
    *,
    group: Optional[dist.ProcessGroup] = None,
    mode: str = "auto",
    ulysses_degree: Optional[int] = None,
    num_tokens: int = 8192,
    dtype: torch.dtype = torch.bfloat16,
    device: Union[str, torch.device] = "cpu",
    timeout: int = DEFAULT_TIMEOUT,
) -> Sharing:
    """Chooses how the ranks of a group share rows.

    heads: of all kinds of layers, each with its number of layers. Numbers of heads and elements are at least 1, and num_heads is
        a multiple of num_kv_heads.
    mode: "auto" takes the method that is estimated to be the fastest for rows of `num_tokens` tokens. For ranks on several
        machines without GPUs the estimate uses measured rates of the network, of this group alone; groups of parallelize()
        use the slowest.
    Collective, with the same arguments on all ranks. Raises UsageError on all ranks (on CUDA devices on the rank that is wrong) if
    an argument is wrong or differs, or if the method cannot divide the heads; CommunicationError if a rank does not take part.
    """
    name = name_of(group)
    with _telling(name, bool(name) and "cpu:" not in dist.get_backend_config(group), timeout):
        is_cuda = torch.device(device).type == "cuda"
    with _telling(name, is_cuda, timeout):
        check_types(mode=(mode, str), dtype=(dtype, torch.dtype))
        check_numbers(ulysses_degree=ulysses_degree, num_tokens=num_tokens)
        kinds = [heads] if isinstance(heads, Heads) else list(heads)
        numbers = [whole(number, "a number of Heads") for kind in kinds for number in kind._numbers()]
        element_bytes = dtype.itemsize
    _native.call("compare_calls", f"shares rows by {mode}, ulysses_degree={ulysses_degree}, of heads {numbers}, num_tokens={num_tokens}, "
                 f"{dtype}", "", name, is_cuda, timeout)
    chosen = _native.call("choose", name, mode, [ulysses_degree or 0, 0, 0], numbers, num_tokens, element_bytes, is_cuda, timeout)
    return Sharing(group, chosen[0], tuple(chosen[1]), chosen[2], timeout)


def token_order(sharing: Sharing, documents: Documents, heads: Heads, multiple: int = 1) -> TokenOrder:
    """Returns this rank's tokens of a row. `documents`: the unpadded row's documents, or their lengths. `multiple`, at least 1:
    a number that divides the rank's tokens. Raises UsageError."""
    index, padded = _native.call("token_order", numbers_of(documents), sharing.name, sharing.mode, list(sharing.degrees),
                                 heads._numbers()[1:5], multiple)
    return TokenOrder(index, documents_of(padded))


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    cu_seqlens: Optional[Union[torch.Tensor, Sequence[int]]] = None,
    documents: Optional[Documents] = None,
    group: Optional[dist.ProcessGroup] = None,
    mode: str = "auto",
    ulysses_degree: Optional[int] = None,
    scale: Optional[float] = None,
    window: Optional[int] = None,
    softcap: Optional[float] = None,
    sinks: Optional[torch.Tensor] = None,
    timeout: int = DEFAULT_TIMEOUT,
) -> torch.Tensor:
    """Causal attention within the documents of a row that the ranks of `group` share.

    q: [T, N, H], k: [T, M, H], v: [T, M, V], in the order of token_order(); N is a multiple of M. Returns [T, N, V].
    cu_seqlens: 0, the end of the first document, ..., the number of tokens of the whole row, without padding.
        None: one document, without padding. torch.compile: as a tensor, its values may change without a new compilation.
    documents: in place of cu_seqlens, the documents of the row: their lengths, or a Document for one that has branches.
    mode, ulysses_degree: as in share().
    scale: of q k^T, positive; None: 1 / sqrt(H).
    window: keys that a query sees, including its own; None: all.
    softcap: c in c tanh(scores / c).
    sinks: [N], an additional logit of each query head without a value (gpt-oss). All ranks pass the same sinks. The gradient
        is this rank's part; the sum over the ranks is the gradient.
    timeout: seconds, as in Sharing.

    Differentiable once. The backward reads the result: operations in place need a clone of it. Under torch.autocast q, k and v
    are cast, as those of torch's scaled_dot_product_attention. Every rank of the group calls the function. Raises UsageError,
    CommunicationError.
    """
    with telling(group, q, timeout):
        check_numbers(ulysses_degree=ulysses_degree)
        row = documents_of_row(cu_seqlens, documents)
    return _attend(q, k, v, sinks, row, group, mode, [ulysses_degree or 0, 0, 0], scale, window, softcap, timeout)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    sharing: Sharing,
    documents: Union[Documents, torch.Tensor],
    scale: Optional[float] = None,
    window: Optional[int] = None,
    softcap: Optional[float] = None,
    sinks: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """As attention(), with a method that was chosen before. `documents`: TokenOrder.documents or TokenOrder.row."""
    with telling(sharing.group, q, sharing.timeout):
        row = documents_of_row(None, documents)
    return _attend(q, k, v, sinks, row, sharing.group, sharing.mode, list(sharing.degrees), scale, window, softcap,
                   sharing.timeout)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: Optional[torch.Tensor], documents: Optional[torch.Tensor],
            group: Optional[dist.ProcessGroup], mode: str, degrees: list[int], scale: Optional[float], window: Optional[int],
            softcap: Optional[float], timeout: int) -> torch.Tensor:
    with telling(group, q, timeout):
        if q.dim() != 3 or k.dim() != 3 or v.dim() != 3:
            raise UsageError(f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: each must be [tokens, heads, elements]")
        if isinstance(scale, torch.Tensor) and scale.requires_grad:
            raise UsageError("scale is a tensor that requires a gradient, which attention does not compute: multiply q by it, and "
                             "pass scale=1.0")
        scale = (q.shape[2] or 1) ** -0.5 if scale is None else float(scale)
        window = None if window is None else whole(window, "window")
        softcap = None if softcap is None else float(softcap)
        check_types(mode=(mode, str), sinks=(sinks, (torch.Tensor, type(None))))
    q, k, v = (_native.autocast(x) for x in (q, k, v))
    arguments = q, k, v, sinks, documents, name_of(group), mode, degrees, scale, window, softcap, timeout
    results = checkpointing.open_results()
    return _native.call("attend", *arguments) if results is None else _native.call("attend_saved", *arguments, results)


@contextlib.contextmanager
def _telling(name: str, is_cuda: bool, timeout: int) -> Iterator[None]:
    try:
        check_numbers(timeout=timeout)
        _timeouts[name] = timeout
        yield
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as failure:
        if isinstance(failure, (CommunicationError, torch.OutOfMemoryError)):
            raise
        if not is_count(timeout):
            timeout = _timeouts.get(name, DEFAULT_TIMEOUT)
        _native.call("compare_calls", "", str(failure) or repr(failure), name, is_cuda, timeout)  # raises UsageError
        raise


def telling(group: Optional[dist.ProcessGroup], x: torch.Tensor, timeout: int) -> Any:
    """A context of checks that are not collective. A mistake, also one that Python or torch finds, raises UsageError on all ranks
    of the group: the others are in the call that follows the checks, which compares calls. On CUDA devices the UsageError is
    raised on this rank alone."""
    is_tensor = isinstance(x, torch.Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
    if is_tensor and not has_values(x):
        return contextlib.nullcontext()
    return _telling(name_of(group), is_tensor and x.is_cuda, timeout)


def has_values(x: torch.Tensor) -> bool:
    """Whether x has values that ranks exchange now: not in graphs of torch.compile, nor for fake and meta tensors."""
    return not (torch.compiler.is_compiling() or x.is_meta or type(x).__name__ == "FakeTensor")


@contextlib.contextmanager
def calls_compared() -> Iterator[None]:
    """Within the context this thread's calls are not compared between ranks."""
    before = _native.call("set_calls_compared", True)
    try:
        yield
    finally:
        _native.call("set_calls_compared", before)


def is_count(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool) and int(number) >= 1


def check_numbers(**numbers: Any) -> None:
    """Raises UsageError for what is no integer from 1 on. None: not given, except as a timeout."""
    for name, number in numbers.items():
        if not is_count(number) and (number is not None or name == "timeout"):
            raise UsageError(f"{name} is {number!r}, and must be an integer from 1 on")


def check_types(**given: tuple[Any, Any]) -> None:
    """Raises UsageError for a value that is not of its types."""
    for name, (value, types) in given.items():
        if not isinstance(value, types):
            raise UsageError(f"{name} is {value!r}, and must be a {getattr(types, '__name__', 'torch.Tensor')}")


def _lacks_groups() -> bool:
    """Whether a launcher has started several processes, and nobody has initialized torch.distributed."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and not (dist.is_available() and dist.is_initialized())


def name_of(group: Optional[dist.ProcessGroup]) -> str:
    if group is None:
        if _lacks_groups():
            raise UsageError(f"group is None, and this process is one of {os.environ['WORLD_SIZE']} (WORLD_SIZE): call "
                             "torch.distributed.init_process_group() first. torch.distributed.group.WORLD is None before")
        return ""
    if not isinstance(group, dist.ProcessGroup):
        raise UsageError(f"group is {group!r}: pass a process group that this process belongs to, or None")
    return "" if group.size() == 1 else group.group_name
