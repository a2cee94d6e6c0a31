"""Promises of the controller's work queue."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from ate.controller.kubernetes.work_queue import Rules, WorkQueue


class Recorder:
    """Work that takes a second; notes what overlapped."""

    def __init__(self) -> None:
        self.began: list[tuple[float, str]] = []
        self.running: Counter[str] = Counter()
        self.most = 0
        self.failing: set[str] = set()
        self.seconds = 1.0
        self.again: dict[str, float] = {}

    async def __call__(self, key: str) -> float | None:
        self.began.append((trio.current_time(), key))
        self.running[key] += 1
        assert self.running[key] == 1, "two workers have the same key"
        self.most = max(self.most, self.running.total())
        try:
            await trio.sleep(self.seconds)
            if key in self.failing:
                raise RuntimeError("no")
        finally:
            self.running[key] -= 1
        return self.again.pop(key, None)

    def times(self, key: str) -> list[float]:
        return [round(at - self.began[0][0], 3) for at, name in self.began if name == key]


@pytest.fixture
def work() -> Recorder:
    return Recorder()


async def test_a_key_waits_once_and_is_never_worked_on_twice_at_the_same_time(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    queue = WorkQueue(work)
    for _ in range(5):
        queue.add("a")
    nursery.start_soon(queue.run)
    await trio.sleep(0.5)
    for _ in range(5):
        queue.add("a")
    await trio.sleep(10)
    assert work.times("a") == [0, 1]
    assert queue.idle


async def test_no_more_keys_at_once_than_workers(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    queue = WorkQueue(work)
    for number in range(20):
        queue.add(str(number))
    nursery.start_soon(queue.run, 3)
    await trio.sleep(30)
    assert work.most == 3
    assert len(work.began) == 20


async def test_a_failing_key_comes_back_ever_later_and_holds_up_no_other(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    work.seconds = 0.0
    work.failing = {"bad"}
    queue = WorkQueue(work, Rules(first_pause=1, longest_pause=8, jitter=0))
    queue.add("bad")
    queue.add("good")
    nursery.start_soon(queue.run, 1)
    await trio.sleep(40)
    assert work.times("good") == [0]
    assert work.times("bad") == [0, 1, 3, 7, 15, 23, 31, 39]
    work.failing.clear()
    await trio.sleep(10)
    assert queue.idle
    queue.add("bad")
    work.failing = {"bad"}
    before = len(work.began)
    await trio.sleep(1.5)
    assert len(work.began) == before + 2, "a success did not reset the pause"


async def test_a_change_of_a_failing_key_does_not_shorten_its_pause_while_it_is_worked_on(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    work.failing = {"bad"}
    queue = WorkQueue(work, Rules(first_pause=5, longest_pause=5, jitter=0))
    queue.add("bad")
    nursery.start_soon(queue.run)
    await trio.sleep(0.5)
    queue.add("bad")
    await trio.sleep(7)
    assert work.times("bad") == [0, 6]


async def test_a_change_comes_ahead_of_a_pause(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    work.again = {"a": 100.0}
    queue = WorkQueue(work)
    queue.add("a")
    nursery.start_soon(queue.run)
    await trio.sleep(10)
    queue.add("a")
    await trio.sleep(200)
    assert work.times("a") == [0, 10]


async def test_work_says_when_to_look_again_and_a_forgotten_key_does_not_come_back(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    work.again = {"a": 5.0, "b": 5.0}
    queue = WorkQueue(work)
    queue.add("a")
    queue.add("b")
    nursery.start_soon(queue.run)
    await trio.sleep(2)
    queue.forget("b")
    await trio.sleep(20)
    assert work.times("a") == [0, 6]
    assert work.times("b") == [0]


async def test_a_storm_of_keys_is_held_to_the_rate(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    work.seconds = 0.0
    queue = WorkQueue(work, Rules(per_second=10, burst=5))
    for number in range(105):
        queue.add(str(number))
    nursery.start_soon(queue.run, 50)
    await trio.sleep(5)
    assert 50 <= len(work.began) <= 56
    await trio.sleep(6)
    assert len(work.began) == 105


async def test_a_fault_in_the_work_is_told_with_where_it_is(
    work: Recorder, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    work.failing = {"bad"}
    queue = WorkQueue(work)
    queue.add("bad")
    nursery.start_soon(queue.run)
    await trio.sleep(1.01)
    (record,) = [record for record in caplog.records if "failed" in record.getMessage()]
    assert record.levelname == "ERROR" and record.exc_info is not None
