"""Processes that can be killed at any await, frozen, and started again, and what ties every effect to one of them.

A killed process is cancelled, and whatever its clean-up code still tries to do to the world outside (the store, the
network, files, objects, sandboxes) raises `Killed`: as far as others can tell it stopped at that instruction.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import trio

current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("sim_process", default=None)


class Killed(BaseException):
    """Raised where a dead process would have acted on the world."""


class Process:
    """One incarnation. `run` is its life; `kill` ends it from outside, at whatever await it is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.ended = trio.Event()
        self.nursery: trio.Nursery | None = None
        self.steps = 0
        self.kill_at: int | None = None
        self._scope = trio.CancelScope()
        self._frozen_until = 0.0
        self._at_death: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}{'' if self.alive else ' dead'}>"

    async def run(
        self, main: Callable[[], Awaitable[None]], *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Runs `main` until it ends or is killed. An exception that nobody killed it with is raised: it is a bug."""
        current.set(self)
        try:
            with self._scope:
                async with trio.open_nursery() as self.nursery:
                    task_status.started()
                    await main()
                    self.nursery.cancel_scope.cancel()
        except BaseException:
            if self.alive:
                raise  # nobody killed it: a bug ended it
        finally:
            self.die()
            self.ended.set()

    def kill(self) -> None:
        self.die()
        self._scope.cancel()

    def die(self) -> None:
        """From here on nothing of it reaches the world."""
        if self.alive:
            self.alive = False
            for action in reversed(self._at_death):
                action()

    def at_death(self, action: Callable[[], None]) -> None:
        self._at_death.append(action)

    def freeze(self, seconds: float) -> None:
        """Nothing it does reaches the world for so long; then it goes on as if no time had passed."""
        self._frozen_until = trio.current_time() + seconds

    def check(self) -> None:
        if not self.alive:
            raise Killed(self.name)

    async def gate(self) -> None:
        """Passed before and after every effect."""
        self.check()
        while trio.current_time() < self._frozen_until:
            await trio.sleep_until(self._frozen_until)
        self.check()

    def start_soon(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """A task of this process, whoever asks for it."""
        assert self.nursery is not None

        async def task() -> None:
            current.set(self)
            try:
                await work(*args)
            except BaseException:
                if self.alive:
                    raise

        if self.alive:
            self.nursery.start_soon(task)


async def gate() -> None:
    """The gate of the process whose task this is; open for tasks of the world itself."""
    process = current.get()
    if process is not None:
        await process.gate()


class StepCounter(trio.abc.Instrument):
    """Counts the steps (stretches between two awaits) of every process, and kills one at the step it was told."""

    def __init__(self) -> None:
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        process = task.context.get(current)
        if process is not None and process.alive:
            process.steps += 1
            if process.kill_at is not None and process.steps >= process.kill_at:
                process.kill_at = None
                process.kill()
