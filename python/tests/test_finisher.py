"""The threads that run Python code for the library, without the library."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from unisono import _finisher
from unisono._finisher import IN_ORDER, NESTED, SOON

# Far longer than any of the calls takes.
LONG = 20


class Calls:
    """Calls, in the form of the native module."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue = queue.SimpleQueue()

    def __iter__(self) -> Calls:
        return self

    def __next__(self):
        note = self.queue.get()
        if note is None:
            raise StopIteration
        return note

    def leave(self, kind, call, *arguments) -> None:
        self.queue.put((call, arguments, kind))


@pytest.fixture
def calls(monkeypatch):
    calls = Calls()
    monkeypatch.setattr(_finisher._native, "end_calls", lambda: calls.queue.put(None))
    threads = _finisher._Threads(calls)
    monkeypatch.setattr(_finisher, "_threads", threads)
    threads.begin()
    yield calls
    threads.end()
    assert not [thread for thread in threads._all if thread.is_alive()]


def test_calls_of_a_kind_are_made_in_their_order(calls):
    made = {SOON: [], IN_ORDER: []}
    for number in range(200):
        for kind, list_of in made.items():
            calls.leave(kind, list_of.append, number)
    ended = threading.Event()
    calls.leave(IN_ORDER, ended.set)
    assert ended.wait(LONG)
    soon = threading.Event()
    calls.leave(SOON, soon.set)
    assert soon.wait(LONG)
    assert made == {SOON: list(range(200)), IN_ORDER: list(range(200))}


def test_a_callback_may_wait_for_what_it_has_begun(calls):
    made = []
    all_made = threading.Event()

    def outer(number):
        inner = [threading.Event() for _ in range(3)]
        for event in inner:
            call, kind = _finisher.callback(event.set)
            assert kind == NESTED
            calls.leave(kind, call)
        # Several of these last longer than the time after which another thread takes over from a callback that waits.
        time.sleep(0.4 * _finisher._LATE)
        assert all(event.wait(LONG) for event in inner)
        made.append(number)

    assert _finisher.callback(print) == (print, IN_ORDER)
    for number in range(5):
        calls.leave(IN_ORDER, outer, number)
    calls.leave(IN_ORDER, all_made.set)
    assert all_made.wait(LONG)
    assert made == list(range(5))


def test_callbacks_of_callbacks_may_wait_however_deep(calls):
    def deep(left, above):
        if left:
            below = threading.Event()
            call, kind = _finisher.callback(lambda: deep(left - 1, below))
            assert kind == NESTED
            calls.leave(kind, call)
            assert below.wait(LONG)
        above.set()

    ended = threading.Event()
    calls.leave(IN_ORDER, deep, 20, ended)
    assert ended.wait(LONG)


def test_a_callback_may_wait_for_one_behind_it(calls, monkeypatch):
    monkeypatch.setattr(_finisher, "_LATE", 0.1)
    events = [threading.Event() for _ in range(4)]
    made = []

    def waits(number):
        assert events[number].wait(LONG)
        made.append(number)

    ended = threading.Event()
    for number in range(4):
        calls.leave(IN_ORDER, waits, number)
    for event in reversed(events):
        calls.leave(IN_ORDER, event.set)
    calls.leave(IN_ORDER, ended.set)
    assert ended.wait(LONG)
    until = time.monotonic() + LONG
    while len(made) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(made) == list(range(4))


def test_what_a_call_raises_ends_no_thread(calls, monkeypatch):
    seen = []
    monkeypatch.setattr(_finisher._native, "unraisable", lambda error, call: seen.append(error))
    ended = threading.Event()
    for kind in (SOON, IN_ORDER, NESTED):
        calls.leave(kind, lambda: 1 / 0)
    calls.leave(SOON, lambda: None)
    calls.leave(IN_ORDER, ended.set)
    assert ended.wait(LONG)
    until = time.monotonic() + LONG
    while len(seen) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert [type(error) for error in seen] == [ZeroDivisionError] * 3
