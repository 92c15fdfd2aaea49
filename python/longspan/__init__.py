"""Longspan: sequence parallelism for training on long rows, under any PyTorch model.

The command line is `longspan help`.
"""

from longspan import _native as _native  # loads the operators
from longspan.account import MemoryLine, Plan, plan
from longspan.attention import Heads, Sharing, TokenOrder, attend, attention, share, token_order
from longspan.callbacks import Callback, Progress, ProgressBar, StopTraining
from longspan.errors import CommunicationError, LongspanError, UsageError
from longspan._trainer import parallelize_trainer
from longspan.parallelize import mean_loss, parallelize, whole_rows
from longspan.session import (
    Answer,
    BatchCounts,
    Evaluation,
    Example,
    LossInput,
    Row,
    RowLosses,
    Sample,
    Session,
)
from longspan.training import TrainResult, train

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "BatchCounts",
    "Callback",
    "CommunicationError",
    "Evaluation",
    "Example",
    "Heads",
    "LongspanError",
    "LossInput",
    "MemoryLine",
    "Plan",
    "Progress",
    "ProgressBar",
    "Row",
    "RowLosses",
    "Sample",
    "Session",
    "Sharing",
    "StopTraining",
    "TokenOrder",
    "TrainResult",
    "UsageError",
    "attend",
    "attention",
    "mean_loss",
    "parallelize",
    "parallelize_trainer",
    "plan",
    "share",
    "token_order",
    "train",
    "whole_rows",
]
