"""Predictions of transformers' Trainer: numbers of the tokens of whole rows, from each rank's own logits.

B: rows, S: tokens of a whole row, T: tokens of this rank, padding included.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from longspan._gather import gather_checked
from longspan._rows import IGNORED, ROWS
from longspan._state import State, agree
from longspan.errors import CommunicationError, UsageError

_HOW = ("pass preprocess_logits_for_metrics=..., a function that makes one number for each token, such as "
        "logits.argmax(-1), or set prediction_loss_only=True")


def refuse_metrics(trainer: Any, fused_loss: bool) -> None:
    """Raises UsageError for a trainer whose compute_metrics would get parts of rows, or other numbers than one for each token."""
    from transformers import Trainer

    args = trainer.args
    if not trainer.compute_metrics or args.prediction_loss_only:
        return
    patched = vars(trainer).get("prediction_step")  # of an earlier call it is longspan's
    own_step = type(trainer).prediction_step is not Trainer.prediction_step or not getattr(patched, "is_longspan", patched is None)
    for wrong, name, remedy in [
        (trainer.preprocess_logits_for_metrics is None, "compute_metrics of logits", _HOW),
        (fused_loss, "compute_metrics with fused_loss=True, which makes no logits,", "leave one of the two out"),
        (own_step, f"compute_metrics with the prediction_step of {type(trainer).__name__}", "set prediction_loss_only=True"),
        (set(args.include_for_metrics or []) - {"loss"}, f"include_for_metrics={args.include_for_metrics}",
         'take "loss" alone'),
    ]:
        if wrong:
            raise UsageError(f"Trainer: {name} is not possible on parts of rows: {remedy}")


def gather_predictions(trainer: Any, state: State) -> None:
    """Lets evaluations and predictions return the numbers of whole rows that preprocess_logits_for_metrics makes of logits, and
    labels [B, S]. Without the function, predictions raise UsageError: a rank has the logits of its tokens alone."""
    step, preprocess = trainer.prediction_step, trainer.preprocess_logits_for_metrics
    numbers_of = None if preprocess is None else _NumbersOfTokens(preprocess)

    def prediction_step(model: Any, inputs: Any, prediction_loss_only: bool, *given: Any, **named: Any) -> Any:
        if prediction_loss_only:
            return step(model, inputs, prediction_loss_only, *given, **named)
        if numbers_of is None:
            raise UsageError(f"Trainer: logits of parts of rows are no predictions: {_HOW}, or predict within "
                             "longspan.whole_rows(model) by a loop of your own")
        loss, logits, labels = step(model, inputs, prediction_loss_only, *given, **named)
        numbers = torch.empty(0)
        failure: Optional[UsageError] = None
        cause: Optional[Exception] = None
        try:
            if labels is not None and not inputs[ROWS].has_labels:
                raise UsageError("the batch has shift_labels without labels, which predictions need")
            numbers = numbers_of(logits, labels)
        except (CommunicationError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of the user's function too: all ranks are in agree()
            cause, failure = error, UsageError(f"preprocess_logits_for_metrics: {error or repr(error)}")
        try:
            agree("", failure, state.sharing.timeout)
        except UsageError as told:
            raise told from cause
        if failure is not None:
            raise failure from cause
        numbers = gather_checked(state, numbers, {ROWS: inputs.get(ROWS)})
        if labels is not None:
            labels = gather_checked(state, labels - IGNORED, {ROWS: inputs.get(ROWS)}) + IGNORED
        return loss, numbers, labels

    prediction_step.is_longspan = True  # pyright: ignore[reportFunctionMemberAccess]
    trainer.prediction_step = prediction_step
    if preprocess is not None:
        trainer.preprocess_logits_for_metrics = lambda numbers, labels: numbers


class _NumbersOfTokens:
    """A function of logits [B, T, vocabulary] and labels [B, T] that must make each token's number of the token's own logits
    and label: the first call also passes two parts of the tokens. Integers become int64."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function, self._was_checked = function, False

    def __call__(self, logits: Any, labels: Any) -> torch.Tensor:
        if not isinstance(logits, torch.Tensor):
            raise UsageError("the model returns no logits, or further tensors: leave fused_loss out, and name the further ones in "
                             "keys_to_ignore_at_inference of its config")
        if labels is not None and not isinstance(labels, torch.Tensor):
            raise UsageError('label_names of TrainingArguments names several keys: take ["labels"]')
        numbers = self._function(logits, labels)
        if not isinstance(numbers, torch.Tensor) or numbers.shape != logits.shape[:2]:
            shape = list(numbers.shape) if isinstance(numbers, torch.Tensor) else type(numbers).__name__
            raise UsageError(f"the result is {shape}, and must be {list(logits.shape[:2])}, one number for each token of logits "
                             f"{list(logits.shape)}, such as logits.argmax(-1)")
        if not self._was_checked and numbers.shape[1] > 1:
            half = numbers.shape[1] // 2
            parts = [self._function(logits[:, part], None if labels is None else labels[:, part])
                     for part in (slice(half), slice(half, None))]
            # Sums over parts may round in another order. The tolerance is a choice: the function is not known.
            tolerance = 16 * torch.finfo(numbers.dtype).eps if numbers.is_floating_point() else 0.0
            if not torch.allclose(torch.cat(parts, 1).double(), numbers.double(), rtol=tolerance, atol=tolerance, equal_nan=True):
                raise UsageError("a token's number depends on other tokens, of which a rank lacks some: compute it from the "
                                 "token's own logits and label, and shift in compute_metrics, which gets whole rows")
            self._was_checked = True
        return numbers if numbers.is_floating_point() or numbers.dtype == torch.bool else numbers.long()
