"""Warnings and errors of the library as records of Python's `logging`, in the logger ``unisono``."""

import logging

_logger = logging.getLogger("unisono")


def emit(level: int, file: str, line: int, text: str, dropped: int) -> None:
    """Handles an event, and before it the number of those that were dropped since the last one."""
    texts = [(level, text)]
    if dropped:
        texts.insert(
            0, (logging.WARNING, f"{dropped} warnings were dropped, since too many waited to be logged")
        )
    for level, text in texts:
        if _logger.isEnabledFor(level):
            _logger.handle(_logger.makeRecord(_logger.name, level, file, line, text, (), None))
