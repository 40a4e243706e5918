"""The native part of the package."""

VERSION: str

def main(again: list[str], arguments: list[str]) -> int:
    """Runs the program and returns its exit status.

    ``again`` is the command that starts this program once more, without ``arguments``.
    """
