"""The state of a parallelized model: its ranks, its method, and the hooks around its forward."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from longspan import _native, _trl
from longspan._loss import (all_sum, average_gradients, device_of, first_timeout, of_ranks, require_equal, texts_of_ranks,
                            world_size)
from longspan._rows import DOCUMENT_KEYS, IGNORED, ROWS, Digest, RowCutter, Rows
from longspan.attention import DEFAULT_TIMEOUT, Heads, Sharing, is_count, share
from longspan.errors import UsageError


@dataclasses.dataclass(eq=False)
class State:
    """key: a number of its own. data_rank, data_size: the place among the groups that share rows."""

    key: int
    sharing: Sharing
    heads: Heads
    cutter: RowCutter
    data_rank: int
    data_size: int
    config: Any  # of the model's text part
    alone: str  # name of transformers' attention of the model before
    attentions: tuple[str, ...]  # names of transformers' attention that share rows: the model's own, and longspan's
    unshared: bool = False  # the model runs on whole rows (whole_rows())
    passes_states: bool = False  # recurrent layers pass states from rank to rank, and exchange no heads (_recurrent.py)
    fused_head: bool = False  # the head computes losses (_head.py)
    head_labels: Optional[torch.Tensor] = None  # of the forward that runs, if the head computes losses
    in_forward: bool = False  # the model's own forward runs
    awaits_loss: bool = False  # the forward that runs has labels, and has called no loss of longspan's yet
    largest_position: Any = 0  # of the whole batch of the forward that runs: an int or a tensor []
    _random: Any = None  # the common random numbers, which wait for the end of the forward that runs
    _seeded: Any = ()  # the generators of this rank's random numbers, and their states at the beginning
    _call: Any = None  # the cut of the forward that runs, and its arguments before
    _task: int = -1  # autograd's number of the backward pass that ends with a mean of gradients

    def __deepcopy__(self, memo: Any) -> State:
        return self  # a copy of a model runs on the same ranks

    @contextlib.contextmanager
    def whole_rows(self, implementation: Optional[str] = None) -> Iterator[None]:
        """Within the context the model runs on whole rows by itself, for example to generate."""
        own = self.config._attn_implementation, self.unshared
        self.config._attn_implementation, self.unshared = implementation or self.alone, True
        try:
            yield
        finally:
            self.config._attn_implementation, self.unshared = own

    def before_forward(self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Checks the arguments, and cuts TRL's. Raises UsageError on all ranks that share rows."""
        self.end_forward()
        self._call, self.head_labels = None, None
        if self.unshared:
            return None
        try:
            named, rows = self._checked(module, given, named)
        except UsageError as failure:
            self.check_same_batch((), failure)
            raise
        self.check_same_batch(rows.digest, None)
        if self.fused_head and named.get("labels") is not None:
            self.head_labels = named.get("shift_labels")
        self.in_forward, self.largest_position = True, rows.largest_position
        self.awaits_loss = named.get("labels") is not None and self._call is None
        self._begin_dropout(module)
        return given, named | {"use_cache": False}

    def _checked(self, module: torch.nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[dict[str, Any], Rows]:
        """Returns the arguments for this rank's tokens, and their rows. Raises UsageError on this rank alone."""
        if _is_flattened(module):
            raise UsageError(f"{type(module).__name__} has lost parameters, as FullyShardedDataParallel (FSDP1) takes them: use "
                             "FSDP2, torch.distributed.fsdp.fully_shard (Trainer: fsdp_config={'version': 2})")
        if named.get(_trl.HEAD) and ROWS not in named:
            whole = named
            named, cut = _trl.cut_call(self.cutter, named)
            self._call = cut, whole
        rows = named.get(ROWS)
        if not isinstance(rows, Rows) or rows.key != self.key:
            raise UsageError(f"{type(module).__name__} got whole rows: pass batches of the loader that parallelize() "
                             "returned as model(**batch), or run the model within longspan.whole_rows(model)")
        if rows.failure:
            raise UsageError(rows.failure)
        is_in_ddp = torch.nn.parallel.DistributedDataParallel._active_ddp_module is not None
        if (torch.is_grad_enabled() and world_size() > 1 and _uses_gradients_early(module)
                and (is_in_ddp or not _is_averaged(module))):
            raise UsageError("a parameter has a hook of register_post_accumulate_grad_hook(), which would see this rank's part of the "
                             f"gradient: {'DDP' if is_in_ddp else 'Longspan'} computes the mean later. Call the optimizer after "
                             "backward(), or wrap the model in FSDP2")
        whole_config: Any = module.config
        config = whole_config.get_text_config()  # of a copy of the model, not self.config
        if config._attn_implementation not in self.attentions:
            own = repr(self.attentions[0])
            if config is not whole_config:
                own = f"{{'text_config': {own}}}"
            raise UsageError(f"{type(module).__name__} has the attention {config._attn_implementation!r} now, which knows nothing "
                             f"of rows that ranks share: call model.set_attn_implementation({own})")
        least, largest = rows.label_range
        if named.get("labels") is not None and (least < 0 or largest >= config.vocab_size):
            raise UsageError(f"labels of the batch are from {least} to {largest}, and must be from 0 to {config.vocab_size - 1}, the "
                             f"tokens of the model, or {IGNORED} without a loss")
        _refuse_arguments(type(module).__name__, config, given, named, self.cutter.has_pictures)
        return named, rows

    def check_same_batch(self, digest: Digest, failure: Optional[UsageError]) -> None:
        """Raises UsageError on all ranks of the group if their batches differ, or if one of them could not cut its batch.
        Collective. Raises CommunicationError."""
        if self.sharing.size > 1:
            require_equal(zlib.crc32(repr(digest).encode()), failure, lambda: self._difference(digest), self.sharing.group,
                          self.sharing.timeout)

    def _difference(self, digest: Digest) -> str:
        """The message for different batches. Collective."""
        texts = texts_of_ranks("\n".join(f"{name} {number}" for name, number in digest), self.sharing.group, self.sharing.timeout)
        lines = [set(text.split("\n")) for text in texts]
        names = sorted({line.split()[0] for line in set.union(*lines) - set.intersection(*lines)})
        return (f"the {self.sharing.size} ranks that share rows have different batches, in {', '.join(names)}: each must read the "
                "same batch. Give their loaders the same seed, and a DistributedSampler only through parallelize()")

    def begin_loss(self) -> bool:
        """Whether the loss that begins is of whole rows."""
        self.awaits_loss = False
        return self.unshared

    def end_forward(self, *_: Any) -> None:
        """Ends what before_forward() began, also if the forward has raised."""
        self.in_forward = False
        self._end_dropout()

    def after_forward(self, module: torch.nn.Module, given: Any, output: Any) -> Any:
        """Gathers what TRL's forward returns. Lets the backward from this output end with a mean of gradients, if nobody else
        computes it."""
        del given
        if self.awaits_loss and not self.unshared and _has_loss(output):
            raise UsageError(f"{type(module).__name__} has computed its loss without its loss_function, by a forward that shifts the "
                             "labels of a part of a row: leave Liger's patch or another forward out, or take labels out of the "
                             "batch and return longspan.mean_loss(model, total, count)")
        if self.head_labels is not None:
            self.head_labels, output = None, _without_logits(output)
        if self._call is not None:
            (cut, whole), self._call = self._call, None
            output = _trl.gather_output(output, cut, whole, whole["input_ids"].shape[1], self.sharing.group,
                                         self.sharing.timeout)
        self._watch(module, output)
        return output

    def _begin_dropout(self, module: torch.nn.Module) -> None:
        """Lets all ranks draw different masks of dropout. Their common random numbers, by which they read the same rows, go on
        alike: by one number after a forward that has drawn any."""
        if world_size() == 1 or not module.training:
            return
        device, generators = next(module.parameters()).device, [torch.default_generator]
        if device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        self._random = torch.random.fork_rng([device] if device.type == "cuda" else [])
        self._random.__enter__()
        seed = _random_number() + dist.get_rank()
        self._seeded = [(one.manual_seed(seed), one.get_state()) for one in generators]

    def _end_dropout(self) -> None:
        if self._random is None:
            return
        has_drawn = not all(one.get_state().equal(state) for one, state in self._seeded)
        self._random.__exit__(None, None, None)
        self._random = None
        if has_drawn:
            _random_number()

    def _watch(self, module: torch.nn.Module, output: Any) -> None:
        if not torch.is_grad_enabled() or world_size() == 1 or self.unshared or _is_averaged(module):
            return
        for value in tree_leaves(dict(output) if isinstance(output, dict) else output):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(lambda gradient: self._end_with_mean(module))

    def _end_with_mean(self, module: torch.nn.Module) -> None:
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        self._task = task
        torch.autograd.Variable._execution_engine.queue_callback(  # pyright: ignore[reportAttributeAccessIssue]
            lambda: average_gradients(module.parameters(), self.sharing.timeout))


def _random_number() -> int:
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(1 << 53))


