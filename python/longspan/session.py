"""A model in training, step by step, with the program's losses or a loss of your own.

A row is one sequence, or several packed sequences (documents), that the ranks of a sequence-parallel group share. L:
labels of this rank's tokens, D: hidden size.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, Union

import torch

from longspan import _native
from longspan._given_config import Config, Overrides, given_config
from longspan._meeting import port_of_start
from longspan._samples import Example, Numbers, Sample, ids_of, tensors_of
from longspan.callbacks import Callback, Listener, dispatch
from longspan.errors import UsageError


@dataclasses.dataclass(frozen=True)
class LossInput:
    """The input of a loss for one row, on one rank of the row. Labels are in row order. A rank may have no labels.

    logprobs: log p of each label, fp64 [L], with a gradient; hidden: final hidden states that predict the labels,
        [L, D], with a gradient. One of both is None.
    places: indices of the predicting tokens among this rank's tokens, int64 [L].
    columns: the samples' columns at the predicting tokens, [L] or [L, k].
    sum_over_row: sums a tensor over the ranks of the row. The gradient passes through unchanged.
    """

    logprobs: Optional[torch.Tensor]
    hidden: Optional[torch.Tensor]
    places: torch.Tensor
    columns: dict[str, torch.Tensor]
    sum_over_row: Callable[[torch.Tensor], torch.Tensor]


LossFunction = Callable[[LossInput], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class BatchCounts:
    """Sums over the rows of all data-parallel groups. weight: labels, pairs or answers: the denominator of the stage's
    loss.
    num_computed_tokens: a prompt that documents share counts once."""

    weight: float
    num_tokens: int
    num_samples: int
    num_computed_tokens: int


@dataclasses.dataclass(frozen=True)
class RowLosses:
    """Each row's contribution to the loss on this rank, without a graph. replicated: equal on all ranks of a row;
    otherwise parts of a sum."""

    contributions: list[torch.Tensor]
    replicated: bool


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The stage's mean loss, and its other means by name."""

    loss: float
    num_samples: int
    num_batches: int
    seconds: float
    means: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer of the model. tokens: without the end token. reason: "stop" (an end token), "length" (max_new_tokens)
    or "context" (max_position_embeddings). logprobs: of each token and of the end token, before top_k and top_p; empty
    unless asked for."""

    tokens: list[int]
    reason: str
    end_token: Optional[int]
    logprobs: list[float]


class Row:
    """A row, and this rank's share of it (Session.row), for the session that made it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle


