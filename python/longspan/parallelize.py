"""One line that lets ranks share the rows of a Hugging Face model's training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, TypeVar, Union, overload

import torch
from typing_extensions import Unpack

from longspan import _fused_layers, _gather, _head, _hf_attention, _loss, _pictures, _recurrent, _rope, checkpointing
from longspan._loader import ParallelLoader
from longspan._loss import loss_function, world_size
from longspan._models import base_of, check_token_keys, heads_of, text_config_of
from longspan._options import ParallelizeOptions
from longspan._registry import add, next_key, parallelized, state_of_model
from longspan._rows import IGNORED, RowCutter
from longspan._state import State, agree, outside_graphs, refuse, sequence_group, share_alike
from longspan.attention import DEFAULT_TIMEOUT, check_numbers
from longspan.errors import UsageError

Model = TypeVar("Model", bound=torch.nn.Module)


@overload
def parallelize(
    model: Model, loader: None = None, *, sequence_parallel_size: int, **options: Unpack[ParallelizeOptions]
) -> tuple[Model, None]: ...


@overload
def parallelize(
    model: Model, loader: Iterable[Any], *, sequence_parallel_size: int, **options: Unpack[ParallelizeOptions]
) -> tuple[Model, ParallelLoader]: ...


def parallelize(
    model: Model,
    loader: Optional[Iterable[Any]] = None,
    *,
    sequence_parallel_size: int,
    mode: str = "auto",
    ulysses_degree: Optional[int] = None,
    num_tokens: int = 8192,
    takeover: Optional[str] = None,
    token_keys: Optional[Mapping[str, float]] = None,
    fused_loss: bool = False,
    fused_layers: bool = False,
    save_attention: bool = True,
    save_products: bool = False,
    allow_unchecked: bool = False,
    timeout: int = DEFAULT_TIMEOUT,
) -> tuple[Model, Optional[ParallelLoader]]:
    """Lets each `sequence_parallel_size` neighbouring ranks share the rows of a model's training.

    model: a causal language model of transformers, or PEFT's model around one, before DDP, FSDP or DeepSpeed. It is changed
        in place: attention, loss, and recurrent layers.
    loader: yields batches of whole rows: input_ids [B, S], and labels, shift_labels, attention_mask (padding at the ends of
        rows), position_ids (a packed row's documents are runs of positions that increase by 1), or cu_seq_lens_q, cu_seq_lens_k,
        seq_idx. None: no loader. parallelize_loader() takes further loaders.
    mode: a value of sequence_parallel_mode. "auto": the method that is estimated to be the fastest for rows of `num_tokens`
        tokens, with the slowest network of all groups of ranks that share rows.
    takeover: name of a function of transformers' attention, such as "sdpa", that the model keeps in its config and that
        runs longspan's attention; for code that checks names.
    token_keys: further keys of batches, [B, S], with the value of padding tokens.
    fused_loss: the head computes the loss with the logits of a part of the tokens at a time, in a fraction of their memory.
        model(**batch).logits is None for a batch with labels.
    fused_layers: norms and gates of MLPs read and write memory once, and save nothing but their inputs for the backward.
    save_attention: gradient checkpointing that is not reentrant saves the output of attention, as large as the queries,
        and computes attention once (save_attention()).
    save_products: gradient checkpointing that is not reentrant also saves the results of the layers' torch.nn.Linear, except
        for a layer's last one, and computes them once. For each token a layer of a llama keeps 2 x intermediate_size +
        hidden_size numbers and its queries, keys and values.
    allow_unchecked: accepts a config.model_type that was not compared with training on one process.
    timeout: seconds that a collective may take. This call waits with the timeout of the process's first call. The first
        meeting takes at most 300 s of it, and 10 s more (GPUs: 90 s).

    Returns the model and a loader of this rank's tokens. model(**batch).loss is the mean over the labels of all ranks, and
    its gradients are right after backward() without a wrapper, and under DDP, FSDP and DeepSpeed over all ranks. A label of
    the first token of a document is not predicted from the document before it. Collective over all ranks. Raises
    UsageError, CommunicationError.
    """
    try:
        check_numbers(sequence_parallel_size=sequence_parallel_size, ulysses_degree=ulysses_degree, num_tokens=num_tokens,
                      timeout=timeout)
        check_token_keys(token_keys)
        base = base_of(model)
        config = text_config_of(base, allow_unchecked)
        heads = heads_of(config)
        _recurrent.check(base, config)
        if fused_loss:
            _head.check(base, config)
        if save_products and not save_attention:
            raise UsageError("save_products=True needs save_attention=True: leave one of them out")
        if fused_layers:
            _fused_layers.check(config)
    except (AttributeError, TypeError, ValueError) as failure:
        refuse(failure, timeout)
        raise
    dtype, device = next(base.parameters()).dtype, next(base.parameters()).device
    agree(f"{config.model_type}, {dtype}, {device.type}, sequence_parallel_size={sequence_parallel_size}, mode={mode}, "
          f"ulysses_degree={ulysses_degree}, num_tokens={num_tokens}, takeover={takeover}, token_keys={token_keys}, "
          f"fused_loss={fused_loss}, fused_layers={fused_layers}, save_attention={save_attention}, "
          f"save_products={save_products}, {heads}", None, timeout)
    group, data_rank, data_size = sequence_group(sequence_parallel_size)
    if sequence_parallel_size == 1:
        group = None
    sharing = share_alike(heads, group, mode, device, timeout, ulysses_degree=ulysses_degree, num_tokens=num_tokens,
                          dtype=dtype)
    has_pictures = config is not base.config
    cutter = RowCutter.of(next_key(), sharing, heads[0], token_keys or {}, has_pictures)
    state = State(cutter.key, sharing, heads[0], cutter, data_rank, data_size, config,
                  config._attn_implementation, (takeover or _hf_attention.NAME, _hf_attention.NAME))

    # All checks of this model are behind, and the changes begin: a model that was refused is as it was.
    _hf_attention.install()
    if takeover is not None:
        _hf_attention.take_over(takeover)
    _recurrent.install(base, state, num_tokens)
    add(state)
    config._attn_implementation = takeover or _hf_attention.NAME
    if fused_loss:
        _head.install(base, state)
    if fused_layers:
        _fused_layers.install(base, config)
    if hasattr(base, "loss_function"):
        base.loss_function = loss_function(base.loss_function, group, state.begin_loss,  # pyright: ignore
                                           lambda: state.head_labels is not None, timeout)
    _rope.install(base, state)
    if has_pictures:
        _pictures.install(base, state)
    base._longspan_key = state.key  # pyright: ignore[reportArgumentType]
    if save_attention:
        base.register_forward_pre_hook(outside_graphs(lambda module, given: checkpointing.save_in_layers(
            module, save_products)))
    base.register_forward_pre_hook(outside_graphs(state.before_forward), with_kwargs=True)
    base.register_forward_hook(outside_graphs(state.end_forward), always_call=True)
    base.register_forward_hook(outside_graphs(state.after_forward))
    return model, None if loader is None else _loader_of(state, loader)


def parallelize_loader(model: torch.nn.Module, loader: Iterable[Any]) -> ParallelLoader:
    """Returns a loader of this rank's tokens, as parallelize() does: a further one, such as of held-out rows.

    model: after parallelize(), also within wrappers. loader: yields batches of whole rows. Iterating is collective over all
        ranks. Without gradients the loss of a batch is the mean of the group that shares the batch. A group for which no batch
        is left gets one without labels, whose loss is 0: evaluate() computes the mean over all labels. Raises UsageError.
    """
    return _loader_of(state_of_model(model), loader)


def evaluate(model: torch.nn.Module, loader: Iterable[Any]) -> tuple[float, int]:
    """Returns the mean loss over the labels of all batches of all ranks, and the number of these labels.

    model: after parallelize(), also within wrappers; in evaluation mode during the call. loader: of parallelize_loader(). Without
    labels the mean is 0. Batches go to the device of the parameters, and stay where they are if the parameters are on the CPU,
    for wrappers that keep parameters there. num_items_in_batch and token_keys of batches are left out. Collective over all ranks.
    Raises UsageError, CommunicationError.
    """
    state = state_of_model(model)
    timeout, device = state.sharing.timeout, next(model.parameters()).device
    left_out = {"num_items_in_batch", *(name for name, _ in state.cutter.token_keys)}
    modes = [(module, module.training) for module in model.modules()]
    sums: list[torch.Tensor] = []
    failure: Optional[UsageError] = None
    model.eval()
    try:
        with torch.no_grad():
            for batch in loader:
                batch = {name: value.to(device) if hasattr(value, "to") and device.type != "cpu" else value
                         for name, value in batch.items() if name not in left_out}
                try:
                    sums.append(_sum_of_losses(model, batch))
                except UsageError as error:  # the other groups go on
                    failure = failure or error
    finally:
        for module, trains in modes:
            module.training = trains
    agree("", failure, timeout)
    if failure is not None:
        raise failure
    own = torch.stack(sums).sum(0) if sums else torch.zeros(2, dtype=torch.double, device=device)
    total, count = _loss.all_sum(own, None, timeout).tolist()
    return total / max(count, 1), int(count)


def _sum_of_losses(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    """Returns the sum of this rank's part of the losses of a batch, and the number of its labels. The loss is a mean of the
    group: each rank of the group takes its part of the labels. The forward comes first, as it compares the batches."""
    loss = model(**batch).loss
    if loss is None:
        raise UsageError("a batch has no labels: evaluate() takes batches with labels or shift_labels")
    count = (batch["shift_labels"] != IGNORED).sum().to(loss.device)
    return torch.stack([loss.double() * count, count.double()])


def _loader_of(state: State, loader: Iterable[Any]) -> ParallelLoader:
    return ParallelLoader(loader, state.cutter, state.data_rank, state.data_size, state.sharing.timeout)


@contextlib.contextmanager
def whole_rows(model: torch.nn.Module, implementation: Optional[str] = None) -> Iterator[None]:
    """Within the context a parallelized model runs on whole rows by itself, for example to generate. `implementation`: of
    transformers' attention; None: the one before parallelize(). Raises UsageError for "sdpa" where the model lacks it."""
    if implementation == "sdpa" and not parallelized(model)._supports_sdpa:
        raise UsageError("implementation='sdpa' ignores sinks or softcaps of this model: pass 'eager', or leave it out")
    with state_of_model(model).whole_rows(implementation):
        yield


def mean_loss(model: torch.nn.Module, total: torch.Tensor, count: torch.Tensor,
              num_items_in_batch: Optional[Union[torch.Tensor, int]] = None) -> torch.Tensor:
    """A loss of the caller's own. total: sum of the losses of this rank's tokens, or on each rank of a group that of whole rows
    (gather_tokens()). count: number of these losses. num_items_in_batch: the labels of all batches of a step and of all ranks,
    as Trainer passes them to compute_loss(), each counted once: a total of whole rows is then divided by the number of ranks
    that share rows before the call, since each of them passes it.

    Returns the mean over the tokens of all ranks, with a gradient that is right for every wrapper (see _loss.py); without
    gradients, the mean over the ranks that share the rows. With num_items_in_batch the total is divided by this number, and the
    mean of the ranks' results is the batch's part of the mean over the step. Collective over all ranks; without gradients, over
    those that share the rows. Raises UsageError on each of them, CommunicationError.
    """
    state = state_of_model(model)
    state.begin_loss()
    sharing = state.sharing
    _loss.check_total(total, count, num_items_in_batch, sharing.group, sharing.timeout)
    loss = _loss.mean_loss(total, count, sharing.group, num_items_in_batch, sharing.timeout)
    return loss if num_items_in_batch is None else loss * world_size()


def gather_tokens(model: torch.nn.Module, values: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """Returns the numbers of all tokens of whole rows, [B, S], in the rows' own order; 0 for padding. All ranks that share rows
    get the same numbers, for losses that are no sum over tokens.

    model: after parallelize(), also within wrappers. values: [B, T], one number (bool, integer or floating point) for each of
    this rank's tokens, such as the log-probability of its shift_labels. batch: the cut batch, of the loader that parallelize()
    returned or of a Trainer's compute_loss().

    Each rank of a group computes the same loss of the result; the mean of all ranks' gradients is then the gradient of the mean
    of the groups' losses. Collective over the ranks that share rows. Raises UsageError on each of them, CommunicationError.
    """
    return _gather.gather_checked(state_of_model(model), values, batch)
