"""Cuts batches of whole rows into this rank's tokens.

B: rows of a batch, S: tokens of a whole row, T: tokens of this rank (padding included).
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch

from longspan import _native
from longspan.attention import Heads, Sharing
from longspan.errors import UsageError

ROWS = "longspan_rows"  # key of a cut batch, and keyword argument of the model's forward
IGNORED = -100  # label of a token without a loss

# Keys of pictures and videos, which a model of pictures gets whole, and keys that state documents as FlashAttention's
# functions take them.
_PICTURE_KEYS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "mm_token_type_ids",
                 "second_per_grid_ts")
DOCUMENT_KEYS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")

# Keys that token_keys cannot name.
TAKEN_KEYS = frozenset(["input_ids", "labels", "shift_labels", "position_ids", "attention_mask", "num_items_in_batch", ROWS,
                        *_PICTURE_KEYS, *DOCUMENT_KEYS])

Digest = tuple[tuple[str, int], ...]  # for each key of a batch, a number of its values


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a batch that was cut.

    key: of the parallelized model. documents: for each row, lengths of the documents of the padded row. digest: of the
    whole batch. index: of the Cut. length: tokens of a whole row, S. failure: why the batch could not be cut, without index.
    """

    key: int
    documents: tuple[tuple[int, ...], ...]
    digest: Digest
    index: Optional[torch.Tensor] = None
    length: int = 0
    failure: str = ""
    largest_position: int = 0  # of position_ids [B, S] of the whole batch, padding included
    label_range: tuple[int, int] = (0, 0)  # the least and the largest label of the whole batch
    has_labels: bool = False  # the batch had labels, and not shift_labels alone

    def to(self, *given: Any, **named: Any) -> Rows:
        """Returns the rows on another device, by the arguments of torch.Tensor.to(): loops move the values of a batch."""
        return self if self.index is None else dataclasses.replace(self, index=self.index.to(*given, **named))


@dataclasses.dataclass(frozen=True)
class Cut:
    """Where the tokens of this rank are in the whole rows.

    index: for each row and token, the index in the whole row; -1: padding. int64 [B, T].
    first, last: first token of a row that is no padding, and the token after the last one. int64 [B, 1].
    documents: for each row, lengths of the documents without padding.
    """

    index: torch.Tensor
    first: torch.Tensor
    last: torch.Tensor
    documents: list[list[int]]
    rows: Rows

    def take(self, whole: torch.Tensor, padding: float) -> torch.Tensor:
        """Returns [B, T, ...] of [B, S, ...]."""
        return take(self.index, whole, padding)


def take(index: torch.Tensor, whole: torch.Tensor, padding: float) -> torch.Tensor:
    """Returns [B, T, ...] of [B, S, ...] by the index of a Cut."""
    index = index.to(whole.device)
    shape = [*index.shape] + [1] * (whole.dim() - 2)
    wide = index.clamp(min=0).view(shape).expand(*index.shape, *whole.shape[2:])
    return whole.gather(1, wide).masked_fill((index < 0).view(shape), padding)


