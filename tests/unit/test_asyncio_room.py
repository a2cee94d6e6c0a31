"""Promises of the asyncio room: results, exceptions, context and cancellation cross between trio and asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest
import trio

from ate.asyncio_room import AsyncioRoom, open_asyncio_room
from ate.errors import Unavailable

name = contextvars.ContextVar("name", default="nobody")


async def test_a_coroutine_runs_on_uvloop_in_the_rooms_own_thread_and_its_result_returns():
    async def work(x: int) -> tuple[int, str, int]:
        await asyncio.sleep(0)
        return x + 1, type(asyncio.get_running_loop()).__module__, threading.get_ident()

    async with open_asyncio_room() as room:
        value, loop, thread = await room.run(work, 1)
    assert (value, loop) == (2, "uvloop")
    assert thread != threading.get_ident()


async def test_an_exception_arrives_as_itself():
    async def work() -> None:
        raise KeyError("x")

    async with open_asyncio_room() as room:
        with pytest.raises(KeyError):
            await room.run(work)


async def test_context_variables_are_copied_both_ways():
    async def in_trio() -> str:
        await trio.lowlevel.checkpoint()
        return name.get()

    async def work(room: AsyncioRoom) -> tuple[str, str]:
        before = name.get()
        name.set("inner")
        return before, await room.in_trio(in_trio)

    name.set("outer")
    async with open_asyncio_room() as room:
        assert await room.run(work, room) == ("outer", "inner")
    assert name.get() == "outer"


async def test_trio_cancellation_cancels_the_task_and_waits_for_its_cleanup():
    seen: list[str] = []

    async def work(started: trio.Event, token: trio.lowlevel.TrioToken) -> None:
        token.run_sync_soon(started.set)
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            seen.append("cleaned")

    async with open_asyncio_room() as room:
        started = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.run, work, started, room.trio_token)
            await started.wait()
            nursery.cancel_scope.cancel()
        assert seen == ["cleaned"]


async def test_a_result_that_came_in_spite_of_the_cancellation_is_not_lost():
    async def work() -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    async with open_asyncio_room() as room:
        with trio.move_on_after(0.05):
            assert await room.run(work) == "done all the same"


async def test_asyncio_cancellation_cancels_the_trio_side_and_waits_for_it():
    seen: list[str] = []

    async def in_trio() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.05)
            seen.append("cleaned")

    async def work(room: AsyncioRoom) -> str:
        task = asyncio.create_task(room.in_trio(in_trio))
        await asyncio.sleep(0.05)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return ",".join(seen)
        return "not cancelled"

    async with open_asyncio_room() as room:
        assert await room.run(work, room) == "cleaned"


async def test_an_exception_in_trio_reaches_asyncio():
    async def in_trio() -> None:
        await trio.lowlevel.checkpoint()
        raise LookupError("no route")

    async def work(room: AsyncioRoom) -> None:
        await room.in_trio(in_trio)

    async with open_asyncio_room() as room:
        with pytest.raises(LookupError, match="no route"):
            await room.run(work, room)
        assert await room.run(asyncio.sleep, 0, "still open") == "still open"


async def test_closing_cancels_what_runs_and_tells_its_callers():
    errors: list[str] = []

    async def caller(room: AsyncioRoom) -> None:
        try:
            await room.run(asyncio.sleep, 3600)
        except Unavailable as error:
            errors.append(error.message)

    async def waits_in_trio(room: AsyncioRoom) -> None:
        await room.in_trio(trio.sleep_forever)

    async def second(room: AsyncioRoom) -> None:
        try:
            await room.run(waits_in_trio, room)
        except Unavailable as error:
            errors.append(error.message)

    async with trio.open_nursery() as nursery:
        async with open_asyncio_room() as room:
            nursery.start_soon(caller, room)
            nursery.start_soon(second, room)
            await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(Unavailable):
            await room.run(asyncio.sleep, 0)
        with pytest.raises(Unavailable):
            room.call_soon(print)
    assert len(errors) == 2
    assert not [thread for thread in threading.enumerate() if thread.name == "ate-asyncio" and thread.is_alive()]


async def test_closing_does_not_wait_for_ever_for_a_task_that_ignores_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ate.asyncio_room._CLOSE_SECONDS", 0.1)
    errors: list[str] = []

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    async def caller(room: AsyncioRoom) -> None:
        try:
            await room.run(deaf)
        except Unavailable as error:
            errors.append(error.message)

    async with trio.open_nursery() as nursery:
        async with open_asyncio_room() as room:
            nursery.start_soon(caller, room)
            await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(errors) == 1


async def test_call_soon_runs_a_plain_function_in_the_loops_thread():
    async with open_asyncio_room() as room:
        done = trio.Event()
        where: list[int] = []

        def work() -> None:
            where.append(threading.get_ident())
            room.trio_token.run_sync_soon(done.set)

        room.call_soon(work)
        await done.wait()
        assert where != [threading.get_ident()]
