"""A backend of ``ray.util.collective``: collectives of numpy's arrays and torch's tensors in main memory, among Ray's actors.

Every process, the driver and each actor, registers it before it makes a group::

    from ray.util.collective import register_collective_backend
    from unisono.ray import UnisonoGroup

    register_collective_backend("unisono", UnisonoGroup)

Then call ``init_collective_group(size, rank, "unisono")``, or ``create_collective_group`` in the driver. Ray's other calls are the same as
with Gloo.
"""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy
import ray
from ray.experimental import internal_kv
from ray.util.collective.collective_group.base_collective_group import BaseGroup
from ray.util.collective.types import ReduceOp

from unisono import _arrays, _meeting
from unisono._group import Group
from unisono._native import Error

# An actor waits this many seconds for the others of its group, the same time as a call.
_PATIENCE = 300.0
# An actor that ends, or destroys its group, waits this many seconds for the others to do so.
_LEAVING = 5.0


class UnisonoGroup(BaseGroup):
    """A group of actors, which Ray makes. A call writes its results to the output tensors, and changes no others.

    A wrong argument is a `ValueError` or `TypeError`. Any other failure is a `unisono.Error`, the same in all actors. Then the group has
    failed: destroy it, and make another one.
    """

    def __init__(self, world_size: int, rank: int, group_name: str) -> None:
        super().__init__(world_size, rank, group_name)
        joining = None if "UNISONO_JOIN_TIMEOUT" in os.environ else _PATIENCE
        leaving = None if "UNISONO_LEAVE_TIMEOUT" in os.environ else _LEAVING
        native = _meeting.join(_Board(group_name, rank), rank, world_size, None, joining, leaving)
        _arrays.load()
        self._group = Group(native, False, world=True)

    def destroy_group(self) -> None:
        """Leaves the group. After that, the other actors can only destroy it. Actors may do so one after the other: this does not wait."""
        # A thread waits, because Ray holds a lock during this call, which all groups of this actor need.
        threading.Thread(target=self._leave, name=f"unisono leaves {self.group_name}").start()

    def _leave(self) -> None:
        try:
            self._group.close()
        except Error as error:
            logging.getLogger("unisono").warning("the group %r was destroyed: %s", self.group_name, error)

    @classmethod
    def backend(cls) -> str:
        """The name in Ray's `Backend`."""
        return "UNISONO"

    @classmethod
    def check_backend_availability(cls) -> bool:
        """Returns true: the backend is available if this module is."""
        return True

    def allreduce(self, tensor: list[Any], allreduce_options: Any = None) -> None:
        """Reduces the tensor in place."""
        array = _only("allreduce", tensor)
        self._group.all_reduce(array, _op(allreduce_options), out=array, timeout=_timeout(allreduce_options))

    def barrier(self, barrier_options: Any = None) -> None:
        """Returns when all actors have called it."""
        self._group.barrier(timeout=_timeout(barrier_options))

    def reduce(self, tensor: list[Any], reduce_options: Any = None) -> None:
        """Reduces the tensor. The root's tensor becomes the result."""
        array = _only("reduce", tensor)
        root = _rank(reduce_options, "root_rank")
        self._group.reduce(array, _op(reduce_options), root, out=array, timeout=_timeout(reduce_options))

    def allgather(
        self, tensor_list: list[list[Any]], tensor: list[Any], allgather_options: Any = None
    ) -> None:
        """Writes the tensor of rank n to the list's tensor n."""
        call = "allgather"
        given, outputs = _only(call, tensor), self._each(call, tensor_list)
        _refuse_others(call, given, outputs)
        gathered = self._group.all_gather(given, timeout=_timeout(allgather_options))
        for output, part in zip(outputs, gathered, strict=True):
            output[...] = part

    def broadcast(self, tensor: list[Any], broadcast_options: Any = None) -> None:
        """Overwrites the tensor with the root's tensor."""
        root = _rank(broadcast_options, "root_rank")
        self._group.broadcast(_only("broadcast", tensor), root, timeout=_timeout(broadcast_options))

    def reducescatter(
        self, tensor: list[Any], tensor_list: list[list[Any]], reducescatter_options: Any = None
    ) -> None:
        """Reduces the list's tensors, and writes the result for this rank's number to the tensor."""
        call = "reducescatter"
        output, inputs = _only(call, tensor), self._each(call, tensor_list)
        _refuse_others(call, output, inputs)
        options = reducescatter_options
        mine = self._group.reduce_scatter(numpy.stack(inputs), _op(options), timeout=_timeout(options))
        output[...] = mine.reshape(output.shape)

    def send(self, tensor: list[Any], send_options: Any) -> None:
        """Sends the tensor to a rank, which receives it by `recv`."""
        self._group.send(
            _only("send", tensor), _rank(send_options, "dst_rank"), timeout=_timeout(send_options)
        )

    def recv(self, tensor: list[Any], recv_options: Any) -> None:
        """Receives from a rank into the tensor."""
        self._group.recv(
            _only("recv", tensor), _rank(recv_options, "src_rank"), timeout=_timeout(recv_options)
        )

    def _each(self, call: str, lists: list[list[Any]]) -> list[numpy.ndarray]:
        """The arrays of a call's only list, which has one tensor for each rank."""
        if len(lists) != 1 or len(lists[0]) != self.world_size:
            counts = " and ".join(str(len(each)) for each in lists) or "no"
            raise ValueError(
                f"{call}: {counts} tensors in {len(lists)} lists; wanted one list of {self.world_size}, one tensor for each rank"
            )
        return [_array(call, each) for each in lists[0]]


