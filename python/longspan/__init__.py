"""Longspan is a program: run `longspan help`."""

__version__ = "0.1.0"
