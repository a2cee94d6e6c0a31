"""Promises of a worker's operations: one at a time, never twice, and never ended by a caller that left."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ate.errors import Aborted, FailedPrecondition, Internal
from ate.node.operations import Operations


class Work:
    def __init__(self) -> None:
        self.started = 0
        self.go = trio.Event()

    async def __call__(self) -> str:
        self.started += 1
        await self.go.wait()
        return "result"


async def test_an_operation_goes_on_when_its_caller_is_cancelled_and_its_result_is_kept() -> None:
    async with trio.open_nursery() as nursery:
        operations, work = Operations(nursery), Work()
        with trio.CancelScope() as scope:
            nursery.start_soon(wait_all_tasks_blocked)
            scope.deadline = trio.current_time() + 0.01
            await operations.run("Run", "a", b"1", "id", work)
        work.go.set()
        assert await operations.run("Run", "a", b"1", "id", work) == "result"
        assert await operations.run("Run", "a", b"other bytes", "id", work) == "result"
        assert work.started == 1


async def test_equal_requests_at_once_are_one_operation_and_different_ones_take_turns() -> None:
    async with trio.open_nursery() as nursery:
        operations, first, second = Operations(nursery), Work(), Work()
        async with trio.open_nursery() as callers:
            callers.start_soon(operations.run, "Run", "a", b"1", "", first)
            callers.start_soon(operations.run, "Run", "a", b"1", "", first)
            await wait_all_tasks_blocked()
            callers.start_soon(operations.run, "Checkpoint", "a", b"2", "", second)
            await wait_all_tasks_blocked()
            assert (first.started, second.started) == (1, 0)
            first.go.set()
            await wait_all_tasks_blocked()
            assert second.started == 1
            second.go.set()


async def test_an_id_used_for_something_else_is_refused() -> None:
    async with trio.open_nursery() as nursery:
        operations, work = Operations(nursery), Work()
        work.go.set()
        await operations.run("Run", "a", b"", "id", work)
        with pytest.raises(FailedPrecondition, match="id is Run of a"):
            await operations.run("Run", "b", b"", "id", work)


async def test_what_failed_is_tried_again_when_it_is_asked_for_again() -> None:
    tries = []

    async def fails() -> None:
        tries.append(1)
        raise ValueError("odd")

    async with trio.open_nursery() as nursery:
        operations = Operations(nursery)
        for _ in range(2):
            with pytest.raises(Internal, match="odd"):
                await operations.run("Run", "a", b"", "id", fails)
    assert len(tries) == 2


async def test_a_stopped_operation_tells_its_callers() -> None:
    async with trio.open_nursery() as nursery:
        operations, work = Operations(nursery), Work()

        async def call() -> None:
            with pytest.raises(Aborted, match="was stopped"):
                await operations.run("Run", "a", b"", "", work)

        async with trio.open_nursery() as callers:
            callers.start_soon(call)
            await wait_all_tasks_blocked()
            operations.cancel(frozenset({"Run"}), "another")
            operations.cancel(frozenset({"Run"}), "a")
