"""The library's codes of collectives, dtypes and reductions, by name."""

import re

from unisono import _native

COLLECTIVES: dict[str, int] = {name: code for code, name in enumerate(_native.COLLECTIVES)}
DTYPES: dict[str, int] = {name: code for code, name in enumerate(_native.DTYPES)}
OPERATIONS: dict[str, int] = {name: code for code, name in enumerate(_native.OPERATIONS)}
# The bytes of an element, by the code of its dtype.
SIZES: list[int] = [int(re.sub(r"\D", "", name)) // 8 for name in _native.DTYPES]

ALL_REDUCE = COLLECTIVES["all_reduce"]
REDUCE = COLLECTIVES["reduce"]
BROADCAST = COLLECTIVES["broadcast"]
ALL_GATHER = COLLECTIVES["all_gather"]
GATHER = COLLECTIVES["gather"]
SCATTER = COLLECTIVES["scatter"]
REDUCE_SCATTER = COLLECTIVES["reduce_scatter"]
ALL_TO_ALL = COLLECTIVES["all_to_all"]
BARRIER = COLLECTIVES["barrier"]
