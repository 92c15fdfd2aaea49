"""The options of parallelize(), as a type for functions that pass them on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional, TypedDict


class ParallelizeOptions(TypedDict, total=False):
    """Options of parallelize(), whose docstring explains them; parallelize() also has their defaults."""

    mode: str
    ulysses_degree: Optional[int]
    num_tokens: int
    takeover: Optional[str]
    token_keys: Optional[Mapping[str, float]]
    fused_loss: bool
    fused_layers: bool
    save_attention: bool
    save_products: bool
    allow_unchecked: bool
    timeout: int