class Session:
    """A model in training: model, optimizer, and the connections to the other ranks.

        with longspan.Session(dict(model_name_or_path="my-model", learning_rate=1e-5)) as session:
            for ids in batches:
                losses = session.forward_backward([session.row([longspan.Sample(ids)])])
                print(session.sum_up(losses))
                session.clip(session.reduce(), 1.0)
                session.update(1e-5)
            session.save("trained")

    config: a dict, or the path of a YAML or JSON file, with the keys of `longspan train`; data set and output folder
        are not needed.
    overrides: a dict, or words `key=value`. callbacks: get the session's events, on rank 0.
    pictures: samples may have pictures; the session then has the model's vision tower.

    The ranks are those of the launcher (torchrun, mpirun, srun); without a launcher, this process alone. Every method
    is collective unless its comment says otherwise: every rank calls the same methods in the same order. Ranks of a
    sequence-parallel group pass the same rows. Methods raise UsageError for a mistake of the user, and
    CommunicationError if another rank has ended. After a failure of one rank alone, a session of several ranks cannot
    be used any more. Ctrl-C takes effect when the method in progress has returned; other threads of Python run
    meanwhile.
    """

    def __init__(self, config: Config, *, overrides: Overrides = (), callbacks: Sequence[Callback] = (),
                 pictures: bool = False) -> None:
        port = port_of_start()
        self._listener = Listener(functools.partial(dispatch, list(callbacks)), lambda why: None)
        self._handle: Any = None
        with given_config(config, overrides) as (file, words):
            self._handle = self._native("session_open", file, words, self._listener.address, port, pictures)
        self.rank, self.world_size, self.data_parallel_size = self._call("session_place")

    def close(self) -> None:
        """Ends the connections. The session cannot be used any more. No-op for a closed session."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            self._native("session_close", handle, "")

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: object) -> None:
        if error is None:
            self.close()
        elif self._handle is not None:  # the other ranks may not come to close()
            handle, self._handle = self._handle, None
            self._native("session_close", handle, f"{type(error).__name__}: {error}")

    # Rows

    def row(self, samples: Iterable[Union[Sample, Example]]) -> Row:
        """Makes a row of all samples, one document each. Not collective."""
        return Row(self._call("session_row", *tensors_of(samples)))

    def count(self, rows: Sequence[Row]) -> BatchCounts:
        """Returns sums over the rows of all data-parallel groups."""
        return BatchCounts(*self._call("session_count", _handles(rows)))

    def sum_over_groups(self, value: float) -> float:
        """Returns the sum over the data-parallel groups, for the denominator of a loss of your own."""
        return self._call("session_sum_over_groups", float(value))

    # Steps

    @property
    def step(self) -> int:
        """The number of updates and drops so far, or the number that was set. It seeds dropout. Not collective."""
        return self._call("session_step")

    @step.setter
    def step(self, number: int) -> None:
        self._call("session_begin_step", number)

    def forward_backward(
        self,
        rows: Sequence[Row],
        loss: Optional[LossFunction] = None,
        *,
        weight: Optional[float] = None,
        reads: str = "logprobs",
        whole_row: bool = False,
    ) -> RowLosses:
        """Adds the gradient of the rows' losses.

        loss: None: the stage's loss, divided by `weight`, a whole number of at least 1 (None: count(rows).weight, or 1 if
            that is 0). A function: gets a LossInput for each row and returns its loss, a scalar computed from the input.
            Losses of rows are summed, so the function divides by denominators of the whole batch (sum_over_groups).
        reads: "logprobs" or "hidden": what LossInput has.
        whole_row: True if the function returns the whole row's loss on every rank of the row (by sum_over_row); False
            if it returns the loss of this rank's labels.
        Raises the exception of the function, if it raises one.
        """
        if loss is None and (reads != "logprobs" or whole_row):
            raise UsageError("reads and whole_row are for a loss function, and loss is None: pass a function, or leave them out")
        if loss is not None and weight is not None:
            raise UsageError(f"weight is {weight}, and the loss function divides by its own denominators: leave weight out")
        if loss is None:
            weight = None if weight is None else float(weight)
            return RowLosses(*self._call("session_forward_backward", _handles(rows), weight))
        if reads not in ("logprobs", "hidden"):
            raise UsageError(f'reads: {reads!r}, and must be "logprobs" or "hidden"')
        errors: list[BaseException] = []

        def of_row() -> int:
            try:
                value = loss(self._loss_input(reads))
                if not isinstance(value, torch.Tensor):
                    raise UsageError(f"the loss function returned {value!r}, and must return a tensor")
                self._call("loss_result", value)
                return 0
            except BaseException as error:
                errors.append(error)
                return 1

        function = ctypes.CFUNCTYPE(ctypes.c_int)(of_row)
        address = ctypes.cast(function, ctypes.c_void_p).value
        try:
            return RowLosses(*self._call("session_forward_backward_loss", _handles(rows), address, reads == "hidden",
                                         whole_row))
        except Exception:
            if errors:
                raise errors[0] from None
            raise

    def sum_up(self, losses: RowLosses) -> float:
        """Returns the step's loss, summed over all ranks. Called once after forward_backward()."""
        return self._call("session_sum_up", losses.contributions, losses.replicated, [])[0]

    def reduce(self) -> float:
        """Sums the gradients over all ranks. Returns the norm of the sum."""
        return self._call("session_reduce")

    def clip(self, norm: float, max_norm: float) -> None:
        """Scales the gradients by min(1, max_norm / (norm + 1e-6)). norm: finite, of reduce(). max_norm: positive."""
        self._call("session_clip", norm, max_norm)

    def update(self, learning_rate: float) -> None:
        """Updates the parameters with the optimizer of the configuration, and drops the gradients. learning_rate: finite, at
        least 0."""
        self._call("session_update", learning_rate)

    def drop(self) -> None:
        """Drops the gradients without an update."""
        self._call("session_drop")

    # Results

    def parameters(self) -> dict[str, torch.Tensor]:
        """Returns the trained parameters of this rank by name, as the optimizer updates them: whole, or this rank's shards.
        With bf16 they are the fp32 masters, and the model computes with matrices that are rounded to bf16. With pure_bf16
        they are bf16. Between reduce() and update() `.grad` is the gradient. Not collective."""
        names, tensors = self._call("session_parameters")
        return dict(zip(names, tensors))

    def means(self) -> dict[str, float]:
        """Returns the means of the stage's other values since the last call, by name."""
        return json.loads(self._call("session_means"))

    def evaluate(self, samples: Iterable[Union[Sample, Example]], batch_size: int = 1) -> Evaluation:
        """Returns the mean of the stage's loss. All ranks pass all samples. batch_size: samples of a row."""
        loss, num_samples, num_batches, seconds, means = self._call("session_evaluate", *tensors_of(samples), batch_size)
        return Evaluation(loss, num_samples, num_batches, seconds, json.loads(means))

    def label_logprobs(self, row: Row) -> torch.Tensor:
        """Returns log p of the row's labels on this rank, fp64 [L], without a gradient."""
        return self._call("session_label_logprobs", row._handle)

    def generate(
        self,
        prompts: Sequence[Numbers],
        *,
        max_new_tokens: int = 1024,
        end_tokens: Sequence[int] = (),
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int = 42,
        logprobs: bool = False,
        num_at_a_time: int = 8,
    ) -> list[Answer]:
        """Generates answers to prompts (token ids) with the current parameters, on the CPU of rank 0, and returns them
        on every rank. Options as in transformers' GenerationConfig. num_at_a_time: sequences in the key-value cache."""
        texts = self._call("session_generate", [ids_of(prompt) for prompt in prompts], do_sample, temperature, top_k,
                           top_p, repetition_penalty, max_new_tokens, list(end_tokens), seed, logprobs, num_at_a_time)
        return [Answer(**answer) for answer in json.loads(texts)]

    def save(self, folder: Union[str, os.PathLike[str]]) -> None:
        """Saves the model, or the adapter, as a Hugging Face folder."""
        self._call("session_save", _path(folder))

    def save_checkpoint(self, folder: Union[str, os.PathLike[str]], source: str = "") -> str:
        """Saves folder/checkpoint-N after N steps: the model, the optimizer's state, and `source`, the place in your
        data. Returns the folder once the checkpoint is complete, whatever `save_async` is."""
        return self._call("session_save_checkpoint", _path(folder), source)

    def load_checkpoint(self, checkpoint: Union[str, os.PathLike[str]]) -> str:
        """Loads a checkpoint of save_checkpoint() or of a run, also of another number of ranks. Returns its
        `source`."""
        return self._call("session_load_checkpoint", _path(checkpoint))

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._handle is None:
            raise UsageError("this session is closed; make another session")
        return self._native(name, self._handle, *arguments)

    def _native(self, name: str, *arguments: Any) -> Any:
        result = _native.call(name, *arguments)
        error, self._listener.error = self._listener.error, None
        if error is not None:
            raise error
        return result

    def _loss_input(self, reads: str) -> LossInput:
        values, places, names, columns = self._call("loss_input")
        return LossInput(
            logprobs=values if reads == "logprobs" else None,
            hidden=values if reads == "hidden" else None,
            places=places,
            columns=dict(zip(names, columns)),
            sum_over_row=functools.partial(self._call, "loss_sum_over_row"),
        )


def _handles(rows: Sequence[Row]) -> list[Any]:
    return [row._handle for row in rows]


def _path(folder: Any) -> str:
    try:
        return os.fsdecode(folder)
    except TypeError:
        raise UsageError(f"a folder is {folder!r}, and must be a path: pass a str or an os.PathLike") from None
