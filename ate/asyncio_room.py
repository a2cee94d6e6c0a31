"""The one place where asyncio runs: a thread with a uvloop loop, opened by the role that needs aiohttp.

Trio code enters by `room.run`, asyncio code reaches back by `room.in_trio`; cancellation crosses in both directions and
waits for the other side to end. The router's data plane and the node's registry client live here.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

import outcome
import trio
import uvloop

from ate.errors import Unavailable
from ate.log import Logger

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

log = Logger("ate.asyncio_room")

_CLOSE_SECONDS = 10.0


class AsyncioRoom:
    """A running loop. `loop` is the loop, `trio_token` the trio run that owns the room."""

    def __init__(self, loop: asyncio.AbstractEventLoop, token: trio.lowlevel.TrioToken, nursery: trio.Nursery) -> None:
        self.loop = loop
        self.trio_token = token
        self._nursery = nursery
        self._closed = False
        self._waiting: set[trio.lowlevel.Task] = set()

    def call_soon(self, fn: Callable[[*Ts], object], *args: *Ts) -> None:
        """Calls a plain function in the loop's thread; from any thread. Unavailable once the room is closed."""
        try:
            self.loop.call_soon_threadsafe(fn, *args)
        except RuntimeError as error:
            raise Unavailable("the asyncio room is closed") from error

    async def run(self, fn: Callable[[*Ts], Coroutine[Any, Any, T]], *args: *Ts) -> T:
        """Runs an asyncio coroutine function in the room, from trio; its result or its exception.

        Cancelling this cancels the asyncio task and waits until that has ended; a task that ends with a result all
        the same has its result returned. Unavailable when the room closes meanwhile.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise Unavailable("the asyncio room is closed")
        caller = trio.lowlevel.current_task()
        context = contextvars.copy_context()
        raise_cancel: Callable[[], Any] | None = None
        task: asyncio.Task[T] | None = None

        def start() -> None:  # the three below run in the loop's thread
            nonlocal task
            task = self.loop.create_task(fn(*args), context=context)
            task.add_done_callback(finish)

        def finish(done: asyncio.Task[T]) -> None:
            result: outcome.Outcome[T]
            if done.cancelled():
                result = outcome.Error(asyncio.CancelledError())
            elif (error := done.exception()) is not None:
                result = outcome.Error(error)
            else:
                result = outcome.Value(done.result())
            self.trio_token.run_sync_soon(self._wake, caller, result)

        def cancel() -> None:
            assert task is not None  # `start` was queued before
            task.cancel()

        def abort(how: Callable[[], Any]) -> trio.lowlevel.Abort:
            nonlocal raise_cancel
            raise_cancel = how
            # A closed loop has ended every task, so the reschedule is on its way already.
            with contextlib.suppress(Unavailable):
                self.call_soon(cancel)
            return trio.lowlevel.Abort.FAILED

        self.call_soon(start)
        self._waiting.add(caller)
        try:
            value: T = await trio.lowlevel.wait_task_rescheduled(abort)
            return value
        except asyncio.CancelledError:
            if raise_cancel is not None:
                raise_cancel()
            raise Unavailable("the asyncio room was closed, or the work in it cancelled itself") from None

    def _wake(self, caller: trio.lowlevel.Task, result: outcome.Outcome[Any]) -> None:
        self._waiting.discard(caller)
        trio.lowlevel.reschedule(caller, result)

    async def in_trio(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Runs a trio async function in a nursery of the room, from asyncio in the room; its result or exception.

        Cancelling this cancels the trio side and waits until that has ended.
        """
        future: asyncio.Future[T] = self.loop.create_future()
        scope = trio.CancelScope()
        context = contextvars.copy_context()

        def settle(result: outcome.Outcome[T] | None) -> None:
            if future.done():
                return
            if result is None:
                future.cancel()
            elif isinstance(result, outcome.Error):
                future.set_exception(result.error)
            else:
                future.set_result(result.unwrap())

        async def work() -> None:
            result: outcome.Outcome[T] | None = None
            try:
                with scope:
                    try:
                        result = outcome.Value(await fn(*args))
                    except Exception as error:
                        result = outcome.Error(error)
            finally:
                self.loop.call_soon_threadsafe(settle, result)

        def start() -> None:
            # Refused once the room's nursery has closed; the loop ends only after the nursery, so settling works.
            try:
                context.run(self._nursery.start_soon, work)
            except RuntimeError:
                self.loop.call_soon_threadsafe(settle, outcome.Error(Unavailable("the asyncio room is closed")))

        self.trio_token.run_sync_soon(start)
        cancelled = False
        while not future.done():
            try:
                # Not the future itself: cancelling it would lose the moment at which the trio side has ended.
                await asyncio.wait([future])
            except asyncio.CancelledError:
                cancelled = True
                self.trio_token.run_sync_soon(scope.cancel)
        if cancelled:
            if not future.cancelled():
                future.exception()  # seen, so that it is not reported as lost
            raise asyncio.CancelledError
        return future.result()

    async def _serve(self, stop: asyncio.Event) -> None:
        await stop.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
            for left in stuck:
                log.error("an asyncio task did not end when its room closed", task=repr(left))


@contextlib.asynccontextmanager
async def open_asyncio_room() -> AsyncIterator[AsyncioRoom]:
    """A room for the length of the block. At its end everything that still runs in it is cancelled and waited for."""
    loop = uvloop.new_event_loop()
    stop = asyncio.Event()
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()

    async with trio.open_nursery() as nursery:
        room = AsyncioRoom(loop, token, nursery)

        def thread() -> None:
            try:
                asyncio.set_event_loop(loop)
                loop.run_until_complete(room._serve(stop))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                asyncio.set_event_loop(None)
                loop.close()
                token.run_sync_soon(ended.set)

        worker = threading.Thread(target=thread, name="ate-asyncio", daemon=True)
        worker.start()
        try:
            yield room
        finally:
            room._closed = True
            with trio.CancelScope(shield=True):
                loop.call_soon_threadsafe(stop.set)
                await ended.wait()
                worker.join()  # it has nothing left to do
            for caller in list(room._waiting):  # of tasks that did not end when they were told to
                room._wake(caller, outcome.Error(Unavailable("the asyncio room was closed")))
            nursery.cancel_scope.cancel()
