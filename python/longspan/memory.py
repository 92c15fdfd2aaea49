"""Less memory for activations: MLPs over tiles of tokens, and activations outside of the device."""

from __future__ import annotations

import os
from typing import Any, Callable, Optional, Union

import torch
from torch.utils.checkpoint import checkpoint

from longspan import _native
from longspan.errors import UsageError


def tiled_mlp(mlp: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, tile_tokens: Optional[int] = None) -> torch.Tensor:
    """Applies an MLP to tiles of tokens (TiledMLP in arXiv 2506.13996), so that its inner activations exist for one tile.

    mlp: any function of single tokens, from [..., T, D] to [..., T, E].
    x: [..., T, D].
    tile_tokens: tokens of a tile; None: D.

    The backward computes each tile again (torch.utils.checkpoint; the tiles of Longspan's own layers are bound to their
    layers). Raises UsageError.
    """
    if x.dim() < 2:
        raise UsageError(f"x has the shape {list(x.shape)}, and must be [..., tokens, dim]")
    size = x.shape[-1] if tile_tokens is None else tile_tokens
    if size < 1:
        raise UsageError(f"tile_tokens is {size}, and must be positive")
    tiles = x.split(size, dim=-2)
    if not torch.is_grad_enabled():
        return torch.cat([mlp(tile) for tile in tiles], dim=-2)
    return torch.cat([checkpoint(mlp, tile, use_reentrant=False) for tile in tiles], dim=-2)  # type: ignore[misc]


class TiledMLP(torch.nn.Module):
    """A module in tiles of tokens: model.layers[i].mlp = TiledMLP(model.layers[i].mlp)."""

    def __init__(self, mlp: torch.nn.Module, tile_tokens: Optional[int] = None) -> None:
        super().__init__()
        self.mlp, self.tile_tokens = mlp, tile_tokens

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tiled_mlp(self.mlp, x, self.tile_tokens)


def offload_activations(folder: Optional[Union[str, os.PathLike[str]]] = None, min_bytes: int = 1 << 20) -> OffloadActivations:
    """Returns a context that moves activations that operations in it save for their backward away from the device, and back
    in the backward.

    Copies run beside the computation: the backward of one tensor fetches the one before it. Values are exact: as without the
    context, the backward refuses a saved tensor that was changed in place, by a UsageError.

    folder: activations go into a nameless file there (the folder is made if it is missing); None: into host memory. With None,
        tensors of the CPU stay where they are.
    min_bytes: smaller tensors stay.

    Parameters stay too, and tensors that attention() holds for its backward. torch.compile: compile the parts inside of the
    context, not the context. Raises UsageError if the file cannot be made.
    """
    return OffloadActivations(folder, min_bytes)


class OffloadActivations(torch.autograd.graph.saved_tensors_hooks):
    """The context of offload_activations()."""

    def __init__(self, folder: Optional[Union[str, os.PathLike[str]]], min_bytes: int) -> None:
        if min_bytes < 0:
            raise UsageError(f"min_bytes is {min_bytes}, and must not be negative")
        self._folder = "" if folder is None else os.fspath(folder)
        self._min_bytes = min_bytes
        self._stores: dict[torch.device, Any] = {}
        if folder is not None:
            self._store_of(torch.device("cpu"))  # raises UsageError now if the folder takes no file
        super().__init__(self._pack, self._unpack)

    @property
    def file_bytes(self) -> int:
        """Most bytes in files of `folder` so far."""
        return sum(_native.call("offload_file_bytes", store) for store in self._stores.values())

    def _store_of(self, device: torch.device) -> Any:
        if device not in self._stores:
            self._stores[device] = _native.call("offload_store", device, self._folder)
        return self._stores[device]

    def _pack(self, x: torch.Tensor) -> Any:
        base = x if x._base is None else x._base
        stays = isinstance(base, torch.nn.Parameter) or (base.is_leaf and base.requires_grad)
        stays = stays or x.is_meta or x.layout != torch.strided or x.nbytes < self._min_bytes
        if stays or (x.device.type == "cpu" and not self._folder):
            return x, x._version, None
        dims = sorted(range(x.dim()), key=x.stride, reverse=True)  # with contiguous memory, for a transposed tensor too
        offloaded = _native.call("offload", self._store_of(x.device), x.permute(dims)), dims
        version = x.detach()
        version.data = x.new_empty(0)  # counts the changes of x, and holds no memory of it
        return version, x._version, offloaded

    def _unpack(self, saved: Any) -> torch.Tensor:
        x, version, stored = saved
        if x._version != version:
            raise UsageError(f"offload_activations: a tensor that an operation saved for its backward was changed in place "
                             f"{x._version - version} times since: change a clone of the tensor")
        if stored is None:
            return x
        offloaded, dims = stored
        return _native.call("fetch_offloaded", offloaded).permute([dims.index(i) for i in range(len(dims))])
