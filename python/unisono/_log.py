"""Warnings and errors of the library as records of Python's `logging`, in the logger ``unisono``."""

import logging

_logger = logging.getLogger("unisono")


def emit(level: int, file: str, line: int, text: str, dropped: int) -> None:
    """Handles an event. If events were dropped since the last one, logs their number first."""
    if dropped:
        lost = f"{dropped} warnings were dropped, since too many waited to be logged"
        _handle(logging.WARNING, file, line, lost)
    _handle(level, file, line, text)


def _handle(level: int, file: str, line: int, text: str) -> None:
    if _logger.isEnabledFor(level):
        _logger.handle(_logger.makeRecord(_logger.name, level, file, line, text, (), None))