def _refuse_arguments(
    name: str, config: Any, given: tuple[Any, ...], named: dict[str, Any], takes_whole_rows: bool
) -> None:
    if given:
        raise UsageError(f"{name} got {len(given)} arguments without names: pass batches as model(**batch)")
    for argument in ("use_cache", "past_key_values", "output_attentions", "output_router_logits", "logits_to_keep",
                     "attention_mask", *DOCUMENT_KEYS):
        value = named.get(argument)
        if value is None and argument == "output_router_logits":
            value = getattr(config, argument, None)
        if value is None or value is False or (isinstance(value, int) and value == 0):
            continue
        if argument == "attention_mask" and takes_whole_rows:
            continue
        raise UsageError(f"{name} got {argument}, which is not possible on parts of rows: leave {argument} out"
                         + (" (also of the model's config)" if argument == "output_router_logits" else ""))


def _is_flattened(model: torch.nn.Module) -> bool:
    """Whether FSDP1 has put tensors in place of the parameters of layers."""
    return any(not isinstance(module._parameters.get("weight"), torch.nn.Parameter)
               and not torch.nn.utils.parametrize.is_parametrized(module, "weight")
               for module in model.modules() if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)))


def _uses_gradients_early(model: torch.nn.Module) -> bool:
    return any(getattr(parameter, "_post_accumulate_grad_hooks", None) for parameter in model.parameters())