@dataclasses.dataclass(frozen=True)
class RowCutter:
    """Cuts batches by a method's order of tokens. A process of a data loader can use a copy of the object."""

    key: int
    rank: int
    size: int
    mode: str
    degrees: tuple[int, int, int]
    heads: tuple[int, ...]
    token_keys: tuple[tuple[str, float], ...] = ()
    has_pictures: bool = False  # the model gets whole rows, and cuts them after pictures have taken their tokens' places

    @staticmethod
    def of(key: int, sharing: Sharing, heads: Heads, token_keys: Mapping[str, float], has_pictures: bool) -> RowCutter:
        return RowCutter(key, sharing.rank, sharing.size, sharing.mode, sharing.degrees, tuple(heads._numbers()[1:5]),
                         tuple(token_keys.items()), has_pictures)

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Returns the batch with this rank's tokens, with positions and shifted labels that were made on whole rows.

        If several ranks share rows, a batch that cannot be cut becomes one that the model's forward refuses on all of these
        ranks: an exception here would leave the others waiting.
        """
        try:
            return self.split(batch)[0]
        except UsageError as error:
            if self.size == 1:
                raise
            return self._refused(batch, error)

    def _refused(self, batch: Any, error: UsageError) -> dict[str, Any]:
        """Returns a batch of one token with the keys of a cut one."""
        given = set(batch) if isinstance(batch, Mapping) else set()
        zero, ignored = torch.zeros(1, 1, dtype=torch.int64), torch.full((1, 1), IGNORED)
        made: dict[str, Any] = {"input_ids": zero, "position_ids": zero}
        if given & {"labels", "shift_labels"}:
            made |= {"labels": ignored, "shift_labels": ignored}
        made |= {name: torch.full((1, 1), padding) for name, padding in self.token_keys if name in given}
        return made | {ROWS: Rows(self.key, (), (), failure=str(error))}

    def split(self, batch: Any) -> tuple[dict[str, Any], Cut]:
        """As above, with the places of the tokens. Raises UsageError."""
        batch = checked_batch(batch)
        digest = _digest_of(batch)
        ids = batch.pop("input_ids")
        labels, shifted = batch.pop("labels", None), batch.pop("shift_labels", None)
        given, mask = batch.pop("position_ids", None), batch.pop("attention_mask", None)
        borders = {name: value for name in DOCUMENT_KEYS if (value := batch.pop(name, None)) is not None}
        own: dict[str, Any] = {}
        if self.has_pictures and (given is not None or borders):
            own["position_ids"] = axes = _checked_axes(given, ids)
            given = axes[0]
        positions = positions_of(ids, borders) if given is None else _positions_like(given, ids)
        cut = self.cut(ids, positions, mask)
        _check_borders(borders, ids, cut)
        rows = dataclasses.replace(cut.rows, digest=digest, index=cut.index, length=ids.shape[1])
        if self.has_pictures:
            own |= {name: batch.pop(name) for name in _PICTURE_KEYS if name in batch} | {"input_ids": ids}
            own["attention_mask"] = torch.ones_like(ids) if mask is None else mask
        else:
            own = {"input_ids": cut.take(ids, 0), "position_ids": cut.take(positions, 0)}
        if labels is not None or shifted is not None:
            if shifted is None:
                shifted = shift(_like(labels, ids, "labels"), positions, cut)
            own["shift_labels"] = cut.take(_like(shifted, ids, "shift_labels"), IGNORED)
            rows = dataclasses.replace(rows, label_range=_range_of(shifted, cut), has_labels=labels is not None)
            own["labels"] = own["shift_labels"] if labels is None else cut.take(_like(labels, ids, "labels"), IGNORED)
        for name, padding in self.token_keys:
            if name in batch:
                own[name] = cut.take(_like(batch.pop(name), ids, name), padding)
        if "num_items_in_batch" in batch:
            own["num_items_in_batch"] = batch.pop("num_items_in_batch")
        if batch:
            raise UsageError(
                f"the batch has {', '.join(sorted(batch))}, and longspan does not know how to cut it: remove it from the "
                "batch, or, if it has one number for each token [rows, tokens], name it in parallelize(token_keys={name: "
                "the value of padding})."
            )
        return own | {ROWS: rows}, dataclasses.replace(cut, rows=rows)

    def cut(self, ids: torch.Tensor, positions: torch.Tensor, mask: Optional[torch.Tensor]) -> Cut:
        """ids, positions, mask (1: a token, 0: padding at the ends of a row): [B, S]."""
        first, last = _bounds(ids, mask)
        positions = positions.cpu()
        documents = [_documents(positions[b, first[b]:last[b]]) for b in range(len(ids))]
        index, padded = self.order(documents)
        real = torch.tensor([sum(lengths) for lengths in documents])[:, None]
        begin = torch.tensor(first)[:, None]
        index = torch.where((index < 0) | (index >= real), -1, index + begin)
        return Cut(index, begin, torch.tensor(last)[:, None], documents,
                   Rows(self.key, padded, (), largest_position=int(positions.max())))

    def order(self, documents: Sequence[Sequence[int]]) -> tuple[torch.Tensor, tuple[tuple[int, ...], ...]]:
        """Returns index [B, T] and the documents of the padded rows, which all have the same length. `index` counts in the
        row without padding; a row that is shorter than others has tokens of a further document at its end."""
        orders = [self._order_of(row or [1]) for row in documents]
        goal = max(sum(padded) for _, padded in orders)
        for b, row in enumerate(documents):
            if sum(orders[b][1]) == goal and row:
                continue
            fill = goal - sum(row)
            orders[b] = self._order_of([*row, fill])
            if (over := sum(orders[b][1]) - goal) > 0:  # the method pads each document
                orders[b] = self._order_of([*row, fill - over])
        return torch.stack([index for index, _ in orders]), tuple(padded for _, padded in orders)

    def _order_of(self, documents: Sequence[int]) -> tuple[torch.Tensor, tuple[int, ...]]:
        index, padded = _native.call("token_order_of", list(documents), self.rank, self.size, self.mode, list(self.degrees),
                                     list(self.heads), 1)
        return index, tuple(padded)


def _digest_of(batch: Mapping[str, Any]) -> Digest:
    """Pictures in floating point count by their shapes: processors of different CPUs may round them in different ways."""
    return tuple((name, _number_of(batch[name], name not in _PICTURE_KEYS)) for name in sorted(batch))


def _number_of(value: Any, has_bits: bool) -> int:
    if not isinstance(value, torch.Tensor):
        return zlib.crc32(repr(value).encode())
    number = zlib.crc32(repr((value.shape, value.dtype)).encode())
    if value.is_floating_point() and not has_bits:
        return number
    return zlib.crc32(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, number)


def checked_batch(batch: Any) -> dict[str, Any]:
    """Returns the batch as a dictionary with [B, S] `input_ids`."""
    if not isinstance(batch, Mapping):
        raise UsageError(f"a batch is a {type(batch).__name__}, and must be a mapping with input_ids")
    if ROWS in batch:
        raise UsageError("the batch was cut before: pass the loader through parallelize() once")
    ids = batch.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.numel() == 0:
        shape = list(ids.shape) if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise UsageError(f"input_ids of a batch is {shape}, and must be a tensor [rows, tokens] with at least one token")
    return dict(batch)


def positions_of(ids: torch.Tensor, borders: Mapping[str, Any]) -> torch.Tensor:
    """Returns positions [B, S] that begin with 0 in each document. `borders`: values of DOCUMENT_KEYS: cu_seq_lens_q or
    cu_seq_lens_k of the only row (0, the end of the first document, ...), or seq_idx [B, S], the number of a token's
    document. Without one of these keys a row is one document."""
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        if name not in borders:
            continue
        ends = _ends(borders[name], name)
        if len(ids) != 1 or ends[:1] != [0] or ends[-1] != ids.shape[1] or any(a >= b for a, b in zip(ends, ends[1:])):
            raise UsageError(f"{name} {_brief(ends)} of a batch {list(ids.shape)}: must begin with 0, increase, and end with the "
                             "number of tokens of the only row")
        return torch.cat([torch.arange(b - a, device=ids.device) for a, b in zip(ends, ends[1:])])[None]
    place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    if "seq_idx" not in borders:
        return place
    begins = torch.nn.functional.pad(_like(borders["seq_idx"], ids, "seq_idx").diff(dim=1) != 0, (1, 0))
    return place - (place * begins.to(place.device)).cummax(1).values


def _ends(given: Any, name: str) -> list[int]:
    """Returns the borders of documents, each once: a document without tokens repeats one."""
    return [end for end, _ in itertools.groupby(_integers(given, name))]


def _integers(given: Any, name: str) -> list[int]:
    """Returns the integers of a key [n] or [1, n] of a batch, or of a key with one number (n: 1)."""
    try:
        numbers = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name} of a batch is a {type(given).__name__}, and must be a tensor of integers") from None
    if numbers.numel() == 0 or numbers.numel() != numbers.shape[-1:].numel() or numbers.is_floating_point():
        raise UsageError(f"{name} of a batch is {list(numbers.shape)} of {numbers.dtype}, and must be one list of integers")
    return numbers.flatten().tolist()


def _check_borders(borders: Mapping[str, Any], ids: torch.Tensor, cut: Cut) -> None:
    """Raises UsageError for a key of a batch that states other documents than those of the cut."""
    lengths = [length for row in cut.documents for length in row]
    for name, given in borders.items():
        if name == "seq_idx":
            rows = [row[int(a):int(b)] for row, a, b in zip(_like(given, ids, name).cpu(), cut.first, cut.last)]
            stated = [length for row in rows for length in _runs(row.diff() != 0, len(row))]
            agrees = all(map(_numbers_agree, rows, cut.documents))
        elif name in ("max_length_q", "max_length_k"):  # at least the length of the longest document
            stated = max(_integers(given, name))
            agrees = stated >= max(lengths, default=0)
        else:
            stated = _ends(given, name)
            agrees = stated == [0, *itertools.accumulate(lengths)]
        if not agrees:
            raise UsageError(f"{name} of a batch states {_brief(stated)}, and the documents of the batch, by its other keys, have "
                             f"{_brief(lengths)} tokens: leave {name} out, or let all keys state the same documents")


def _numbers_agree(numbers: torch.Tensor, documents: list[int]) -> bool:
    """numbers: of each token's document. Negative ones are padding, whose tokens may be documents of any lengths."""
    ends = torch.zeros(len(numbers), dtype=torch.bool)
    ends[[end - 1 for end in itertools.accumulate(documents)]] = True
    is_padding = (numbers[1:] < 0) & (numbers[:-1] < 0)
    return bool(((numbers.diff() != 0) == ends[:-1]).logical_or(is_padding).all())


