"""Longspan: sequence parallelism for training on long rows, under any PyTorch model.

The command line is `longspan help`.
"""

from longspan import _native as _native  # loads the operators
from longspan.attention import Heads, Sharing, TokenOrder, attend, attention, share, token_order
from longspan.errors import CommunicationError, LongspanError, UsageError
from longspan._trainer import parallelize_trainer
from longspan.parallelize import mean_loss, parallelize, whole_rows

__version__ = "0.1.0"

__all__ = [
    "CommunicationError",
    "Heads",
    "LongspanError",
    "Sharing",
    "TokenOrder",
    "UsageError",
    "attend",
    "attention",
    "mean_loss",
    "parallelize",
    "parallelize_trainer",
    "share",
    "token_order",
    "whole_rows",
]
