"""Growing pauses between tries of the same work, so that what cannot succeed yet is not tried in a tight loop."""

from __future__ import annotations

from collections.abc import Collection

import trio

FIRST, MOST = 1.0, 30.0
"""Seconds: the first pause after a failure, and the longest; each is twice the one before."""


class Pauses:
    """By key; in memory, as a restart may well try everything again at once."""

    def __init__(self) -> None:
        self._pauses: dict[str, tuple[float, float]] = {}
        """key -> (trio's time before which not to try, the pause that ends then)."""

    def over(self, key: str) -> bool:
        """Whether the key may be tried now."""
        return trio.current_time() >= self._pauses.get(key, (0.0, 0.0))[0]

    def failed(self, key: str) -> None:
        pause = min(max(2 * self._pauses.get(key, (0.0, 0.0))[1], FIRST), MOST)
        self._pauses[key] = (trio.current_time() + pause, pause)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forgets every key that is not waiting any more."""
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in keys}