def _without_logits(output: Any) -> Any:
    if isinstance(output, tuple):  # return_dict=False: loss, logits, ...
        return output[:1] + output[2:]
    return type(output)(**{name: value for name, value in output.items() if name != "logits"})


def _has_loss(output: Any) -> bool:
    loss = output[0] if isinstance(output, tuple) and output else getattr(output, "loss", None)
    return isinstance(loss, torch.Tensor) and loss.numel() == 1


def _is_averaged(module: torch.nn.Module) -> bool:
    """Whether DDP, FSDP or DeepSpeed computes the mean of gradients over all ranks. Raises UsageError if one of them computes
    it over other ranks."""
    ddp = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    if ddp is not None:
        _check_ranks("DistributedDataParallel", dist.get_world_size(ddp.process_group))
        return True
    # FSDP2's parameters are no DTensors between the forward and the backward where reshard_after_forward is False.
    fsdp = sys.modules.get("torch.distributed.fsdp")  # nothing is sharded where nobody has imported the module
    sharded: list[Any] = [part for part in module.modules() if fsdp is not None and isinstance(part, fsdp.FSDPModule)]
    managed = [part for part in module.modules() if getattr(part, "_is_fsdp_managed_module", False)]
    for part in sharded:
        state = part._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            if group is not None:
                _check_ranks("fully_shard", group.mesh_info.mesh.size())
    if managed:
        own = {id(parameter) for part in managed for parameter in part.parameters(recurse=False)}
        missing = [name for name, parameter in module.named_parameters() if parameter.requires_grad and id(parameter) not in own]
        if missing:
            raise UsageError(f"fully_shard has no part of {missing[0]} and of {len(missing) - 1} other parameters, so nobody would "
                             "compute the mean of their gradients: call fully_shard() for the whole model after its layers")
    if sharded or managed:
        return True
    return any(hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")  # DeepSpeed's ZeRO 3; 1 and 2
               for parameter in module.parameters())


