"""Exceptions of Longspan."""


class LongspanError(Exception):
    """Base of all exceptions of Longspan."""


class UsageError(LongspanError, ValueError):
    """A mistake that the caller can correct. The message has the given value, the limit and the remedy."""


class CommunicationError(LongspanError, RuntimeError):
    """Another rank has ended, has lost its connection, or has not answered in time."""
