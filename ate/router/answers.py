"""What the router itself answers: the error table of the reference (section 5), and nothing that leaks. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from grpclib.const import Status

from ate.errors import AteError, http_status
from ate.names import Ref

INVALID_REFERENCE: Final = "invalid actor reference"
AT_CAPACITY: Final = "router at capacity"


@dataclass(frozen=True)
class Answer:
    """A text/plain reply; `retry_after` in seconds, 0 for none."""

    status: int
    body: str
    retry_after: int = 0

    @property
    def headers(self) -> dict[str, str]:
        headers = {"Content-Type": "text/plain; charset=utf-8"}
        if self.retry_after:
            headers["Retry-After"] = str(self.retry_after)
        return headers


def parse_target(values: list[str]) -> Ref | Answer:
    """The actor that `ate-target-actor` selects. Exactly one header, `<atespace>/<actor>`; else 404."""
    if len(values) != 1:
        return Answer(404, INVALID_REFERENCE)
    try:
        return Ref.parse(values[0].strip(" \t"))
    except ValueError:
        return Answer(404, INVALID_REFERENCE)


def for_error(ref: Ref, error: AteError, *, retry_after: float = 0.0) -> Answer:
    """The answer for a failed resume. `retry_after`: seconds after which a retry makes sense, for a 503."""
    status = http_status(error.code)
    if error.code is Status.NOT_FOUND:
        return Answer(404, f"actor {ref} not found")
    if error.code is Status.DEADLINE_EXCEEDED:
        return Answer(504, f"actor {ref} request timed out")
    if error.code is Status.PERMISSION_DENIED:
        return Answer(403, f"actor {ref}: permission denied")
    if error.code is Status.UNAUTHENTICATED:
        return Answer(401, f"actor {ref}: unauthenticated")
    wait = max(1, math.ceil(retry_after)) if status == 503 else 0
    return Answer(status, f"actor {ref} unavailable: {error.message}", wait)


def unreachable(ref: Ref, why: str) -> Answer:
    """The worker did not take or finish the request, and repeating it could run it twice."""
    return Answer(503, f"actor {ref} unavailable: {why}", 1)
