"""The parking lot: how long requests wait for a worker, how many may, and when the next try is due. Pure.

Requests for one actor share one place. A place keeps the time of its first request, so that when room appears the
longest waiting actor is tried first; a full lot turns new actors away at once instead of making all of them late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from grpclib.const import Status

from ate.errors import ACTOR_CRASHED, AteError, reason_of

RETRIED_ALWAYS = frozenset({Status.ABORTED})
RETRIED_WHILE_PARKED = frozenset({Status.RESOURCE_EXHAUSTED, Status.FAILED_PRECONDITION, Status.UNAVAILABLE})

WAITING_MOST = 1024
"""Requests that may wait for a resume under way when parking is off (the reference's circuit breaker)."""


@dataclass(frozen=True)
class ParkingRules:
    """The reference's defaults (section 5). Times in seconds; `most_requests` 0 turns parking off."""

    budget: float = 5.0
    most_requests: int = 1024
    retry_interval: float = 0.1
    retry_factor: float = 1.1
    retry_jitter: float = 0.1
    longest_wait: float = 60.0
    """Seconds one request waits for a resume that is under way (a cold boot with an image pull)."""

    def retried(self, error: AteError) -> bool:
        """Whether waiting can mend it. A crashed or deleted actor does not get better by waiting."""
        if reason_of(error) == ACTOR_CRASHED:
            return False
        return error.code in RETRIED_ALWAYS or (self.most_requests > 0 and error.code in RETRIED_WHILE_PARKED)

    def pause(self, attempt: int, rng: random.Random) -> float:
        """Seconds before try number `attempt` (from 1), with jitter so that flights do not march in step."""
        base = self.retry_interval * self.retry_factor ** (attempt - 1)
        return base * (1 + self.retry_jitter * (2 * rng.random() - 1))


@dataclass
class ParkingLot:
    """Counts the requests that wait. `enter` and `leave` are called in pairs."""

    rules: ParkingRules
    waiting: int = 0
    rejected: int = 0
    _served_after: list[float] = field(default_factory=list)

    def enter(self) -> bool:
        """False when the lot is full: answer 503 at once."""
        if self.waiting >= (self.rules.most_requests or WAITING_MOST):
            self.rejected += 1
            return False
        self.waiting += 1
        return True

    def leave(self, waited: float, *, served: bool) -> None:
        self.waiting -= 1
        if served:
            self._served_after = [*self._served_after[-63:], waited]

    def retry_after(self) -> float:
        """Seconds a client turned away should wait: what waiting lately took, longer the fuller the lot is."""
        typical = sorted(self._served_after)[len(self._served_after) // 2] if self._served_after else self.rules.budget
        return max(1.0, typical * (1 + self.waiting / max(self.rules.most_requests, 1)))
