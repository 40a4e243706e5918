"""The program: ``python -m unisono`` works like the executable ``unisono``, also when it starts itself again."""

import pathlib
import re
import signal
import subprocess
import sys
import sysconfig
import time

import pytest
import unisono
from conftest import Run

PROGRAM = [sys.executable, "-m", "unisono"]


def test_version(python: Run) -> None:
    done = python("-m", "unisono", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"unisono {unisono.__version__}\n", "")


def test_wrong_arguments_end_with_status_2(python: Run) -> None:
    done = python("-m", "unisono", "bench", "--no-such-option")
    assert (done.returncode, done.stdout) == (2, "") and "Usage: unisono bench" in done.stderr


def test_ranks_are_started_and_their_status_is_passed_on(python: Run) -> None:
    done = python("-m", "unisono", "run", "-n", "3", "sh", "-c", "echo $RANK of $WORLD_SIZE")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (
        0,
        ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"],
    )
    done = python("-m", "unisono", "run", "-n", "2", "sh", "-c", "exit 3")
    assert done.returncode == 3 and "ended with status 3" in done.stderr
    done = python("-m", "unisono", "run", "-n", "2", "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 139


def test_ranks_in_python_have_the_usual_signals(python: Run) -> None:
    program = "import signal; print([signal.getsignal(s).name for s in (signal.SIGTERM, signal.SIGHUP)], "
    program += "signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    done = python("-m", "unisono", "run", "-n", "1", sys.executable, "-c", program)
    # The setting of nohup stays.
    hangup = signal.getsignal(signal.SIGHUP).name
    assert (done.stdout, done.stderr) == (f"[0] ['SIG_DFL', '{hangup}'] set()\n", "")


@pytest.mark.parametrize("provider", ["tcp", "shm"])
def test_bench_starts_itself_as_ranks(python: Run, provider: str) -> None:
    sizes = ["-b", "8", "-e", "512", "-f", "64"]
    done = python("-m", "unisono", "bench", "all_reduce", "--ranks", "2", "--provider", provider, *sizes)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [row[0] for row in rows] == ["8", "512"] and all(row[-1] == "0" for row in rows)


def test_doctor_tries_out_two_ranks(python: Run) -> None:
    done = python("-m", "unisono", "doctor")
    said = re.sub(r"\s+", " ", done.stdout)
    assert f"unisono {unisono.__version__} on Linux" in said and "ranks form a group over" in said, done
    assert done.stderr == ""


def test_interpreters_options_are_kept(python: Run) -> None:
    done = python("-X", "utf8", "-m", "unisono", "bench", "barrier", "--ranks", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(number: signal.Signals) -> None:
    command = [*PROGRAM, "run", "-n", "2", "sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ranks = [int(process.stdout.readline().split()[1]) for _ in range(2)]
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks)


def test_ctrl_c_ends_a_rank_that_waits_for_another(tmp_path: pathlib.Path) -> None:
    store = f"file://{tmp_path}"
    command = [
        "env",
        "RUST_LOG=info",
        "UNISONO_RANK=0",
        "UNISONO_WORLD_SIZE=2",
        f"UNISONO_STORE={store}",
        *PROGRAM,
    ]
    with subprocess.Popen([*command, "bench", "barrier"], stderr=subprocess.PIPE, text=True) as process:
        while not any(tmp_path.iterdir()):
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_reader_that_stops_ends_the_job_without_a_traceback() -> None:
    command = [*PROGRAM, "run", "-n", "1", "sh", "-c", "while :; do echo more; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "[0] more\n"
        process.stdout.close()
        assert process.wait(30) == 141
        assert "Traceback" not in process.stderr.read()


def test_console_script_is_the_program() -> None:
    script = pathlib.Path(sysconfig.get_path("scripts"), "unisono")
    if not script.exists():
        pytest.skip("the package is not installed, only importable")
    done = subprocess.run(
        [script, "bench", "barrier", "--ranks", "2"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "") and "barrier on 2 ranks" in done.stdout
