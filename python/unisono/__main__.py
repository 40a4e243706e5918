"""The program ``unisono``, as ``python -m unisono`` and as a console script."""

import signal
import sys

from unisono import _native


def main() -> int:
    """Runs the program with the process's arguments and returns its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The program handles SIGINT itself, or SIGINT ends it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:]
    # The command that started this process, without the arguments: `-m unisono` or a script, and the interpreter's options.
    interpreter = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    return _native.main([sys.executable, *interpreter], arguments)


if __name__ == "__main__":
    sys.exit(main())
