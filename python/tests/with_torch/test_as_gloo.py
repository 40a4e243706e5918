"""Unchanged scripts with the name "gloo": unisono makes their groups."""

import os
import pathlib
import pickle
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from unisono.torch import Backend, ProcessGroup, replace_gloo
from unisono.torch._as_gloo import asked_for
from unisono.torch._older import HAS_BACKENDS
from world import CLASSES, join, newer, run

CPU = torch.device("cpu")
SITE = pathlib.Path(sys.modules["unisono"].__file__).parents[1]


def replaced(backend, body, *args):
    """The results of `body` in a world of this backend, after Gloo has been replaced."""
    replace_gloo()
    join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", backend=backend)
    got = body(*args)
    dist.destroy_process_group()
    return got


def as_gloo(ranks, body, *args, backend="gloo", classes=CLASSES, env=None):
    for kind in classes:
        env = {**(env or {}), **({"UNISONO_TORCH_CLASS": kind} if kind else {})}
        got = run(ranks, replaced, backend, body, *args, init=False, env=env)
    return got


def is_ours(group):
    backend = group._get_backend(CPU)
    return isinstance(getattr(backend, "wrapped_pg", backend), (Backend, ProcessGroup))


def sums(group=None):
    tensor = torch.full((5,), float(dist.get_rank(group) + 1))
    dist.all_reduce(tensor, group=group)
    ranks = dist.get_world_size(group)
    assert tensor.tolist() == [ranks * (ranks + 1) / 2] * 5


def answers():
    """Questions of scripts about Gloo."""
    world = dist.group.WORLD
    assert is_ours(world)
    sums()
    assert dist.get_backend() == dist.Backend.GLOO == "gloo"
    assert dist.get_backend_config() == "cpu:gloo,cuda:gloo"
    if isinstance(world, ProcessGroup):
        assert world.name() == "gloo" and world._get_backend_name() == "gloo"
    backend = world._get_backend(CPU)
    assert isinstance(backend, dist.ProcessGroupGloo) and isinstance(
        backend, Backend if HAS_BACKENDS else ProcessGroup
    )
    assert backend.name() == "gloo"
    assert backend.options._timeout == timedelta(seconds=20)
    assert isinstance(backend.options, dist.ProcessGroupGloo._Options)
    assert dist.is_gloo_available()
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, dist.get_rank())
    assert objects == list(range(dist.get_world_size()))
    dist.monitored_barrier()
    replace_gloo()


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_default_group_is_ours_and_answers_as_gloo(ranks):
    as_gloo(ranks, answers)


def trained():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
    # All ranks had the same.
    assert all(
        torch.equal(it / 2, parameter.grad)
        for it, parameter in zip(gradients, model.parameters(), strict=True)
    )


def test_models_are_trained():
    as_gloo(2, trained)


def groups():
    rank = dist.get_rank()
    for named in ({"backend": "gloo"}, {"backend": "GLOO"}, {}):
        group = dist.new_group(**named)
        assert is_ours(group) and dist.get_backend(group) == "gloo"
        sums(group)
    part = dist.new_group([0, 2], backend="gloo")
    if rank != 1:
        assert is_ours(part)
        sums(part)
    groups, _ = dist.new_subgroups_by_enumeration([[0, 1], [2]], backend="gloo")
    assert is_ours(groups)
    mesh = init_device_mesh("cpu", (3,))
    assert is_ours(mesh.get_group()) and dist.get_backend(mesh.get_group()) == "gloo"
    sums(mesh.get_group())
    if HAS_BACKENDS:
        split = dist.split_group(split_ranks=[[0, 1], [2]])
        assert is_ours(split) and dist.get_backend(split) == "gloo"
        assert isinstance(split._get_backend(CPU), dist.ProcessGroupGloo)
        sums(split)


def test_all_groups_of_this_name_are_ours():
    as_gloo(3, groups)


def without_a_name():
    assert is_ours(dist.group.WORLD) and dist.get_backend() == "undefined"
    assert isinstance(dist.group.WORLD._get_backend(CPU), dist.ProcessGroupGloo)
    sums()


