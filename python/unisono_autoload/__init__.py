"""What torch calls when its import ends, by the entry point `torch.backends`.

It is a separate package, so that a program that imports torch and not unisono loads nothing of unisono.
"""

import os
import sys


def autoload() -> None:
    """Imports `unisono.torch`, which reads `UNISONO_AS_GLOO`, if that is set."""
    # If `unisono.torch` is what imports torch, it goes on after this.
    if "UNISONO_AS_GLOO" in os.environ and "unisono.torch" not in sys.modules:
        import unisono.torch  # noqa: F401
