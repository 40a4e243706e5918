"""Tensors whose shapes only their owners know, and files."""

import pathlib
from typing import Any

import numpy as np
import pytest
import unisono
from ranks import Ranks
from unisono import Group

TYPES = ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0, 4), (50, 1000), (1, 1, 2)]


def lists(seed: int, rank: int) -> list[Any]:
    """A rank's arrays: their number, types and shapes differ between ranks."""
    rng = np.random.default_rng([seed, rank])
    arrays = []
    for _ in range(int(rng.integers(0, 6))):
        shape = SHAPES[rng.integers(len(SHAPES))]
        arrays.append(np.asarray(rng.integers(0, 100, shape)).astype(TYPES[rng.integers(len(TYPES))]))
    return arrays


def same(got: list[Any], wanted: list[Any]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert isinstance(one, np.ndarray) and (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)
        assert one.flags.writeable


def lists_of_tensors(group: Group, seed: int) -> None:
    size, rank = group.size, group.rank
    everyone = [lists(seed, r) for r in range(size)]
    mine = everyone[rank]
    for root in range(size):
        same(group.broadcast_tensors(mine if rank == root else None, root), everyone[root])
        gathered = group.gather_tensors(mine, root)
        assert (gathered is None) == (rank != root)
        if gathered is not None:
            for one, other in zip(gathered, everyone, strict=True):
                same(one, other)
    for one, other in zip(group.all_gather_tensors(mine), everyone, strict=True):
        same(one, other)
    right, left = (rank + 1) % size, (rank - 1) % size
    sending = group.send_tensors_async(mine, right, 4)
    for array in mine:
        # The library has copied the arrays.
        array[...] = 0
    got, sender = group.recv_tensors(left, 4)
    assert sender == left
    same(got, lists(seed, left))
    sending.wait()
    table = np.arange(12.0).reshape(3, 4)
    same(
        group.broadcast_tensors([table.T, table[::2], 7, b"ab"]),
        [table.T, table[::2], np.array(7), np.array([97, 98], "u1")],
    )


def parts(group: Group, seed: int) -> None:
    size, rank = group.size, group.rank
    rng = np.random.default_rng(seed)
    whole = rng.integers(0, 1000, (7, 9, 2)).astype("f4")
    for axis in range(-3, 3):
        mine = np.array_split(whole, size, axis)[rank]
        part = group.scatter_tensor(whole if rank == 0 else None, axis=axis)
        same([part], [mine])
        same([group.all_gather_tensor(part, axis=axis)], [whole])
        gathered = group.gather_tensor(part, size - 1, axis=axis)
        same([] if gathered is None else [gathered], [whole] if rank == size - 1 else [])
    indices = sorted(int(index) for index in rng.integers(0, 10, size - 1))
    part = group.scatter_tensor(whole if rank == 0 else None, axis=1, indices=indices)
    same([part], [np.split(whole, indices, 1)[rank]])
    if size == 4:
        matrix = np.arange(24).reshape(4, 6)
        part = group.scatter_tensor(matrix if rank == 0 else None, blocks=(2, 2))
        same([part], [matrix[2 * (rank // 2) :][:2, 3 * (rank % 2) :][:, :3]])
        same([group.all_gather_tensor(part, blocks=(2, 2))], [matrix])
    # Lengths that no other rank knows.
    grown = [np.full((r, 2), r) for r in range(size)]
    same([group.all_gather_tensor(grown[rank])], [np.concatenate(grown)])


def wrong(group: Group) -> None:
    size, rank = group.size, group.rank
    for dtype in ("bool", "complex64", "M8[s]", ">f4", "S3"):
        with pytest.raises(TypeError, match="send_tensors: elements of .* cannot be sent with their type"):
            group.send_tensors([np.zeros(2, dtype)], 0)
    with pytest.raises(TypeError, match="not list"):
        group.send_tensors([[1, 2]], 0)
    with pytest.raises(ValueError, match="all_gather_tensor: axis is -2, and the array has 1 dimension"):
        group.all_gather_tensor(np.zeros(3), axis=-2)
    if size > 1:
        with pytest.raises(ValueError, match="rank"):
            group.all_gather_tensor(np.zeros((2, 2 + rank)))
        with pytest.raises(ValueError, match="rank"):
            group.all_gather_tensor(np.zeros(2, "f4" if rank else "f8"))
    with pytest.raises(ValueError if rank == 0 else unisono.Error):
        group.scatter_tensor(np.zeros(3) if rank == 0 else None, axis=5)
    with pytest.raises(ValueError if rank == 0 else unisono.Error):
        group.broadcast_tensors(None)
    assert group.all_reduce(1) == size


def files(group: Group, folder: str) -> None:
    size, rank = group.size, group.rank
    here = pathlib.Path(folder, str(rank))
    here.mkdir()
    contents = np.random.default_rng(1).bytes(5_000_000)
    source = here / "source.bin"
    if rank == 0:
        source.write_bytes(contents)
    group.barrier()
    delivered = group.broadcast_file(source, here / "copies")
    assert delivered.path.name == "source.bin" and delivered.path.read_bytes() == contents
    assert (delivered.bytes, delivered.wrote) == (len(contents), True)
    assert not group.broadcast_file(source, here / "copies").wrote
    if size > 1 and rank == 0:
        assert group.send_file(source, 1, 3).sent == len(contents)
    elif rank == 1:
        received, sender = group.recv_file(here / "received", tag=3)
        assert sender == 0 and received.path == here / "received" / "source.bin"
        assert received.path.read_bytes() == contents
    with pytest.raises(unisono.Error, match=r"broadcast_file: .*nothing here.* on rank 0"):
        group.broadcast_file(here / "nothing here", here)
    with pytest.raises(ValueError, match="rank"):
        group.broadcast_file(source, here, size)
    assert group.all_reduce(1) == size


def test_lists_of_tensors_arrive(world: Ranks) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    world.run(lists_of_tensors, seed)


def test_a_tensor_is_split_and_joined(world: Ranks) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    world.run(parts, seed)


def test_what_does_not_fit_is_told(world: Ranks) -> None:
    world.run(wrong)


def test_files_are_copied(world: Ranks, tmp_path: pathlib.Path) -> None:
    world.run(files, str(tmp_path))
