"""What is to be looked at again, a key at a time: the queue between watches and reconcilers.

A key waits once, however often it is added; while it is worked on, adding it means once more afterwards, so that two
workers never have the same key. A key whose work failed comes back after a pause that grows with each failure in a row.
All of the queues' starts are also held to a rate, so that a storm of changes is no storm of calls.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

import trio

from ate.errors import AteError
from ate.log import Logger

log = Logger("ate.controller")

_FAILED = "work on an object failed, trying again"

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Rules:
    """Seconds; `per_second` and `burst` bound the starts of all keys together."""

    first_pause: float = 0.05
    longest_pause: float = 60.0
    jitter: float = 0.2
    per_second: float = 20.0
    burst: int = 100


class WorkQueue(Generic[Key]):
    """`add` from anywhere in the trio thread; `run` works until cancelled."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]], rules: Rules = Rules()) -> None:
        """`work(key)` may return after how many seconds to look at that key again; an exception means try again."""
        self._work, self._rules = work, rules
        self._waiting: deque[Key] = deque()
        self._queued: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._later: dict[Key, float] = {}
        """key -> trio time at which it is added."""
        self._news = trio.Event()
        self._tokens, self._counted_at = float(rules.burst), 0.0

    def add(self, key: Key) -> None:
        """Has the key worked on soon, ahead of any pause it has."""
        self._later.pop(key, None)
        if key in self._working:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._waiting.append(key)
            self._news.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Has the key worked on in so many seconds, or sooner where that is known already."""
        due = trio.current_time() + seconds
        if key not in self._queued and due < self._later.get(key, due + 1):
            self._later[key] = due
            self._news.set()

    def forget(self, key: Key) -> None:
        """Its object is gone: drops its failures and what was put off."""
        self._failures.pop(key, None)
        self._later.pop(key, None)

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is worked on, or is put off."""
        return not (self._waiting or self._working or self._later)

    async def run(self, workers: int = 4) -> None:
        """Works on at most `workers` keys at once."""
        self._counted_at = trio.current_time()
        room = trio.Semaphore(workers)
        async with trio.open_nursery() as nursery:
            while True:
                await room.acquire()
                nursery.start_soon(self._one, await self._next(), room)

    async def _next(self) -> Key:
        while True:
            now = trio.current_time()
            for key in [key for key, due in self._later.items() if due <= now]:
                self.add(key)
            if self._waiting:
                await self._take_token()
                key = self._waiting.popleft()
                self._queued.discard(key)
                self._working.add(key)
                return key
            self._news = trio.Event()
            with trio.move_on_at(min(self._later.values(), default=float("inf"))):
                await self._news.wait()

    async def _take_token(self) -> None:
        while True:
            now = trio.current_time()
            self._tokens += (now - self._counted_at) * self._rules.per_second
            self._tokens, self._counted_at = min(self._tokens, float(self._rules.burst)), now
            if self._tokens >= 1:
                self._tokens -= 1
                return
            await trio.sleep((1 - self._tokens) / self._rules.per_second + 1e-6)

    async def _one(self, key: Key, room: trio.Semaphore) -> None:
        pause: float | None = None
        try:
            pause = await self._work(key)
            self._failures.pop(key, None)
        except AteError as error:
            pause = self._pause_of(key)
            log.warning(_FAILED, key=str(key), after=round(pause, 2), error=error.message)
        except Exception as error:  # one object's trouble may not leave all others unwatched
            pause = self._pause_of(key)
            log.error(_FAILED, exc=error, key=str(key), after=round(pause, 2))
        finally:
            self._working.discard(key)
            room.release()
        if key in self._again:
            self._again.discard(key)
            if pause is None or key not in self._failures:
                self.add(key)
                return
        if pause is not None:
            self.add_after(key, pause)

    def _pause_of(self, key: Key) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        pause = min(self._rules.first_pause * 2.0 ** min(failures - 1, 32), self._rules.longest_pause)
        return pause * random.uniform(1 - self._rules.jitter, 1 + self._rules.jitter)
