"""Longspan: sequence parallelism for training on long rows, under any PyTorch model.

The command line is `longspan help`.
"""

from longspan import _native as _native  # loads the operators
from longspan import _fake as _fake
from longspan._given_config import Config, Overrides
from longspan._loader import ParallelLoader
from longspan._loss import average_gradients
from longspan._options import ParallelizeOptions
from longspan._run import TrainResult
from longspan._trainer import parallelize_trainer
from longspan.account import MemoryLine, Plan, plan
from longspan.attention import Heads, Sharing, TokenOrder, attend, attention, share, token_order
from longspan.callbacks import Callback, Progress, ProgressBar, StopTraining
from longspan.checkpointing import save_attention
from longspan.documents import Document, Documents
from longspan.errors import CommunicationError, LongspanError, UsageError
from longspan.linear_cross_entropy import LinearCrossEntropy, linear_cross_entropy
from longspan.memory import OffloadActivations, TiledMLP, offload_activations, tiled_mlp
from longspan.parallelize import evaluate, gather_tokens, mean_loss, parallelize, parallelize_loader, whole_rows
from longspan.session import (
    Answer,
    BatchCounts,
    Evaluation,
    Example,
    LossFunction,
    LossInput,
    Row,
    RowLosses,
    Sample,
    Session,
)
from longspan.training import train
from longspan.ulysses import (
    DistributedAttention,
    Work,
    async_ulysses_output_projection,
    async_ulysses_qkv_projection,
    gather_heads_scatter_seq,
    gather_seq_scatter_heads,
    gather_seq_scatter_heads_qkv,
    get_ulysses_sequence_parallel_group,
    reduce_sequence_parallel_loss,
    set_ulysses_sequence_parallel_group,
)

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BatchCounts",
    "Callback",
    "CommunicationError",
    "Config",
    "DistributedAttention",
    "Document",
    "Documents",
    "Evaluation",
    "Example",
    "Heads",
    "LinearCrossEntropy",
    "LongspanError",
    "LossFunction",
    "LossInput",
    "MemoryLine",
    "OffloadActivations",
    "Overrides",
    "ParallelLoader",
    "ParallelizeOptions",
    "Plan",
    "Progress",
    "ProgressBar",
    "Row",
    "RowLosses",
    "Sample",
    "Session",
    "Sharing",
    "StopTraining",
    "TiledMLP",
    "TokenOrder",
    "TrainResult",
    "UsageError",
    "Work",
    "async_ulysses_output_projection",
    "async_ulysses_qkv_projection",
    "attend",
    "attention",
    "average_gradients",
    "evaluate",
    "gather_heads_scatter_seq",
    "gather_seq_scatter_heads",
    "gather_seq_scatter_heads_qkv",
    "gather_tokens",
    "get_ulysses_sequence_parallel_group",
    "linear_cross_entropy",
    "mean_loss",
    "offload_activations",
    "parallelize",
    "parallelize_loader",
    "parallelize_trainer",
    "plan",
    "reduce_sequence_parallel_loss",
    "save_attention",
    "set_ulysses_sequence_parallel_group",
    "share",
    "tiled_mlp",
    "token_order",
    "train",
    "whole_rows",
]
