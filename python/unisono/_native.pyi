"""The native part of the package. Memory is given by its address and bytes; codes are indices into the lists of names."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias, TypedDict

VERSION: str
COLLECTIVES: list[str]
DTYPES: list[str]
OPERATIONS: list[str]

def alias(name: str) -> int:
    """The code of the name of a type that the library moves as another type. An element's type is 256 times this code, plus the dtype's
    code."""

Piece: TypeAlias = tuple[int, int]
Operand: TypeAlias = View | Piece | list[Piece] | None
# Elements of each block: of the input and of the output.
Lengths: TypeAlias = tuple[list[int], list[int]]
# The code of a tensor's dtype, its shape and its contiguous bytes.
Tensor: TypeAlias = tuple[int, tuple[int, ...], Any]
# A file's path, bytes, the bytes sent, and whether this rank has written it.
Delivered: TypeAlias = tuple[str, int, int, bool]

class Split(TypedDict):
    """How a tensor is split: along an axis, before the indices, or in a grid of blocks."""

    axis: int
    indices: list[int] | None
    blocks: tuple[int, int] | None

class Error(RuntimeError):
    """A group has failed or could not be joined."""

class Unsendable:
    """Stands for a value that cannot be sent, with the reason for all ranks of the call."""

    def __new__(cls, why: str) -> Self: ...

class Pickled:
    """The bytes of a pickle."""

    data: bytes

    def __new__(cls, data: bytes) -> Self: ...

class Meeting(TypedDict):
    """Where and as which rank a process meets the others of a world."""

    rank: int
    size: int
    host: str
    token: str
    timeout: float | None
    join_timeout: float | None
    leave_timeout: float | None

class Store:
    """The store of a world, served by its rank 0."""

    @staticmethod
    def serve(meeting: Meeting, errors: type[BaseException] | None = None) -> Store: ...
    @property
    def port(self) -> int: ...
    def join(self) -> Group: ...

class Settings(TypedDict):
    """The arguments of `unisono.init`; ``None`` means the value of the environment, or the default."""

    rank: int | None
    size: int | None
    store: str | None
    token: str | None
    timeout: float | None
    join_timeout: float | None
    provider: str | None
    interface: str | None
    reduction: str | None

class Work:
    """An operation under way."""

    def is_done(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> Any: ...
    def exception(self) -> BaseException | None: ...
    def on_end(self, callback: Callable[[Work], Any], kind: int = 0) -> None: ...

class View:
    """The memory of an object with the buffer protocol."""

    def __new__(cls, object: Any, writable: bool) -> Self: ...
    @property
    def nbytes(self) -> int: ...

class Buffer:
    """Registered memory, with the buffer protocol."""

    def __len__(self) -> int: ...
    @property
    def address(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Group:
    """One rank's handle of a group of ranks."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def members(self) -> list[int]: ...
    @property
    def name(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def operations(self) -> int: ...
    @property
    def left(self) -> bool: ...
    # Runs a collective, or begins it and returns its work. A call that waits makes no work, which is faster.
    def collective(
        self,
        waits: bool,
        collective: int,
        element: int,
        op: int,
        factor: float,
        root: int,
        input: Operand,
        output: Operand,
        lengths: Lengths | None = None,
        coalesced: bool = False,
        timeout: float | None = None,
        keep: object = None,
    ) -> Work | None: ...
    def run_plain(
        self, collective: int, given: object, wanted: object, opts: object, kinds: dict[Any, Any]
    ) -> Work | bool: ...
    def send_async(
        self,
        element: int,
        data: Operand,
        to: int,
        tag: int,
        timeout: float | None = None,
        keep: object = None,
    ) -> Work: ...
    def recv_async(
        self,
        element: int,
        data: Operand,
        source: int | None,
        tag: int,
        timeout: float | None = None,
        keep: object = None,
    ) -> Work: ...
    def send_recv_async(
        self,
        given: tuple[int, Operand],
        to: int,
        wanted: tuple[int, Operand],
        source: int | None,
        tag: int,
        timeout: float | None = None,
        keep: object = None,
    ) -> list[Work]: ...
    def create_group(self, ranks: list[int], tag: int) -> Self: ...
    def new_group(self, ranks: list[int]) -> Self | None: ...
    def split(self, color: int | None, key: int) -> Self | None: ...
    def with_timeout(self, timeout: float) -> Self: ...
    def buffer(self, bytes: int) -> Buffer: ...
    def buffer_from(self, file: int, offset: int, bytes: int) -> Buffer: ...
    def abort(self, why: str) -> str: ...
    def begin_leave(self) -> None: ...
    def leave(self) -> None: ...
    def close(self) -> None: ...
    def failure(self) -> str | None: ...

def late_failure() -> str | None: ...

class Calls:
    """The calls that the library leaves for the threads of `unisono._finisher`: the function, if any, its arguments, and the kind of the
    call."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[Callable[..., Any] | None, Any, int]: ...

def call_soon(call: Callable[..., Any], arguments: tuple[Any, ...], kind: int) -> None:
    """Makes a thread of the package make a call of this kind."""

def end_calls() -> None:
    """Makes `Calls` end after the calls that are waiting."""

def unraisable(error: BaseException, call: object) -> None:
    """Reports the exception of a call for which no code waits."""

def join(meeting: Meeting, port: int, errors: type[BaseException] | None = None) -> Group:
    """Joins the world whose rank 0 serves a store at this port."""

def init_world(settings: Settings) -> Group:
    """Joins the world that the settings, or a launcher's environment, describe."""

def broadcast_object(group: Group, value: object, root: int, timeout: float | None) -> Work: ...
def gather_object(group: Group, value: object, root: int, timeout: float | None) -> Work: ...
def all_gather_object(group: Group, value: object, timeout: float | None) -> Work: ...
def scatter_object(group: Group, values: list[Any] | None, root: int, timeout: float | None) -> Work: ...
def send_object(group: Group, value: object, to: int, tag: int, timeout: float | None) -> Work: ...
def recv_object(group: Group, source: int | None, tag: int, timeout: float | None) -> Work: ...
def send_tensors(group: Group, tensors: list[Tensor], to: int, tag: int, timeout: float | None) -> Work: ...
def recv_tensors(group: Group, source: int | None, tag: int, timeout: float | None) -> Work: ...
def broadcast_tensors(
    group: Group, tensors: list[Tensor] | None, root: int, timeout: float | None
) -> Work: ...
def gather_tensors(group: Group, tensors: list[Tensor], root: int, timeout: float | None) -> Work: ...
def all_gather_tensors(group: Group, tensors: list[Tensor], timeout: float | None) -> Work: ...
def scatter_tensor(
    group: Group, tensor: Tensor | None, split: Split, root: int, timeout: float | None
) -> Work: ...
def gather_tensor(group: Group, part: Tensor, split: Split, root: int, timeout: float | None) -> Work: ...
def all_gather_tensor(group: Group, part: Tensor, split: Split, timeout: float | None) -> Work: ...
def broadcast_file(group: Group, file: str, directory: str, root: int) -> Delivered: ...
def send_file(group: Group, file: str, to: int, tag: int) -> Delivered: ...
def recv_file(group: Group, directory: str, source: int | None, tag: int) -> tuple[Delivered, int]: ...
def main(again: list[str], arguments: list[str]) -> int:
    """Runs the program and returns its exit status.

    ``again`` is the command that starts this program once more, without ``arguments``.
    """