def test_a_group_without_a_name_is_ours():
    as_gloo(2, without_a_name, backend=None)


def beside_the_original():
    group = dist.new_group(backend="original_gloo")
    assert not is_ours(group) and dist.get_backend(group) == "original_gloo"
    assert type(group._get_backend(CPU)) is dist.ProcessGroupGloo
    sums(group)
    sums()
    ours = dist.new_group(backend="gloo")
    assert is_ours(ours)
    sums(ours)


@pytest.mark.parametrize("backend", ["gloo", "original_gloo", "unisono"])
def test_the_original_stays_there(backend):
    as_gloo(2, beside_the_original, backend=backend)


def beside_another():
    replace_gloo()
    store = f"file://{os.environ['UNISONO_TEST_FOLDER']}/store"
    join(store, backend="cpu:gloo,meta:original_gloo")
    world = dist.group.WORLD
    assert is_ours(world) and dist.get_backend_config() == "cpu:gloo,meta:original_gloo"
    assert type(world._get_backend(torch.device("meta"))) is dist.ProcessGroupGloo
    sums()
    dist.monitored_barrier()
    dist.destroy_process_group()


@newer
def test_it_stands_beside_others():
    run(2, beside_another, init=False)


def late(name):
    join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", backend=name)
    for _ in range(2):
        with pytest.raises(
            RuntimeError,
            match=r"Gloo has made the group '0' of 2 ranks .*before init_process_group.*UNISONO_AS_GLOO=1",
        ):
            replace_gloo()
    sums()
    assert not is_ours(dist.group.WORLD)
    dist.destroy_process_group()
    replace_gloo()
    join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/again", backend=name)
    assert is_ours(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["gloo", None, "cpu:gloo"])
def test_after_a_group_of_gloo_it_is_too_late(name):
    run(2, late, name, init=False)


def checked():
    replace_gloo()
    # The import of torch reads this from TORCH_DISTRIBUTED_DEBUG.
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    join(f"file://{os.environ['UNISONO_TEST_FOLDER']}/store", backend="gloo")
    assert is_ours(dist.group.WORLD)
    assert isinstance(dist.group.WORLD._get_backend(CPU).wrapped_pg, dist.ProcessGroupGloo)
    sums()
    dist.monitored_barrier()
    part = dist.split_group(split_ranks=[[0], [1]])
    sums(part)
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    dist.destroy_process_group()


@newer
def test_calls_are_checked_with_detail():
    run(2, checked, init=False)


def recorded():
    sums()
    entries = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(backend="unisono"))["entries"]
    assert [entry["profiling_name"] for entry in entries] == ["unisono:all_reduce"]


@newer
def test_the_flight_recorder_records_under_our_name():
    as_gloo(2, recorded, classes=[None], env={"TORCH_FR_BUFFER_SIZE": "100"})


def timeouts():
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7))
    backend = dist.group.WORLD._get_backend(CPU)
    assert backend._timeout == backend.options._timeout == timedelta(seconds=7)
    backend.create_device(interface="lo")
    sums()


def test_its_timeout_is_set():
    as_gloo(2, timeouts, classes=["backend"])


def wrapped():
    replace_gloo()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{os.environ['UNISONO_TEST_FOLDER']}/wrapped", ranks)
    inner = dist.ProcessGroupGloo(dist.PrefixStore("inner", store), rank, ranks, 20.0)
    # The function has this name in this module, too.
    wrapper = dist._create_process_group_wrapper(
        inner, "helper", store, rank, ranks, timeout=timedelta(seconds=20)
    )
    with pytest.raises(RuntimeError, match="Detected mismatch between collectives"):
        wrapper.allreduce([torch.ones(3 + rank)])


@newer
def test_a_backend_of_it_is_wrapped():
    run(2, wrapped, init=False)


