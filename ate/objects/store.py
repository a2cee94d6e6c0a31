"""The interface of an object store, and how its blocking calls run in threads that a cancellation stops soon.

Keys are relative paths with `/`. A put is atomic and durable when it returns; data flows in chunks, so memory stays
bounded whatever the size of an object.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import outcome
import trio

T = TypeVar("T")

_THREADS = trio.lowlevel.RunVar[trio.CapacityLimiter]("ate_object_threads")
_CONCURRENT = 32


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`size` in bytes."""

    key: str
    size: int


class ObjectStore(Protocol):
    """What `file.FileStore` and `cloud.CloudStore` can do. All raise the errors named in the package."""

    @abc.abstractmethod
    async def put(self, key: str, chunks: Iterable[bytes]) -> None:
        """Stores an object whole or not at all, replacing what was there. `chunks` is consumed in another thread."""

    @abc.abstractmethod
    async def get(self, key: str, sink: Callable[[bytes], object]) -> None:
        """Hands the object to `sink` chunk by chunk, in another thread."""

    @abc.abstractmethod
    async def list(self, *, partial: bool = False) -> list[ObjectInfo]:
        """Every object, in order of keys; with `partial` also what interrupted puts left. Nothing there is empty."""

    @abc.abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Removes objects; those that are gone already are no error."""

    @abc.abstractmethod
    async def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store."""

    @abc.abstractmethod
    def uri(self, key: str) -> str:
        """The full name of an object, for messages."""


class Stopped(Exception):
    """Raised inside a worker thread whose caller was cancelled."""


class StopSign:
    """Tells a worker thread that its caller was cancelled."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        if self._event.is_set():
            raise Stopped

    def guard(self, chunks: Iterable[T]) -> Iterator[T]:
        """The same chunks, until the sign is set."""
        for chunk in chunks:
            self.check()
            yield chunk


async def in_thread(work: Callable[[StopSign], T]) -> T:
    """Runs `work` in a thread. Cancellation sets the sign and waits until the thread has ended."""
    try:
        limiter = _THREADS.get()
    except LookupError:
        limiter = trio.CapacityLimiter(_CONCURRENT)
        _THREADS.set(limiter)
    sign = StopSign()
    result: outcome.Outcome[T]

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            sign.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        # Caught here and raised outside, because a nursery would wrap it in a group.
        try:
            result = outcome.Value(await trio.to_thread.run_sync(work, sign, limiter=limiter))
        except Exception as error:
            result = outcome.Error(error)
        nursery.cancel_scope.cancel()
    if isinstance(result, outcome.Error) and isinstance(result.error, Stopped):
        # Only a cancelled caller sets the sign before the work has ended.
        await trio.lowlevel.checkpoint_if_cancelled()
    return result.unwrap()


async def side_by_side(jobs: Iterable[Callable[[], Awaitable[None]]], *, limit: int = 8) -> None:
    """Runs all jobs, `limit` at a time. The first failure cancels the others and is raised as it is, in no group."""
    limiter = trio.CapacityLimiter(limit)
    failures: list[Exception] = []

    async def run(job: Callable[[], Awaitable[None]]) -> None:
        async with limiter:
            try:
                await job()
            except Exception as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(run, job)
    if failures:
        raise failures[0]
