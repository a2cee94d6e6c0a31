"""Promises of the router's pure parts: what it answers, and how long requests wait."""

from __future__ import annotations

import random

import pytest

from ate.errors import (
    ACTOR_CRASHED,
    Aborted,
    AteError,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    with_reason,
)
from ate.names import Ref
from ate.router import answers
from ate.router.parking import ParkingLot, ParkingRules

REF = Ref("demo", "a")


@pytest.mark.parametrize("values", [[], [""], ["a"], ["a/b/c"], ["A/b"], ["a/"], ["/b"], ["a/b", "a/c"]])
def test_a_missing_or_malformed_target_is_404(values: list[str]) -> None:
    answer = answers.parse_target(values)
    assert isinstance(answer, answers.Answer) and (answer.status, answer.body) == (404, "invalid actor reference")


def test_a_target_is_an_atespace_and_a_name() -> None:
    assert answers.parse_target([" demo/a "]) == REF


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("x"), 404),
        (FailedPrecondition("x"), 503),
        (Aborted("x"), 503),
        (ResourceExhausted("x"), 503),
        (Unavailable("x"), 503),
        (DeadlineExceeded("x"), 504),
        (PermissionDenied("x"), 403),
        (Unauthenticated("x"), 401),
        (Internal("x"), 500),
    ],
)
def test_errors_become_the_statuses_of_the_reference(error: AteError, status: int) -> None:
    answer = answers.for_error(REF, error, retry_after=2.3)
    assert answer.status == status and "demo/a" in answer.body
    assert ("Retry-After" in answer.headers) == (status == 503)
    if status == 503:
        assert answer.headers["Retry-After"] == "3"


def test_waiting_is_for_errors_that_waiting_can_mend() -> None:
    rules = ParkingRules()
    assert all(
        rules.retried(e) for e in (Aborted("x"), ResourceExhausted("x"), Unavailable("x"), FailedPrecondition("x"))
    )
    assert not rules.retried(NotFound("x")) and not rules.retried(with_reason(FailedPrecondition("x"), ACTOR_CRASHED))
    off = ParkingRules(most_requests=0)
    assert off.retried(Aborted("x")) and not off.retried(ResourceExhausted("x"))


def test_pauses_grow_and_stay_within_their_jitter() -> None:
    rules, rng = ParkingRules(), random.Random(7)
    for attempt in range(1, 30):
        base = rules.retry_interval * rules.retry_factor ** (attempt - 1)
        assert 0.9 * base <= rules.pause(attempt, rng) <= 1.1 * base


def test_a_full_lot_turns_away_and_says_when_to_come_back() -> None:
    lot = ParkingLot(ParkingRules(most_requests=2))
    assert lot.enter() and lot.enter() and not lot.enter()
    assert lot.rejected == 1 and lot.retry_after() >= 1
    lot.leave(4.0, served=True)
    assert lot.enter() and lot.retry_after() > 4.0
