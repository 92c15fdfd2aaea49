"""Documents of a packed row, and documents with branches."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import torch

from longspan.errors import UsageError


def whole(number: Any, name: str) -> int:
    """The number as an int. Raises UsageError for what is no integer."""
    if isinstance(number, int):
        return number
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(f"{name} is {number!r}, and must be an integer: pass an int") from None


@dataclasses.dataclass(frozen=True)
class Document:
    """A document, or a part of one: its own tokens, then its branches one after the other.

    A token sees earlier tokens of its part, and all own tokens of the part that the branch continues, up to the document's
    first part. Branches do not see each other: several answers to one prompt are one document, which computes the prompt
    once. Document(100, (Document(20), Document(30))) has 150 tokens.

    length: number of own tokens, positive.
    branches: none, or two or more.
    """

    length: int
    branches: tuple[Document, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", whole(self.length, "Document: length"))
        object.__setattr__(self, "branches", tuple(self.branches))
        if self.length <= 0:
            raise UsageError(f"Document: length is {self.length}, and must be positive")
        if len(self.branches) == 1:
            raise UsageError("Document: 1 branch, and two or more are needed: add its length to the document's own")

    @property
    def num_tokens(self) -> int:
        """Tokens of the document with all branches."""
        return self.length + sum(branch.num_tokens for branch in self.branches)

    def positions(self) -> list[int]:
        """The position of each token: a branch continues the positions of the part before it."""
        return list(self._positions(0))

    def _positions(self, first: int) -> Iterator[int]:
        yield from range(first, first + self.length)
        for branch in self.branches:
            yield from branch._positions(first + self.length)

    def _segments(self, begin: int, parent: int, segments: list[tuple[int, int]]) -> int:
        """Adds the begins and parents of all parts, in the order of tokens. Returns the end."""
        own = len(segments)
        segments.append((begin, parent))
        end = begin + self.length
        for branch in self.branches:
            end = branch._segments(end, own, segments)
        return end


Documents = Sequence[Union[int, Document]]


def numbers_of(documents: Documents) -> list[int]:
    """The documents as operators take them (bindings/packing_numbers.h)."""
    numbers: list[int] = []
    for document in documents:
        if not isinstance(document, Document):
            numbers += [whole(document, "documents: a length"), 0]
            continue
        segments: list[tuple[int, int]] = []
        if document.branches:
            document._segments(0, -1, segments)
        numbers += [document.num_tokens, len(segments)]
        for segment in segments:
            numbers += segment
    return numbers


def documents_of(numbers: Sequence[int]) -> tuple[Union[int, Document], ...]:
    """The inverse of numbers_of()."""
    documents: list[Union[int, Document]] = []
    rest = iter(numbers)
    for length in rest:
        segments = [(next(rest), next(rest)) for _ in range(next(rest))]
        documents.append(_tree_of(segments, length) if segments else length)
    return tuple(documents)


def _tree_of(segments: list[tuple[int, int]], length: int) -> Document:
    ends = [begin for begin, _ in segments[1:]] + [length]
    branches: list[list[Document]] = [[] for _ in segments]
    for i in range(len(segments) - 1, 0, -1):
        begin, parent = segments[i]
        branches[parent].insert(0, Document(ends[i] - begin, tuple(branches[i])))
    return Document(ends[0], tuple(branches[0]))


def documents_of_row(
    cu_seqlens: Optional[Union[torch.Tensor, Sequence[int]]], documents: Optional[Union[Documents, torch.Tensor]]
) -> Optional[torch.Tensor]:
    """The documents of an argument `cu_seqlens` or `documents`, as operators take them. None: one document."""
    if documents is not None:
        if cu_seqlens is not None:
            raise UsageError("cu_seqlens and documents are both given: pass one of them")
        return documents if isinstance(documents, torch.Tensor) else torch.tensor(numbers_of(documents), dtype=torch.int64)
    if cu_seqlens is None:
        return None
    if isinstance(cu_seqlens, torch.Tensor) and (cu_seqlens.dim() != 1 or cu_seqlens.is_floating_point()):
        raise UsageError(f"cu_seqlens is {cu_seqlens.dtype} {list(cu_seqlens.shape)}, and must be integers in one dimension")
    if isinstance(cu_seqlens, torch.Tensor) and torch.compiler.is_compiling():
        # A graph that serves all rows: the operator reads the lengths when it runs, and refuses those that are not positive.
        borders = cu_seqlens.to("cpu", torch.int64)
        lengths = torch.where(borders[0] == 0, borders.diff(), -borders[0].abs())
        return torch.stack([lengths, torch.zeros_like(lengths)], 1).flatten()
    ends = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else cu_seqlens
    ends = [whole(end, "cu_seqlens: a number") for end in ends]
    if len(ends) < 2 or ends[0] != 0 or any(a >= b for a, b in zip(ends, ends[1:])):
        raise UsageError(f"cu_seqlens {ends}: must begin with 0 and increase")
    return torch.tensor(numbers_of([b - a for a, b in zip(ends, ends[1:])]), dtype=torch.int64)