def _check_ranks(name: str, size: int) -> None:
    if size != world_size():
        raise UsageError(f"{name} averages gradients over {size} ranks, and must do so over all {world_size()}, because "
                         "ranks that share a row have parts of one gradient: leave its process group or mesh out, or make "
                         "the mesh of all ranks")


def sequence_group(size: int) -> tuple[Optional[dist.ProcessGroup], int, int]:
    """Returns the group of `size` neighbouring ranks that has this rank, the group's number, and the number of groups.
    Collective over all ranks."""
    world = world_size()
    if size < 1 or world % size != 0:
        remedy = ("start more processes, for example with torchrun, and call torch.distributed.init_process_group() before"
                  if not dist.is_initialized() else f"choose a divisor of {world}, or start another number of processes")
        raise UsageError(f"sequence_parallel_size={size}, and there are {world} ranks: {remedy}")
    if world == 1:
        return None, 0, 1
    rank = dist.get_rank()
    if size == world:
        everyone: Any = dist.group.WORLD
        return everyone, 0, 1
    own: Any = None
    for first in range(0, world, size):
        group = dist.new_group(list(range(first, first + size)))
        if first <= rank < first + size:
            own = group
    return own, rank // size, world // size


def agree(text: str, failure: Optional[UsageError], timeout: int) -> None:
    """Raises UsageError on all ranks if they describe the run differently, if they have different timeouts, or if one of them
    has a failure. Collective. Raises CommunicationError."""
    if world_size() == 1:
        return
    meeting = first_timeout(timeout)
    require_equal(zlib.crc32(text.encode()), failure, lambda: "parallelize() has other arguments, or another model, on other "
                  f"ranks than here ({text}): all ranks must call it alike", None, meeting)
    timeouts = [number for number, in of_ranks([timeout], None, meeting)]
    other = next((rank for rank, number in enumerate(timeouts) if number != timeouts[0]), None)
    if other is not None:
        raise UsageError(f"parallelize() has timeout={timeouts[0]} on rank 0 and timeout={timeouts[other]} on rank {other}: all "
                         "ranks must call it alike")


def refuse(failure: Exception, timeout: Any) -> None:
    """Raises UsageError on all ranks for a failure of this one, while the others are in agree(). `timeout` may be what is wrong.
    Returns on one process. Collective."""
    agree("", UsageError(str(failure) or repr(failure)), timeout if is_count(timeout) else DEFAULT_TIMEOUT)


def share_alike(heads: Any, group: Optional[dist.ProcessGroup], mode: str, device: torch.device, timeout: int,
                **options: Any) -> Sharing:
    """As share(), with the same method in all sequence groups: each has measured its own network, and all take the slowest one.
    Collective over all ranks."""
    if mode == "auto" and group is not None and group is not dist.group.WORLD:
        name, cuda = group.group_name, device.type == "cuda"
        networks = torch.zeros(world_size(), 3, dtype=torch.float64, device=device_of(None))
        networks[dist.get_rank()] = torch.tensor(_native.call("network", name, cuda, timeout), dtype=torch.float64)
        near, rate, delay = all_sum(networks, None, timeout).unbind(1)
        # The fewest neighbours, the lowest rate and the longest delay; 0 is not measured.
        slowest = [min((number for number in numbers.tolist() if number), default=0.0) for numbers in (near, rate)]
        _native.call("set_network", name, cuda, [*slowest, delay.max().item()])
    return share(heads, group=group, mode=mode, device=device, timeout=timeout, **options)


def outside_graphs(function: Any) -> Any:
    """A function that graphs of torch.compile leave out: a graph ends before it, and the next one begins after it."""
    return torch.compiler.disable(function)
