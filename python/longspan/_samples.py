"""Documents of a session, and the arguments of the operators that make rows of them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from longspan.errors import UsageError

if TYPE_CHECKING:
    import numpy

Numbers = Union[torch.Tensor, Sequence[int], Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Sample:
    """A tokenized document.

    input_ids: token ids.
    labels: a token id or -100 (no label) for each token, NOT shifted, as in transformers; None: input_ids.
    columns: named numbers for each token, [tokens] or [tokens, k], for a loss of your own. All samples of a session
        have the same columns. Columns are not shifted: number i belongs to token i, and the loss sees the number of the
        token that PREDICTS a label, the one before the label.
    pictures: picture files or decoded pictures, in the order of their tokens, in a session with pictures=True. A decoded
        picture is red, green and blue of each pixel, uint8 [height, width, 3], and is copied. input_ids have one token
        for each feature of a picture, as the model's processor of transformers makes them. The session applies the
        model's own processor.
    pixel_values, image_grid_thw: in place of `pictures`, the results of the model's processor of transformers: patches
        [patches, numbers of a patch], copied, and the temporal patches (1), rows and columns of each picture.
    """

    input_ids: Numbers
    labels: Optional[Numbers] = None
    columns: Mapping[str, Numbers] = dataclasses.field(default_factory=dict)
    pictures: Sequence[Union[str, os.PathLike[str], torch.Tensor, numpy.ndarray]] = ()
    pixel_values: Optional[torch.Tensor] = None
    image_grid_thw: Optional[torch.Tensor] = None


@dataclasses.dataclass(frozen=True)
class Example:
    """Documents that belong together: for dpo and rm the chosen and the rejected answer, for kto the answer and another
    one to the same prompt, for grpo the answers of a group (with advantages as a column). desirable: of kto."""

    documents: Sequence[Sample]
    desirable: bool = True


def ids_of(numbers: Numbers) -> torch.Tensor:
    ids = torch.as_tensor(numbers)
    if ids.dtype in (torch.int32, torch.int16, torch.uint8) or ids.numel() == 0:
        ids = ids.long()
    return ids.detach()


def _column(numbers: Numbers) -> torch.Tensor:
    # Lists of integers and of floats in one column would have two dtypes.
    return numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers, dtype=torch.double)


def _pixels(picture: Any) -> torch.Tensor:
    if isinstance(picture, (str, os.PathLike)):
        return torch.empty(0)
    try:
        return picture if isinstance(picture, torch.Tensor) else torch.tensor(picture)
    except (RuntimeError, TypeError, ValueError):
        raise UsageError(f"a picture is a {type(picture).__name__}, and must be a file's name or an array of pixels; of "
                         'Pillow\'s pictures, numpy.asarray(picture.convert("RGB"))') from None


def _pictures(sample: Sample) -> tuple[list[str], list[torch.Tensor], list[int]]:
    """Returns the file, the pixels and the grid of each picture. A picture has a file or pixels, and a grid if the pixels
    are patches."""
    if sample.pixel_values is None and sample.image_grid_thw is None:
        files = [os.fspath(one) if isinstance(one, (str, os.PathLike)) else "" for one in sample.pictures]
        return files, [_pixels(one) for one in sample.pictures], [0, 0, 0] * len(files)
    if sample.pixel_values is None or sample.image_grid_thw is None or len(sample.pictures) > 0:
        raise UsageError("a sample has pixel_values together with image_grid_thw, and then no `pictures`")
    grids = torch.as_tensor(sample.image_grid_thw, dtype=torch.long).view(-1, 3)
    counts = [math.prod(grid) for grid in grids.tolist()]
    if min(counts, default=0) < 0 or sum(counts) != len(sample.pixel_values):
        raise UsageError(f"image_grid_thw {grids.tolist()} has {sum(counts)} patches, and pixel_values have "
                         f"{len(sample.pixel_values)}")
    return [""] * len(counts), list(sample.pixel_values.detach().split(counts)), grids.view(-1).tolist()


def tensors_of(samples: Iterable[Union[Sample, Example]]) -> tuple[Any, ...]:
    """Returns the arguments of session_row and session_evaluate."""
    examples = [given if isinstance(given, Example) else Example([given]) for given in samples]
    documents = [sample for example in examples for sample in example.documents]
    names = list(documents[0].columns) if documents else []
    for sample in documents:
        if set(sample.columns) != set(names):
            given = f"{sorted(names)} and {sorted(sample.columns)}"
            raise UsageError(f"columns {given}: all samples must have the same columns")
    columns = [_column(sample.columns[name]) for sample in documents for name in names]
    ids = [ids_of(sample.input_ids) for sample in documents]
    labels = [tokens if sample.labels is None else ids_of(sample.labels) for tokens, sample in zip(ids, documents)]
    counts = [len(example.documents) for example in examples]
    pictures = [_pictures(sample) for sample in documents]
    files, pixels, grids = ([one for parts in pictures for one in parts[kind]] for kind in range(3))
    return (ids, labels, counts, [int(example.desirable) for example in examples], names, columns, files, pixels, grids,
            [len(parts[0]) for parts in pictures])