def made_by_hand(destroyed):
    """Makes groups as vLLM and torchft do; the process leaves the last worlds at its end."""
    replace_gloo()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{os.environ['UNISONO_TEST_FOLDER']}/hand", ranks)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=20)
    backends = []
    for number, more in enumerate(
        [{"timeout": timedelta(seconds=20)}, {"timeout": 20.0}, {"options": options}, {}]
    ):
        backend = dist.ProcessGroupGloo(dist.PrefixStore(f"{number}", store), rank, ranks, **more)
        assert isinstance(backend, dist.ProcessGroupGloo) and type(backend) is Backend
        backend._set_sequence_number_for_group()
        group = dist.ProcessGroup(store, rank, ranks)
        group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        group._register_backend(CPU, dist.ProcessGroup.BackendType.GLOO, backend)
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        assert tensor.tolist() == [ranks] * 3
        # DDP's C++ casts a backend with the type of Gloo to Gloo's class.
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
        model(torch.ones(2, 3)).sum().backward()
        backends.append(backend)
    for backend in backends if destroyed else []:
        backend.shutdown()
    with pytest.raises(TypeError):
        dist.ProcessGroupGloo()


@newer
@pytest.mark.parametrize("destroyed", [True, False])
def test_groups_of_the_class_are_ours(destroyed):
    run(2, made_by_hand, destroyed, init=False)


def asks(value, program):
    env = {name: text for name, text in os.environ.items() if name != "UNISONO_AS_GLOO"}
    env.update(PYTHONPATH=str(SITE), **({} if value is None else {"UNISONO_AS_GLOO": value}))
    return subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=False
    )


SCRIPT = """
import sys, torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
import torch
print(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__, sorted(name for name in sys.modules if name == "unisono"))
dist.destroy_process_group()
"""


RANKS_OF_ONE_PROCESS = """
import threading, torch, torch.distributed as dist
from datetime import timedelta
store = dist.HashStore()
kept = []
def rank(number, world):
    prefix = dist.PrefixStore(f"{world}", store)
    group = dist.ProcessGroupGloo(prefix, number, 3, timedelta(seconds=20))
    tensor = torch.full((3,), 2.0)
    group.allreduce([tensor]).wait()
    kept.append((group, tensor.tolist()))
ranks = [threading.Thread(target=rank, args=(number, world)) for number in range(3) for world in range(2)]
for each in ranks:
    each.start()
for each in ranks:
    each.join()
print([type(group).__module__ + str(sums) for group, sums in kept])
"""


@newer
def test_a_process_ends_that_is_several_ranks_of_a_group():
    # The program shut none of the groups down.
    output = asks("1", RANKS_OF_ONE_PROCESS)
    assert output.returncode == 0 and output.stderr == "", output
    assert output.stdout == f"{['unisono.torch._groups[6.0, 6.0, 6.0]'] * 6}\n", output


@pytest.mark.parametrize("first", ["unisono.torch", "torch"])
def test_the_variable_replaces_gloo_in_scripts_that_do_not_know_it(first):
    output = asks("1", f"import {first}\n{SCRIPT}")
    assert output.returncode == 0 and output.stdout == "unisono.torch._groups ['unisono']\n", output


def test_without_it_nothing_changes():
    output = asks(None, SCRIPT)
    # Older versions of Gloo print their connections first.
    assert output.stdout.splitlines()[-1] == "torch.distributed.distributed_c10d []", output
    output = asks("0", SCRIPT)
    assert output.stdout.splitlines()[-1] == "torch.distributed.distributed_c10d ['unisono']", output


def test_a_wrong_value_is_told(monkeypatch):
    output = asks("maybe", SCRIPT)
    assert output.returncode != 0 and "UNISONO_AS_GLOO=maybe: wanted 1 or 0" in output.stderr, output
    for value in ["", "2", "1 0"]:
        monkeypatch.setenv("UNISONO_AS_GLOO", value)
        with pytest.raises(ValueError, match=f"^UNISONO_AS_GLOO={value}: wanted 1 or 0"):
            asked_for()
    for value, wanted in {"1": True, "yes": True, " on": True, "0": False, "off": False}.items():
        monkeypatch.setenv("UNISONO_AS_GLOO", value)
        assert asked_for() is wanted
