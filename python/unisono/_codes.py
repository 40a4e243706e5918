"""The library's codes of collectives, dtypes and reductions, by name."""

from unisono import _native

COLLECTIVES: dict[str, int] = {name: code for code, name in enumerate(_native.COLLECTIVES)}
DTYPES: dict[str, int] = {name: code for code, name in enumerate(_native.DTYPES)}
OPERATIONS: dict[str, int] = {name: code for code, name in enumerate(_native.OPERATIONS)}
