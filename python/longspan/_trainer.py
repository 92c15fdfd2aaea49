"""One line for transformers' Trainer and trainers that are made from it."""

from __future__ import annotations

from typing import Any, Optional, TypeVar

import torch
from typing_extensions import Unpack

from longspan import _trl
from longspan._options import ParallelizeOptions
from longspan._predictions import gather_predictions, refuse_metrics
from longspan._registry import state_of_model
from longspan._rows import ROWS, RowCutter
from longspan._state import State, refuse
from longspan.attention import DEFAULT_TIMEOUT
from longspan.errors import UsageError
from longspan.parallelize import parallelize

_BUCKET_CAP_MB = 4
AnyTrainer = TypeVar("AnyTrainer")


class CutCollator:
    """Collates examples, and cuts the batch."""

    def __init__(self, collate: Any, cutter: RowCutter) -> None:
        self.collate, self.cutter = collate, cutter

    def __call__(self, examples: Any) -> dict[str, Any]:
        return self.cutter(self.collate(examples))


def parallelize_trainer(
    trainer: AnyTrainer, *, sequence_parallel_size: int, **options: Unpack[ParallelizeOptions]
) -> AnyTrainer:
    """Lets ranks share the rows of a Trainer's training and evaluation. Returns the trainer, which is changed in place.

    options: of parallelize(). allow_unchecked also accepts a trainer with a compute_loss of its own, which gets this rank's
        tokens.
    The number of examples of a step is per_device_train_batch_size times accumulation steps times the number of groups that
    share rows. Collective over all ranks, before train(). Raises UsageError, CommunicationError.
    """
    _share_rows(trainer, sequence_parallel_size, options)
    return trainer


def _share_rows(trainer: Any, sequence_parallel_size: int, options: ParallelizeOptions) -> None:
    try:
        refuse_settings(trainer, bool(options.get("allow_unchecked")))
        computes_whole_rows = _trl.is_trl(trainer)
        require_methods(trainer)
        if computes_whole_rows:
            if options.get("fused_loss"):
                raise UsageError("fused_loss=True is for transformers' Trainer: TRL's trainers have a fused loss of their own, "
                                 "so leave it out")
            _trl.refuse_settings(trainer, sequence_parallel_size)
        else:
            refuse_metrics(trainer, bool(options.get("fused_loss")))
    except (AttributeError, TypeError, ValueError) as failure:
        refuse(failure, options.get("timeout", DEFAULT_TIMEOUT))  # the others are in parallelize()
        raise
    parallelize(trainer.model, sequence_parallel_size=sequence_parallel_size, **options)
    if getattr(trainer, "ref_model", None) is not None:  # TRL has wrapped it for FSDP and DeepSpeed
        parallelize(trainer.accelerator.unwrap_model(trainer.ref_model), sequence_parallel_size=sequence_parallel_size, **options)
    state = state_of_model(trainer.model)
    if computes_whole_rows:
        _trl.prepare(trainer, state)
    else:
        gather_predictions(trainer, state)
    share_loaders(trainer.accelerator, state, None if computes_whole_rows else state.cutter)
    settle_buckets(trainer)
    settle_numbers(trainer, state, computes_whole_rows)
    trainer.gather_function = trainer.accelerator.gather_for_metrics
    total = trainer.get_total_train_batch_size
    trainer.get_total_train_batch_size = lambda args: total(args) // state.sharing.size


def require_methods(trainer: Any) -> None:
    """Raises UsageError for a trainer of a version that lacks a method which longspan changes."""
    names = ["_finalize_training", "_track_num_input_tokens", "get_total_train_batch_size", "prediction_step"]
    names += ["_calculate_rewards", "_logs"] * hasattr(trainer.args, "generation_batch_size")
    if missing := [name for name in names if not hasattr(trainer, name)]:
        raise UsageError(f"{type(trainer).__name__} has no {', '.join(missing)}: install transformers and TRL in versions that "
                         "docs/python-hugging-face.md names")


def refuse_settings(trainer: Any, allow_unchecked: bool) -> None:
    """Raises UsageError for settings whose results would be wrong on parts of rows."""
    from transformers import Trainer

    args = trainer.args
    accelerator = args.accelerator_config
    own_loss = not _trl.is_trl(trainer) and getattr(trainer.compute_loss, "__func__", None) is not Trainer.compute_loss
    own_way = "return longspan.mean_loss(model, total, count, num_items_in_batch) and pass allow_unchecked=True"
    for wrong, name, remedy in [
        (args.label_smoothing_factor, f"label_smoothing_factor={args.label_smoothing_factor}", "set it to 0"),
        (not args.average_tokens_across_devices, "average_tokens_across_devices=False", "set it to True"),
        (trainer.compute_loss_func, "compute_loss_func, which gets labels that are not shifted,", "let a compute_loss in a class of "
         f"your own {own_way}"),
        (own_loss and not allow_unchecked, f"compute_loss of {type(trainer).__name__}, which gets a part of each row and labels "
         "that are shifted already (shift_labels)", f"take Trainer's own; or let compute_loss {own_way}"),
        (trainer.model_init, "model_init", "pass the model: a model that train() makes later knows nothing of shared rows"),
        (args.neftune_noise_alpha, f"neftune_noise_alpha={args.neftune_noise_alpha}",
         "leave it out: the noise would depend on the number of ranks"),
        (accelerator.split_batches, "accelerator_config split_batches=True", "set it to False"),
        (accelerator.dispatch_batches, "accelerator_config dispatch_batches=True", "leave it out"),
        (_trl.is_trl(trainer) and trainer.compute_metrics and not args.prediction_loss_only, "compute_metrics of TRL's trainers",
         "set prediction_loss_only=True"),
        (args.n_gpu > 1, f"{args.n_gpu} GPUs in one process", "start one process for each GPU with torchrun"),
        (args.parallelism_config, "parallelism_config", "leave it out: longspan makes the groups"),
        (getattr(args, "train_sampling_strategy", "") == "batch_rebalance", "train_sampling_strategy=batch_rebalance",
         "choose another strategy"),
        (args.use_liger_kernel, "use_liger_kernel=True", "set it to False"),
    ]:
        if wrong:
            raise UsageError(f"Trainer: {name} is not possible on parts of rows: {remedy}")