def _brief(numbers: Any) -> str:
    return str(numbers) if not isinstance(numbers, list) or len(numbers) <= 12 else f"{str(numbers[:12])[:-1]}, ...]"


def _checked_axes(positions: Any, ids: torch.Tensor) -> torch.Tensor:
    """Returns the positions [4, B, S] of rows with pictures: in the document, then in time, height and width."""
    wanted = [4, *ids.shape]
    if not isinstance(positions, torch.Tensor) or list(positions.shape) != wanted:
        shape = list(positions.shape) if isinstance(positions, torch.Tensor) else type(positions).__name__
        raise UsageError(f"position_ids of a batch for a model of pictures is {shape}, and must be {wanted}: a token's place in "
                         "its document, and its positions in time, height and width, as get_rope_index() of the model returns "
                         "for the document. Rows of one document need no position_ids")
    return positions


def shift(labels: torch.Tensor, positions: torch.Tensor, cut: Cut) -> torch.Tensor:
    """Returns the label of the next token, [B, S]; the last token of a document has none."""
    device = labels.device
    labels, positions = labels.cpu(), positions.cpu()
    place = torch.arange(labels.shape[1])
    if ((labels != IGNORED) & ((place < cut.first) | (place >= cut.last))).any():
        raise UsageError("labels has labels where attention_mask is 0: set these labels to -100, as transformers' data "
                         "collators do")
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    continues = torch.nn.functional.pad(positions.diff(dim=1) == 1, (0, 1), value=False)
    continues &= place + 1 < cut.last
    return shifted.masked_fill(~continues, IGNORED).to(device)


