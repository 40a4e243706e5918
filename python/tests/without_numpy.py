"""The package without numpy: it accepts objects with the buffer protocol, and results are memoryviews."""

import array
import sys

sys.modules["numpy"] = None
import unisono

with unisono.init() as group:
    size, rank = group.size, group.rank
    total = sum(range(size))
    mine = array.array("d", [rank, 1.5])
    got = group.all_reduce(mine)
    assert isinstance(got, memoryview) and got.format == "d" and got.tolist() == [total, 1.5 * size]
    assert group.all_reduce(mine, out=mine) is mine and mine.tolist() == got.tolist()
    table = group.all_gather(array.array("i", [rank, 7]))
    assert table.shape == (size, 2) and table.tolist() == [[r, 7] for r in range(size)]
    assert bytes(group.broadcast(bytearray(b"abc") if rank == 0 else bytearray(3))) == b"abc"
    assert group.all_gather(b"", lengths=[0] * size).nbytes == 0
    assert group.all_gather(b"x" * rank, lengths=list(range(size))).tobytes() == b"x" * total
    truth = group.all_reduce(memoryview(b"\1" if rank else b"\0").cast("?"), "min")
    assert truth.tolist() == [False]
    lists = group.all_gather_tensors([mine, b"\1\2"])
    assert [list(each[0]) for each in lists] == [got.tolist()] * size and lists[0][1].tolist() == [1, 2]
    got, sender = group.all_gather_object({"rank": rank}), None
    assert got == [{"rank": r} for r in range(size)]
    for wrong in (1.5, "text", memoryview(bytearray(8))[::2], [1]):
        try:
            group.all_reduce(wrong)
        except (TypeError, ValueError) as error:
            print(type(error).__name__, error)
        else:
            raise AssertionError(wrong)
    group.barrier()
