"""TRL's trainers. They compute on whole rows, which all ranks of a group have; only the model's forward is shared.

TRL gives a model a fused head, whose forward returns log-probabilities of tokens in place of logits. The forward's inputs are
cut, and the numbers of each token are gathered (_gather.py).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, Optional

import torch
import torch.distributed as dist

from longspan._gather import gather
from longspan._loss import of_first_rank
from longspan._rows import Cut, RowCutter
from longspan.errors import UsageError

HEAD = "fused_lm_head"  # argument that asks TRL's forward for log-probabilities
TRAINERS = frozenset(["SFTTrainer", "DPOTrainer", "GRPOTrainer"])

# Arguments of the forward that are no part of the batch.
_OF_FORWARD = frozenset([HEAD, "use_cache", "return_dict", "output_router_logits", "num_items_in_batch"])
_FIELDS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1", "label_mask")


def cut_call(cutter: RowCutter, named: dict[str, Any]) -> tuple[dict[str, Any], Cut]:
    """Returns the arguments of a forward with this rank's tokens."""
    rest = {name: value for name, value in named.items() if name in _OF_FORWARD}
    own, cut = cutter.split({name: value for name, value in named.items() if name not in _OF_FORWARD})
    device = named["input_ids"].device
    return rest | {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in own.items()}, cut


def gather_output(output: Any, cut: Cut, named: dict[str, Any], length: int, group: Optional[dist.ProcessGroup],
                  timeout: int) -> Any:
    """Returns TRL's output for the whole rows. named: arguments of the forward before the cut."""
    shown = length if named.get("shift_labels") is not None else length - 1
    for name in _FIELDS:
        own = getattr(output, name)
        if own is None:
            continue
        setattr(output, name, gather(own, cut.index, length, group, timeout)[:, :shown])
    count = named.get("num_items_in_batch")
    output.loss = -output.log_probs.sum() / (output.label_mask.sum().clamp(min=1) if count is None else count)
    return output


def is_trl(trainer: Any) -> bool:
    """Whether a trainer is TRL's. Raises UsageError for its trainers that were never checked."""
    names = [kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl.")]
    if not names:
        return False
    if not TRAINERS & set(names):
        raise UsageError(f"TRL's {names[0]} was never compared with one process; checked are {', '.join(sorted(TRAINERS))}")
    return True


def refuse_settings(trainer: Any, size: int) -> None:
    """Raises UsageError for settings of TRL whose results would be wrong."""
    args = trainer.args
    name = type(trainer).__name__
    for key in ("use_vllm", "use_transformers_paged", "precompute_ref_log_probs", "use_liger_kernel"):
        if getattr(args, key, None):
            raise UsageError(f"{name}: {key}=True is not possible on shared rows: set it to False")
    if getattr(trainer, "aux_loss_enabled", False):
        raise UsageError(f"{name}: the auxiliary loss of routers is not possible on parts of rows: set "
                         "router_aux_loss_coef=0")
    generations = getattr(args, "num_generations", None)
    if generations is None or not hasattr(args, "steps_per_generation"):
        return
    own = args.per_device_train_batch_size * args.steps_per_generation
    if own % generations != 0:
        raise UsageError(f"{name}: per_device_train_batch_size * steps_per_generation is {own}, and must be a multiple of "
                         f"num_generations={generations}, because the ranks of a group have the same answers")
    of_evaluation = getattr(args, "num_generations_eval", None) or generations
    if trainer.eval_dataset is not None and args.per_device_eval_batch_size % of_evaluation != 0:
        raise UsageError(f"{name}: per_device_eval_batch_size is {args.per_device_eval_batch_size}, and must be a multiple of the "
                         f"{of_evaluation} answers to a prompt in an evaluation, because the ranks of a group have the same answers")
    if args.scale_rewards == "batch" and size > 1:
        raise UsageError(f"{name}: scale_rewards='batch' counts the answers of each rank: set it to 'group' or 'none'")
    if getattr(args, "multi_objective_aggregation", "") == "normalize_then_sum" and size > 1:
        raise UsageError(f"{name}: multi_objective_aggregation='normalize_then_sum' counts the answers of each rank: set it to "
                         "'sum_then_normalize'")
    if args.generation_batch_size % size != 0:
        raise UsageError(f"{name}: generation_batch_size={args.generation_batch_size} must be a multiple of the {size} ranks "
                         "that share rows")


def same_answers(model: Any, state: Any) -> None:
    """Lets all ranks of a group continue with the answers of its first rank."""
    generate = model.generate

    def generated(*given: Any, **named: Any) -> Any:
        with state.whole_rows():
            answers = generate(*given, **named)
        if not isinstance(answers, torch.Tensor):
            raise UsageError(f"generate() returned a {type(answers).__name__}, and must return a tensor: leave "
                             "return_dict_in_generate out")
        if state.sharing.size == 1:
            return answers
        group, timeout = state.sharing.group, state.sharing.timeout
        torch.set_rng_state(of_first_rank(torch.get_rng_state(), group, timeout))  # the trainer shuffles answers
        return of_first_rank(answers.cpu(), group, timeout).to(answers.device)

    model.generate = generated


def same_rewards(trainer: Any, rank: int, size: int) -> None:
    """Lets the first rank of each group call reward functions, which may be random or a judge's, and all of its ranks continue
    with its rewards. All ranks call reward models, which may be sharded."""
    calculate = trainer._calculate_rewards
    if rank > 0:
        trainer.reward_funcs = [function if isinstance(function, torch.nn.Module) else _no_rewards
                                for function in trainer.reward_funcs]

    def calculated(*given: Any, **named: Any) -> torch.Tensor:  # of all ranks, the same tensor on each
        of_ranks = calculate(*given, **named).unflatten(0, (trainer.accelerator.num_processes, -1))
        return of_ranks[::size].repeat_interleave(size, 0).flatten(0, 1)

    trainer._calculate_rewards = calculated


def _no_rewards(completions: Any, **_: Any) -> list[float]:
    return [0.0] * len(completions)


class LoggedAnswers(collections.deque[Any]):
    """The last answers that a trainer logs, each once: the trainer extends this by those of all ranks."""

    def __init__(self, num_ranks: int, size: int, count: int) -> None:
        super().__init__(maxlen=count)
        self.num_ranks, self.size = num_ranks, size

    def extend(self, iterable: Iterable[Any]) -> None:
        values = list(iterable)
        own = max(len(values) // self.num_ranks, 1)
        super().extend(value for place, value in enumerate(values) if place // own % self.size == 0)


def log_answers_once(trainer: Any, size: int) -> None:
    def kept(*_: Any) -> LoggedAnswers:
        return LoggedAnswers(trainer.accelerator.num_processes, size, trainer.args.generation_batch_size)

    for name, logged in trainer._logs.items():
        if isinstance(logged, collections.defaultdict):
            trainer._logs[name] = collections.defaultdict(kept)
        elif isinstance(logged, collections.deque):
            trainer._logs[name] = kept()


def prepare(trainer: Any, state: Any) -> None:
    """Prepares a trainer after its model was parallelized."""
    if hasattr(trainer.args, "generation_batch_size"):
        trainer.args.generation_batch_size //= state.sharing.size
        model = trainer.model.get_base_model() if hasattr(trainer.model, "peft_config") else trainer.model
        same_answers(model, state)
        same_rewards(trainer, state.sharing.rank, state.sharing.size)
        log_answers_once(trainer, state.sharing.size)
