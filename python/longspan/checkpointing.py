"""Gradient checkpointing that computes attention once, and products of layers where asked."""

from __future__ import annotations

import functools
import threading
import types
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from longspan import _native
from longspan.errors import UsageError

# The operators below autograd that torch.nn.functional.linear calls.
_PRODUCTS = frozenset([torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default,
                       torch.ops.aten.linear.default])


class _Open(threading.local):
    """The results of the checkpointed region that this thread runs."""

    results: Optional[Any] = None


_open = _Open()


class _Region:
    """Within the context, attention saves results, or replays them. May be entered several times."""

    def __init__(self, results: Any, replays: bool, products: Optional[_Products] = None) -> None:
        self._results, self._replays, self._products = results, replays, products
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        if self._replays:
            _native.call("replay_attention", self._results)
        calls = None if self._products is None else _Calls(self._products.replay() if self._replays else self._products)
        self._outer.append((_open.results, calls))
        _open.results = self._results
        if calls is not None:
            calls.__enter__()

    def __exit__(self, *error: Any) -> None:
        _open.results, calls = self._outer.pop()
        if calls is not None:
            calls.__exit__(*error)


class _Products(TorchDispatchMode):
    """Saves the products of a region, but for the last one: the recomputation ends where the last one begins."""

    def __init__(self) -> None:
        super().__init__()
        self._saved: list[tuple[torch.Tensor, int]] = []  # with the version of each
        self._last: Optional[tuple[torch.Tensor, int]] = None

    def replay(self) -> _ReplayedProducts:
        self._last = None
        return _ReplayedProducts(self._saved)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        if func in _PRODUCTS:
            if self._last is not None:
                self._saved.append(self._last)
            self._last = _alias(out), out._version
        return out


class _ReplayedProducts(TorchDispatchMode):
    """Returns saved products in place of calls, in the same order."""

    def __init__(self, saved: list[tuple[torch.Tensor, int]]) -> None:
        super().__init__()
        self._rest = iter(saved)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = next(self._rest, None) if func in _PRODUCTS else None
        if product is None:
            return func(*args, **kwargs or {})
        out, version = product
        if out._version != version:
            raise UsageError("a product was changed in place after the forward, and gradient checkpointing saved the product: "
                             "change a copy, or pass save_products=False")
        return _alias(out)


def _alias(x: torch.Tensor) -> torch.Tensor:
    """The same memory and version, without a graph."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return x.detach()


class _Calls(TorchFunctionMode):
    """Calls of torch.nn.functional.linear pass the products. Other functions, and graphs of torch.compile, do not."""

    def __init__(self, products: TorchDispatchMode) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.nn.functional.linear:
            return func(*args, **kwargs or {})
        with self._products:
            return func(*args, **kwargs or {})


def save_attention(*, products: bool = False) -> tuple[Any, Any]:
    """The context_fn of a torch.utils.checkpoint.checkpoint() that computes attention once:

        checkpoint(layer, x, use_reentrant=False, context_fn=longspan.save_attention)

    The forward saves the output of each longspan.attention() in the region, as many elements as the output, and one number
    for each token and head. The recomputation takes the saved output, and repeats only the exchanges between ranks (MEMO,
    arXiv 2407.12117). Gradients are equal to the bit. Raises UsageError in the backward if a saved output was changed in
    place.

    products: the forward also saves the results of torch.nn.functional.linear in the region, and the recomputation takes them;
        functools.partial(longspan.save_attention, products=True) is then the context_fn.
    """
    results = _native.call("saved_attention")
    saved = _Products() if products else None
    return _Region(results, False, saved), _Region(results, True, saved)


def open_results() -> Optional[Any]:
    """The results that attention saves or replays now; None outside of save_attention()'s regions."""
    return _open.results


def save_in_layers(model: torch.nn.Module, products: bool) -> None:
    """Adds save_attention(products=products) to the gradient checkpointing of transformers' layers. Leaves reentrant
    checkpointing, which takes no context, and a context_fn of the caller's own as they are. Raises UsageError if products would
    pass by _Calls."""
    if products and not isinstance(torch.nn.functional.linear, types.BuiltinFunctionType):
        raise UsageError("save_products=True needs torch's own torch.nn.functional.linear, and "
                         f"{torch.nn.functional.linear.__module__} has replaced it: leave save_products out, or set "
                         "memory_efficient_linear to false in zero_optimization of DeepSpeed's config")
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if not isinstance(function, functools.partial) or function.func is not checkpoint:
            continue
        if function.keywords.get("use_reentrant") is False and "context_fn" not in function.keywords:
            module._gradient_checkpointing_func = functools.partial(  # pyright: ignore
                function, context_fn=functools.partial(save_attention, products=products))
