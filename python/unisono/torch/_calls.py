"""The calls of a process group: those of `torch.distributed`, on the native group.

This module checks each call and describes it in the library's codes. The native module runs it without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from unisono import _checks, _native
from unisono._codes import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    GATHER,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
)
from unisono.torch._memory import Memory, Piece, blocks, same_dtype
from unisono.torch._runs import Runs, together
from unisono.torch._several import check_alike, reduced, root_tensor
from unisono.torch._staging import Order
from unisono.torch._types import PREMUL_SUM, REDUCTIONS, moved, no_reduction, operation
from unisono.torch._work import Done, Work


def _options(kind: type, timeout: timedelta | None, **fields: Any) -> Any:
    """Makes the options of a call from separate arguments."""
    options = kind()
    if timeout is not None:
        options.timeout = timeout
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _one(call: str, tensors: Sequence[Tensor] | Tensor) -> Tensor | None:
    """The tensor of a list of one; `None` if there are several."""
    # `isinstance` of a tensor costs more than the rest.
    if type(tensors) is not list and isinstance(tensors, Tensor):
        return tensors
    if len(tensors) == 1:
        return tensors[0]
    if not tensors:
        raise ValueError(f"{call}: one tensor is wanted, and there are 0")
    return None


def _only(call: str, tensors: Sequence[Tensor] | Tensor) -> Tensor:
    """The tensor of a list of one."""
    tensor = _one(call, tensors)
    if tensor is None:
        raise ValueError(f"{call}: one tensor is wanted, and there are {len(tensors)}")
    return tensor


def _list(call: str, lists: Sequence[Sequence[Tensor]] | Sequence[Tensor]) -> Sequence[Tensor]:
    """The list of tensors in a list of one list, or the list itself."""
    if len(lists) == 1 and not isinstance(lists[0], Tensor):
        return lists[0]
    if any(not isinstance(tensor, Tensor) for tensor in lists):
        raise ValueError(f"{call}: one list of tensors is wanted, and there are {len(lists)}")
    return lists  # type: ignore[return-value]


class Calls(Runs):
    """The calls."""

    def _reduction(self, call: str, opts: Any, tensor: Tensor, root: int = 0) -> tuple[int, int, float, int]:
        """Type, operation, factor and root in the library's codes."""
        op = opts.reduceOp
        code = hash(op)
        try:
            operation = REDUCTIONS[code, tensor.dtype].op
        except KeyError:
            raise no_reduction(call, op, tensor.dtype) from None
        return moved(tensor).element, operation, _factor(op) if code == PREMUL_SUM else 1.0, root

    def _root(self, call: str, opts: Any) -> int:
        root = opts.rootRank
        if not 0 <= root < self._ranks:
            raise ValueError(f"{call}: the root is rank {root}; there are ranks 0 to {self._ranks - 1}")
        return root

    # One tensor for all ranks.

    def allreduce(self, tensors, opts=None, op=None, timeout=None) -> Work:
        """Reduces all ranks' tensor; every rank gets the result."""
        if not isinstance(opts, AllreduceOptions):
            opts = _options(AllreduceOptions, timeout, reduceOp=opts if opts is not None else op)
        tensor = _one("all_reduce", tensors)
        if tensor is None:
            return self._allreduce_several(tensors, opts)
        if (work := self._plain(ALL_REDUCE, tensor, tensor, opts)) is not None:
            return work
        if tensor.is_sparse:
            return self.allreduce_sparse(tensors, opts)
        memory = Memory("all_reduce")
        piece = memory.write(tensor)
        described = self._reduction("all_reduce", opts, tensor)
        return self._run(ALL_REDUCE, described, (piece, piece), memory, [tensor], opts)

    def _allreduce_several(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """Reduces all tensors of all ranks to one, which all of them get."""
        check_alike("all_reduce", tensors)
        described = self._reduction("all_reduce", opts, tensors[0])
        total, memory = reduced(tensors, operation(opts.reduceOp)), Memory("all_reduce")
        if total.is_sparse:
            self.allreduce_sparse([total], opts)
            with torch.no_grad():
                for tensor in tensors:
                    tensor.copy_(total)
            return Done(list(tensors))
        piece = memory.write(total)
        memory.back.extend((tensor.detach(), total) for tensor in tensors)
        return self._run(ALL_REDUCE, described, (piece, piece), memory, list(tensors), opts)

    def allreduce_sparse(self, tensors, opts=None) -> Work:
        """Sums all ranks' sparse tensor (COO). Blocks, since the ranks must learn how many elements each has."""
        opts = opts if opts is not None else AllreduceOptions()
        tensor = _only("all_reduce", tensors)
        if hash(opts.reduceOp) != int(torch.distributed.ReduceOp.SUM):
            raise ValueError("all_reduce: sparse tensors can only be summed (ReduceOp.SUM)")
        mine = tensor.detach().coalesce()
        own = torch.tensor([mine._nnz()], dtype=torch.int64)
        counts = torch.empty(self._ranks, dtype=torch.int64)
        now = _options(AllgatherOptions, opts.timeout, asyncOp=False)
        self.all_gather_single(counts, own, now)
        numbers = [int(count) for count in counts]

        def gathered(part: Tensor) -> list[Tensor]:
            parts = [part.new_empty((count, *part.shape[1:])) for count in numbers]
            self.allgather([parts], [part.contiguous()], now)
            return parts

        indices, values = gathered(mine.indices().t()), gathered(mine.values())
        total = torch.sparse_coo_tensor(torch.cat(indices).t(), torch.cat(values), tensor.shape).coalesce()
        with torch.no_grad():
            tensor.copy_(total)
        return Done([tensor])

    def allreduce_coalesced(self, tensors, opts=None) -> Work:
        """Reduces all ranks' tensors, as one tensor for each dtype."""
        opts = opts if opts is not None else AllreduceCoalescedOptions()

        def one(part: list[Tensor]) -> Callable[[], Work]:
            memory = Memory("all_reduce_coalesced")
            pieces = memory.write_all(part)
            described = self._reduction("all_reduce_coalesced", opts, part[0])
            return lambda: self._run(
                ALL_REDUCE, described, (pieces, pieces), memory, part, opts, coalesced=True
            )

        return _by_dtype(tensors, tensors, one, list(tensors))

    def reduce(self, tensors, opts=None, op=None, timeout=None, root=None) -> Work:
        """Reduces all ranks' tensor; the root gets the result."""
        if not isinstance(opts, ReduceOptions):
            root = opts if opts is not None else root
            opts = _options(ReduceOptions, timeout, reduceOp=op, rootRank=root)
        tensor, root, memory = _only("reduce", tensors), self._root("reduce", opts), Memory("reduce")
        root_tensor("reduce", opts, 1)
        described = self._reduction("reduce", opts, tensor, root)
        if root == self._rank:
            piece = memory.write(tensor)
            pieces: tuple[Piece, Piece | None] = (piece, piece)
        else:
            pieces = (memory.read(tensor), None)
        return self._run(REDUCE, described, pieces, memory, [tensor], opts)

    def broadcast(self, tensors, opts=None, timeout=None, root=None) -> Work:
        """Every rank gets the root's tensor."""
        if not isinstance(opts, BroadcastOptions):
            opts = _options(BroadcastOptions, timeout, rootRank=opts if opts is not None else root)
        tensor = _one("broadcast", tensors)
        if tensor is None or opts.rootTensor:
            return self._broadcast_several(tensors if tensor is None else [tensor], opts)
        if (work := self._plain(BROADCAST, None, tensor, opts)) is not None:
            return work
        root, memory = self._root("broadcast", opts), Memory("broadcast")
        piece = memory.read(tensor) if root == self._rank else memory.write(tensor)
        described = (moved(tensor).element, 0, 1.0, root)
        return self._run(BROADCAST, described, (None, piece), memory, [tensor], opts)

    def _broadcast_several(self, tensors: Sequence[Tensor], opts: Any) -> Work:
        """All tensors of all ranks get one of the root's."""
        tensor = tensors[root_tensor("broadcast", opts, len(tensors))]
        check_alike("broadcast", tensors)
        root, memory = self._root("broadcast", opts), Memory("broadcast")
        piece = memory.read(tensor) if root == self._rank else memory.write(tensor)
        memory.back.extend((other.detach(), tensor.detach()) for other in tensors if other is not tensor)
        described = (moved(tensor).element, 0, 1.0, root)
        return self._run(BROADCAST, described, (None, piece), memory, list(tensors), opts)

    # A tensor of each rank for all.

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        """Every rank gets all ranks' tensors, which may differ in size."""
        if not isinstance(opts, AllgatherOptions):
            opts = _options(AllgatherOptions, timeout)
        tensor = _one("all_gather", input_tensors)
        if tensor is None:
            return self._allgather_several(output_tensors, input_tensors, opts)
        outputs = self._one_each("all_gather", "outputs", _list("all_gather", output_tensors))
        same_dtype("all_gather", [tensor, *outputs])
        if outputs[self._rank].numel() != tensor.numel():
            raise ValueError(
                f"all_gather: rank {self._rank} gives {tensor.numel()} elements, and its output for itself has "
                f"{outputs[self._rank].numel()}"
            )
        memory = Memory("all_gather")
        pieces = (memory.read(tensor), memory.write_all(outputs))
        element, each = moved(tensor)
        sizes = [each * output.numel() for output in outputs]
        lengths = None if sizes.count(sizes[0]) == len(sizes) else ([], sizes)
        return self._run(ALL_GATHER, (element, 0, 1.0, 0), pieces, memory, list(outputs), opts, lengths)

    def _allgather_several(self, lists: Sequence[Any], tensors: Sequence[Tensor], opts: Any) -> Work:
        """Every list gets the tensors of all ranks: those of the first rank, then those of the second, and so on."""
        wanted = self._ranks * len(tensors)
        if [len(outputs) for outputs in lists] != [wanted] * len(tensors):
            raise ValueError(
                f"all_gather: of {len(tensors)} tensors of each of {self._ranks} ranks {len(tensors)} lists of {wanted} outputs are "
                f"wanted; there are lists of {[len(outputs) for outputs in lists]}"
            )
        check_alike("all_gather", [*tensors, *(output for outputs in lists for output in outputs)])
        memory = Memory("all_gather")
        pieces = (memory.read_all(tensors), memory.write_all(lists[0]))
        for outputs in lists[1:]:
            copies = zip(outputs, lists[0], strict=True)
            memory.back.extend((output.detach(), first.detach()) for output, first in copies)
        described = (moved(tensors[0]).element, 0, 1.0, 0)
        return self._run(
            ALL_GATHER, described, pieces, memory, [list(outputs) for outputs in lists], opts, coalesced=True
        )

    def all_gather_single(self, output, input, opts=None, timeout=None) -> Work:
        """Every rank gets all ranks' tensors, one after the other in one tensor."""
        if not isinstance(opts, AllgatherOptions):
            opts = _options(AllgatherOptions, timeout)
        self._whole("all_gather_single", output, "output", input, "input")
        if (work := self._plain(ALL_GATHER, input, output, opts)) is not None:
            return work
        memory = Memory("all_gather_single")
        pieces = (memory.read(input), memory.write(output))
        described = (moved(input).element, 0, 1.0, 0)
        return self._run(ALL_GATHER, described, pieces, memory, [output], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        """Works like `all_gather_single`, for several tensors."""
        opts = opts if opts is not None else AllgatherOptions()
        for output, tensor in zip(outputs, inputs, strict=True):
            self._whole("all_gather_single_coalesced", output, "output", tensor, "input")

        def one(pairs: list[tuple[Tensor, Tensor]]) -> Callable[[], Work]:
            memory = Memory("all_gather_single_coalesced")
            given = memory.read_all(tensor for tensor, _ in pairs)
            made = [output for _, output in pairs]
            wanted = blocks(memory.write_all(made), self._ranks)
            described = (moved(pairs[0][0]).element, 0, 1.0, 0)
            return lambda: self._run(
                ALL_GATHER, described, (given, wanted), memory, made, opts, coalesced=True
            )

        return _by_dtype(inputs, list(zip(inputs, outputs, strict=True)), one, list(outputs))

    def allgather_coalesced(self, output_lists, input_list, opts=None) -> Work:
        """Every rank gets the lists of tensors of all ranks."""
        opts = opts if opts is not None else AllgatherOptions()
        lists = self._one_each("all_gather_coalesced", "output lists", output_lists)
        for rank, outputs in enumerate(lists):
            if [output.shape for output in outputs] != [tensor.shape for tensor in input_list]:
                raise ValueError(
                    f"all_gather_coalesced: the outputs for rank {rank} have other shapes than the inputs"
                )

        def one(indices: list[int]) -> Callable[[], Work]:
            memory = Memory("all_gather_coalesced")
            given = memory.read_all(input_list[index] for index in indices)
            wanted = memory.write_all(outputs[index] for outputs in lists for index in indices)
            described = (moved(input_list[indices[0]]).element, 0, 1.0, 0)
            return lambda: self._run(
                ALL_GATHER, described, (given, wanted), memory, output_lists, opts, coalesced=True
            )

        return _by_dtype(input_list, range(len(input_list)), one, output_lists)

    def gather(self, output_tensors, input_tensors, opts=None, timeout=None, root=None) -> Work:
        """The root gets all ranks' tensors."""
        if not isinstance(opts, GatherOptions):
            opts = _options(GatherOptions, timeout, rootRank=opts if opts is not None else root)
        tensor, memory = _only("gather", input_tensors), Memory("gather")
        root = self._root("gather", opts)
        piece, wanted, outputs = memory.read(tensor), None, []
        if root == self._rank:
            outputs = self._one_each("gather", "outputs", _list("gather", output_tensors))
            self._alike("gather", tensor, outputs)
            wanted = memory.write_all(outputs)
        described = (moved(tensor).element, 0, 1.0, root)
        return self._run(GATHER, described, (piece, wanted), memory, list(outputs), opts)

    def gather_single(self, output, input, opts=None) -> Work:
        """The root gets all ranks' tensors, one after the other in one tensor."""
        opts = opts if opts is not None else GatherOptions()
        memory, root = Memory("gather_single"), self._root("gather_single", opts)
        piece, wanted = memory.read(input), None
        if root == self._rank:
            self._whole("gather_single", output, "output", input, "input")
            wanted = memory.write(output)
        described = (moved(input).element, 0, 1.0, root)
        return self._run(GATHER, described, (piece, wanted), memory, [output], opts)

    # A tensor for each rank.

    def scatter(self, output_tensors, input_tensors, opts=None, timeout=None, root=None) -> Work:
        """Every rank gets its tensor of the root's list."""
        if not isinstance(opts, ScatterOptions):
            opts = _options(ScatterOptions, timeout, rootRank=opts if opts is not None else root)
        tensor, memory = _only("scatter", output_tensors), Memory("scatter")
        root = self._root("scatter", opts)
        given = None
        if root == self._rank:
            inputs = self._one_each("scatter", "inputs", _list("scatter", input_tensors))
            self._alike("scatter", tensor, inputs)
            given = memory.read_all(inputs)
        described = (moved(tensor).element, 0, 1.0, root)
        return self._run(SCATTER, described, (given, memory.write(tensor)), memory, [tensor], opts)

    def reduce_scatter(self, output_tensors, input_tensors, opts=None, op=None, timeout=None) -> Work:
        """Reduces all ranks' lists; every rank gets its tensor of the result. The tensors may differ in size."""
        if not isinstance(opts, ReduceScatterOptions):
            opts = _options(ReduceScatterOptions, timeout, reduceOp=opts if opts is not None else op)
        tensor = _only("reduce_scatter", output_tensors)
        inputs = self._one_each("reduce_scatter", "inputs", _list("reduce_scatter", input_tensors))
        same_dtype("reduce_scatter", [tensor, *inputs])
        if inputs[self._rank].numel() != tensor.numel():
            raise ValueError(
                f"reduce_scatter: the output has {tensor.numel()} elements, and the input for rank {self._rank}, which this is, "
                f"{inputs[self._rank].numel()}"
            )
        memory = Memory("reduce_scatter")
        described = self._reduction("reduce_scatter", opts, tensor)
        pieces = (memory.read_all(inputs), memory.write(tensor))
        each = moved(tensor).elements
        sizes = [each * part.numel() for part in inputs]
        lengths = None if sizes.count(sizes[0]) == len(sizes) else (sizes, [])
        return self._run(REDUCE_SCATTER, described, pieces, memory, [tensor], opts, lengths)

    def reduce_scatter_single(self, output, input, opts=None) -> Work:
        """Reduces all ranks' input; every rank gets its block of the result."""
        opts = opts if opts is not None else ReduceScatterOptions()
        self._whole("reduce_scatter_single", input, "input", output, "output")
        if (work := self._plain(REDUCE_SCATTER, input, output, opts)) is not None:
            return work
        memory = Memory("reduce_scatter_single")
        described = self._reduction("reduce_scatter_single", opts, input)
        pieces = (memory.read(input), memory.write(output))
        return self._run(REDUCE_SCATTER, described, pieces, memory, [output], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None) -> Work:
        """Works like `reduce_scatter_single`, for several tensors."""
        opts = opts if opts is not None else ReduceScatterOptions()
        for output, tensor in zip(outputs, inputs, strict=True):
            self._whole("reduce_scatter_single_coalesced", tensor, "input", output, "output")

        def one(pairs: list[tuple[Tensor, Tensor]]) -> Callable[[], Work]:
            memory = Memory("reduce_scatter_single_coalesced")
            given = blocks(memory.read_all(tensor for tensor, _ in pairs), self._ranks)
            made = [output for _, output in pairs]
            wanted = memory.write_all(made)
            described = self._reduction("reduce_scatter_single_coalesced", opts, pairs[0][0])
            return lambda: self._run(
                REDUCE_SCATTER, described, (given, wanted), memory, made, opts, coalesced=True
            )

        return _by_dtype(inputs, list(zip(inputs, outputs, strict=True)), one, list(outputs))

    # A tensor from each rank for each.

    def all_to_all_single(
        self, output, input, output_split_sizes, input_split_sizes, opts=None, timeout=None
    ) -> Work:
        """Every rank sends a part of its input to every rank. The parts are along the first dimension."""
        if not isinstance(opts, AllToAllOptions):
            opts = _options(AllToAllOptions, timeout)
        same_dtype("all_to_all_single", [output, input])
        memory, (element, each) = Memory("all_to_all_single"), moved(input)
        given, wanted = memory.read(input), memory.write(output)
        lengths = None
        if output_split_sizes or input_split_sizes:
            lengths = (
                self._splits("input", input, input_split_sizes, each),
                self._splits("output", output, output_split_sizes, each),
            )
        else:
            for what, tensor in (("input", input), ("output", output)):
                if tensor.numel() and tensor.shape[0] % self._ranks:
                    raise ValueError(
                        f"all_to_all_single: the first dimension of the {what} is {tensor.shape[0]}, which {self._ranks} ranks "
                        "cannot share equally; give split sizes"
                    )
            if input.numel() != output.numel():
                raise ValueError(
                    f"all_to_all_single: the input has {input.numel()} elements and the output {output.numel()}; give split sizes"
                )
        described = (element, 0, 1.0, 0)
        return self._run(ALL_TO_ALL, described, (given, wanted), memory, [output], opts, lengths)

    def alltoall(self, output_tensors, input_tensors, opts=None, timeout=None) -> Work:
        """Every rank sends a tensor to every rank. The tensors may differ in size."""
        if not isinstance(opts, AllToAllOptions):
            opts = _options(AllToAllOptions, timeout)
        outputs = self._one_each("all_to_all", "outputs", output_tensors)
        inputs = self._one_each("all_to_all", "inputs", input_tensors)
        same_dtype("all_to_all", [*inputs, *outputs])
        element, each = moved(inputs[0])
        memory = Memory("all_to_all")
        pieces = (memory.read_all(inputs), memory.write_all(outputs))
        lengths = ([each * part.numel() for part in inputs], [each * part.numel() for part in outputs])
        described = (element, 0, 1.0, 0)
        return self._run(ALL_TO_ALL, described, pieces, memory, list(outputs), opts, lengths)

    # Nothing.

    def barrier(self, opts=None, timeout=None) -> Work:
        """Returns when all ranks have called it."""
        if not isinstance(opts, BarrierOptions):
            opts = _options(BarrierOptions, opts if opts is not None else timeout)
        return self._run(BARRIER, (0, 0, 1.0, 0), (None, None), Memory("barrier"), [], opts)

    # Messages.

    def send(self, tensors, dst, tag=0) -> Work:
        """Begins to send a tensor to a rank."""
        tensor, memory = _only("send", tensors), Memory("send")
        dst = _checks.rank("send", "dst", dst, self._ranks)
        tag = _checks.whole("send", "tag", tag, 0, _checks.TAG)
        piece, element, group = memory.read(tensor), moved(tensor).element, self._group
        native = lambda piece, keep: group.send_async(element, piece, dst, tag, None, keep)
        return self._message(Order("send", tag, dst), native, piece, memory, tensor)

    def recv(self, tensors, src, tag=0) -> Work:
        """Begins to receive a tensor from a rank."""
        return self._receive("recv", tensors, src, tag)

    def recv_anysource(self, tensors, tag=0) -> Work:
        """Begins to receive a tensor from any rank."""
        return self._receive("recvAnySource", tensors, None, tag)

    # The name by which C++ calls it.
    recvAnysource = recv_anysource

    def _receive(self, call: str, tensors: Any, source: int | None, tag: int) -> Work:
        tensor, memory = _only(call, tensors), Memory(call)
        tag = _checks.whole(call, "tag", tag, 0, _checks.TAG)
        if source is not None:
            source = _checks.rank(call, "src", source, self._ranks)
        piece, element, group = memory.write(tensor), moved(tensor).element, self._group
        first: list[_native.Work] = []

        def native(piece: Piece, keep: Any) -> _native.Work:
            # The sender of the first chunk sends the others.
            sender = first[0].wait() if source is None and first else source
            first.append(group.recv_async(element, piece, sender, tag, None, keep))
            return first[-1]

        return self._message(Order("recv", tag, source), native, piece, memory, tensor)

    # Checks.

    def _one_each(self, call: str, what: str, tensors: Sequence[Any]) -> Sequence[Any]:
        if len(tensors) != self._ranks:
            raise ValueError(
                f"{call}: there are {len(tensors)} {what}; there must be one for each of {self._ranks} ranks"
            )
        return tensors

    def _whole(self, call: str, whole: Tensor, whole_name: str, part: Tensor, part_name: str) -> None:
        same_dtype(call, [whole, part])
        if whole.numel() != self._ranks * part.numel():
            raise ValueError(
                f"{call}: the {whole_name} has {whole.numel()} elements and the {part_name} {part.numel()}; with {self._ranks} ranks "
                f"the {whole_name} must have {self._ranks * part.numel()}"
            )

    def _alike(self, call: str, tensor: Tensor, tensors: Sequence[Tensor]) -> None:
        same_dtype(call, [tensor, *tensors])
        for rank, other in enumerate(tensors):
            if other.numel() != tensor.numel():
                raise ValueError(
                    f"{call}: the tensor of rank {rank} has {other.numel()} elements and this rank's {tensor.numel()}; all must have "
                    "equally many"
                )

    def _splits(self, what: str, tensor: Tensor, sizes: Sequence[int], each: int) -> list[int]:
        """The elements for each rank."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes:
            if rows % self._ranks:
                raise ValueError(
                    f"all_to_all_single: {rows} rows of the {what} cannot be shared equally by {self._ranks} ranks"
                )
            sizes = [rows // self._ranks] * self._ranks
        self._one_each("all_to_all_single", f"{what} split sizes", sizes)
        if sum(sizes) != rows:
            raise ValueError(
                f"all_to_all_single: the {what} split sizes {list(sizes)} add up to {sum(sizes)}; the first dimension of the {what} "
                f"is {rows}"
            )
        row = each * tensor.numel() // rows if rows else 0
        return [size * row for size in sizes]


def _by_dtype(tensors: Sequence[Tensor], items: Sequence[Any], one: Any, outputs: Any) -> Work:
    """Runs a call for the items of each dtype, in the order in which the dtypes first come; an item belongs to the tensor at its index. ``one``
    checks a call and returns what begins it, so that none begins if one of them is wrong."""
    parts: dict[torch.dtype, list[Any]] = {}
    for tensor, item in zip(tensors, items, strict=True):
        parts.setdefault(tensor.dtype, []).append(item)
    ready = [one(part) for part in parts.values()]
    return together([begin() for begin in ready], outputs)


def _factor(op: Any) -> float:
    """The factor of a pre-multiplied sum."""
    factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
    return float(factor)