def _range_of(labels: torch.Tensor, cut: Cut) -> tuple[int, int]:
    """The least and the largest label of the tokens that are no padding."""
    labels, place = labels.cpu(), torch.arange(labels.shape[1])
    real = labels[(place >= cut.first) & (place < cut.last) & (labels != IGNORED)]
    return (int(real.min()), int(real.max())) if len(real) else (0, 0)


def _like(values: Any, ids: torch.Tensor, name: str) -> torch.Tensor:
    if not isinstance(values, torch.Tensor) or values.dim() < 2 or values.shape[:2] != ids.shape:
        shape = list(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
        raise UsageError(f"{name} of a batch is {shape}, and must be {list(ids.shape)} as input_ids")
    return values


def _positions_like(positions: Any, ids: torch.Tensor) -> torch.Tensor:
    """Returns the integers [B, S] of position_ids [B, S], or [1, S] for all rows."""
    if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape not in (ids.shape, (1, ids.shape[1])):
        shape = list(positions.shape) if isinstance(positions, torch.Tensor) else type(positions).__name__
        raise UsageError(f"position_ids of a batch is {shape}, and must be {list(ids.shape)} as input_ids, or {[1, ids.shape[1]]}")
    if positions.dtype == torch.bool or positions.is_floating_point() or positions.is_complex():
        raise UsageError(f"position_ids of a batch is of {positions.dtype}, and must be of integers")
    return positions.expand_as(ids)


def _bounds(ids: torch.Tensor, mask: Optional[torch.Tensor]) -> tuple[list[int], list[int]]:
    """Returns the first token of each row that is no padding, and the token after the last one."""
    num_rows, num_tokens = ids.shape
    if mask is None:
        return [0] * num_rows, [num_tokens] * num_rows
    if mask.dim() != 2 or mask.shape != ids.shape:
        raise UsageError(f"attention_mask is {list(mask.shape)}, and must be {list(ids.shape)} as input_ids: longspan makes "
                         "causal masks itself, and takes no others")
    mask = mask.cpu()
    if not ((mask == 0) | (mask == 1)).all():
        raise UsageError("attention_mask has other values than 0 and 1: state documents of packed rows by position_ids, "
                         "which begin with 0 in each document")
    mask = mask.bool()
    counts = mask.sum(1)
    first = torch.where(counts > 0, mask.int().argmax(1), 0)
    place = torch.arange(num_tokens)
    if not (mask == ((place >= first[:, None]) & (place < (first + counts)[:, None]))).all():
        raise UsageError("attention_mask has zeros between ones: only padding at the ends of a row is possible")
    return first.tolist(), (first + counts).tolist()


def _documents(positions: torch.Tensor) -> list[int]:
    """Lengths of documents: runs of tokens whose positions increase by one."""
    return _runs(positions.diff() != 1, len(positions))


def _runs(ends: torch.Tensor, count: int) -> list[int]:
    """Lengths of the runs of `count` tokens. ends: for each token but the last, whether it ends a run."""
    if count == 0:
        return []
    begins = [0, *(ends.nonzero().view(-1) + 1).tolist(), count]
    return [b - a for a, b in zip(begins, begins[1:])]