def settle_buckets(trainer: Any) -> None:
    """Lets DDP hold gradients in its buckets alone, instead of twice. On CPUs, where links may be slow, buckets are small
    unless ddp_bucket_cap_mb is given: the last bucket travels after the backward."""
    settings = trainer.accelerator.ddp_handler
    if settings is None:
        return
    settings.gradient_as_bucket_view = True
    is_default = settings.bucket_cap_mb == type(settings)().bucket_cap_mb
    if is_default and trainer.args.ddp_bucket_cap_mb is None and trainer.accelerator.device.type == "cpu":
        settings.bucket_cap_mb = _BUCKET_CAP_MB


def settle_numbers(trainer: Any, state: State, computes_whole_rows: bool) -> None:
    """Lets the run's train_loss be a mean over all ranks also for the steps after the last log, and lets
    include_num_input_tokens_seen count the tokens of whole rows once."""
    finalize, track = trainer._finalize_training, trainer._track_num_input_tokens

    def finalize_training(*given: Any, **named: Any) -> Any:
        trainer._tr_loss = trainer.accelerator.gather(trainer._tr_loss).mean()
        return finalize(*given, **named)

    def track_num_input_tokens(inputs: dict[str, Any]) -> None:  # whose numbers of all ranks are added
        if computes_whole_rows:
            counted = {name: inputs[name] if state.sharing.rank == 0 else inputs[name][:0]
                       for name in ("input_ids", "attention_mask") if name in inputs}
        else:
            index = inputs[ROWS].index
            assert index is not None  # the forward refuses rows without it
            num_tokens = len(index) * inputs[ROWS].length if state.sharing.rank == 0 else 0
            counted = dict(input_ids=torch.empty(num_tokens, device="meta"), attention_mask=index >= 0)
        track(counted)

    trainer._finalize_training = finalize_training
    if trainer.args.include_num_input_tokens_seen != "no":
        trainer._track_num_input_tokens = track_num_input_tokens


def share_loaders(accelerator: Any, state: State, cutter: Optional[RowCutter]) -> None:
    """Lets accelerate deal batches to groups of ranks, and cuts them if there is a cutter."""

    def prepare(loader: Any, device_placement: Any = None, slice_fn_for_dispatch: Any = None) -> Any:
        from accelerate.data_loader import prepare_data_loader

        del slice_fn_for_dispatch
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise UsageError(f"the loader is a {type(loader).__name__}, and must be a torch.utils.data.DataLoader")
        if getattr(loader, "_is_accelerate_prepared", False):
            return loader
        if cutter is not None:
            loader.collate_fn = CutCollator(loader.collate_fn, cutter)
        prepared = prepare_data_loader(
            loader, accelerator.device, num_processes=state.data_size, process_index=state.data_rank,
            put_on_device=accelerator.device_placement if device_placement is None else device_placement,
            rng_types=accelerator.rng_types.copy(), dispatch_batches=False, even_batches=accelerator.even_batches,
            use_seedable_sampler=accelerator.use_seedable_sampler, data_seed=accelerator.dataloader_config.data_seed,
            non_blocking=accelerator.non_blocking, use_stateful_dataloader=accelerator.use_stateful_dataloader)
        accelerator._dataloaders.append(prepared)
        return prepared

    gather_for_metrics = accelerator.gather_for_metrics

    def gather_once(values: Any, *given: Any, **named: Any) -> Any:
        """Values of one rank of each group, since ranks of a group return equal values."""
        gather = accelerator.gather
        accelerator.gather = lambda tensor: _of_first_ranks(gather(tensor), accelerator.num_processes, state.sharing.size)
        try:
            return gather_for_metrics(values, *given, **named)
        finally:
            del accelerator.gather

    accelerator.prepare_data_loader = prepare
    accelerator.gather_for_metrics = gather_once


def _of_first_ranks(gathered: Any, num_ranks: int, size: int) -> Any:
    if isinstance(gathered, (list, tuple)):
        return type(gathered)(_of_first_ranks(one, num_ranks, size) for one in gathered)
    if not isinstance(gathered, torch.Tensor):
        raise UsageError(f"values of an evaluation are a {type(gathered).__name__}, and must be tensors: set "
                         "prediction_loss_only=True")
    return gathered.unflatten(0, (num_ranks, -1))[::size].flatten(0, 1)
