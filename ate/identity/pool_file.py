"""A pool's file, read again whenever it changed, so that a rotation needs no restart.

A file that cannot be read (half of an edit, gone for a moment) leaves the last good pool in force; that is logged once
for each content.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ate.errors import FailedPrecondition
from ate.log import Logger

log = Logger("ate.identity")

P = TypeVar("P")

LOOK_SECONDS = 1.0
"""A change is noticed within this."""


class PoolFile(Generic[P]):
    """`parse` makes a pool of the file's text, or raises ValueError, KeyError or TypeError."""

    def __init__(
        self,
        path: Path,
        parse: Callable[[str], P],
        *,
        what: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._parse, self._what, self._clock = parse, what, clock
        self._pool: P | None = None
        self._seen: tuple[int, int, int] | None = None
        self._looked = float("-inf")

    def current(self) -> P:
        """The newest good pool. FailedPrecondition naming the file while there has been none."""
        now = self._clock()
        if self._pool is not None and now < self._looked + LOOK_SECONDS:
            return self._pool
        self._looked = now
        try:
            status = self.path.stat()
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if seen != self._seen or self._pool is None:
                self._seen = seen
                self._pool = self._parse(self.path.read_text())
        except (OSError, ValueError, KeyError, TypeError) as error:
            told = f"the {self._what} {self.path} cannot be used: {error}"
            if self._pool is None:
                raise FailedPrecondition(told) from None
            log.warning("a pool file cannot be read again, the last good one stays in force", reason=told)
        return self._pool