def _op(options: Any) -> str:
    op: ReduceOp = getattr(options, "reduceOp", ReduceOp.SUM)
    return op.name.lower()


def _rank(options: Any, name: str) -> int:
    return int(getattr(options, name, 0))


def _timeout(options: Any) -> float | None:
    timeout: timedelta | None = getattr(options, "timeout_ms", None)
    # Ray's default is negative.
    return None if timeout is None or timeout <= timedelta(0) else timeout.total_seconds()


def _only(call: str, tensors: Sequence[Any]) -> numpy.ndarray:
    """The array of a call's only tensor."""
    if len(tensors) != 1:
        raise ValueError(f"{call}: {len(tensors)} tensors; wanted one: an actor has no more than main memory")
    return _array(call, tensors[0])


def _array(call: str, tensor: Any) -> numpy.ndarray:
    """An array that shares the memory of a tensor."""
    if isinstance(tensor, numpy.ndarray):
        return tensor
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise TypeError(
            f"{call}: wanted an array of numpy's or a tensor of torch's, not {type(tensor).__name__}"
        )
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise TypeError(
            f"{call}: the tensor is {tensor.layout} on {tensor.device}; only strided ones in main memory are served"
        )
    tensor = tensor.detach()
    try:
        return tensor.numpy()
    except TypeError:
        return _small(call, torch, tensor)


def _small(call: str, torch: Any, tensor: Any) -> numpy.ndarray:
    """The array of a tensor whose type numpy does not have: bfloat16, and floats of 8 bits."""
    try:
        import ml_dtypes

        kind = numpy.dtype(getattr(ml_dtypes, str(tensor.dtype).removeprefix("torch.")))
    except (ImportError, AttributeError):
        raise TypeError(
            f"{call}: numpy has no {tensor.dtype}, nor has ml_dtypes, if it is installed; convert the tensor, or install ml_dtypes, "
            "which has bfloat16"
        ) from None
    return tensor.view(getattr(torch, f"int{8 * kind.itemsize}")).numpy().view(kind)


def _refuse_others(call: str, one: numpy.ndarray, each: Sequence[numpy.ndarray]) -> None:
    for at, other in enumerate(each):
        if (other.shape, other.dtype) != (one.shape, one.dtype):
            raise ValueError(
                f"{call}: the list's tensor {at} has shape {other.shape} and {other.dtype}; wanted {one.shape} and {one.dtype}, as "
                "the other tensor has"
            )


class _Board:
    """Ray's internal key-value store, in which a group's name belongs to a namespace, as the names of actors do."""

    def __init__(self, group_name: str, rank: int) -> None:
        self._group = group_name
        self._rank = rank
        self._key = f"unisono/{ray.get_runtime_context().namespace}/{group_name}"

    def host(self) -> str:
        return str(ray.util.get_node_ip_address())

    def tell(self, message: dict[str, Any]) -> None:
        # A problem is not stored, because the next group of this name would read it. Rank 0's actor raises it.
        if "problem" not in message:
            internal_kv._internal_kv_put(self._key, json.dumps(message))

    def hear(self) -> dict[str, Any]:
        begin, seen = time.monotonic(), "said nothing"
        while time.monotonic() - begin < _PATIENCE:
            value = internal_kv._internal_kv_get(self._key)
            if value is not None:
                message = dict(json.loads(value))
                if _listens(message["host"], message["port"]):
                    return message
                seen = f"said where, but nobody listens at {message['host']}:{message['port']}"
            time.sleep(0.02)
        raise Error(
            f"unisono: Timed out waiting {_PATIENCE:.0f} s: rank {self._rank} of the group {self._group!r} waits for rank 0 to say where "
            f"to meet, which has {seen}. Has its actor started, and does it make the same group?"
        )

    def forget(self) -> None:
        internal_kv._internal_kv_del(self._key)


def _listens(host: str, port: int) -> bool:
    """True if a store listens there. The address may come from an actor that has died."""
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True
