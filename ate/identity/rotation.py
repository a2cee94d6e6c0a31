"""When an authority of a pool signs and until when it is trusted: a rotation is one edit, and time does the rest.

`rotate` adds an authority that is trusted (published) at once, signs after an overlap in which everybody learns of it,
and gives the ones before it an end, once the last they signed is over. Readers of the reference's format ignore the two
fields `SignsFrom` and `TrustedUntil` (Unix seconds) and go on with the first entry until it is taken away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from ate.errors import FailedPrecondition
from ate.files import write_whole

A = TypeVar("A")

OVERLAP: Final = timedelta(minutes=10)
"""From publishing to signing. Our roles look every ten seconds; parties that cache our keys may need more."""
SLACK: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Term:
    """Unix seconds; `trusted_until` None: for ever."""

    signs_from: float = 0.0
    trusted_until: float | None = None


def term_of(entry: Mapping[str, Any]) -> Term:
    """The term of a pool's entry. ValueError when it is none."""
    until = entry.get("TrustedUntil")
    return Term(float(entry.get("SignsFrom", 0.0)), None if until is None else float(until))


def in_force(authorities: Sequence[tuple[Term, A]], now: float) -> tuple[A, ...]:
    """Those trusted at `now`, the signing one first: of those that sign already the latest, else the first listed."""
    trusted = [(term, a) for term, a in authorities if term.trusted_until is None or now < term.trusted_until]
    if not trusted:
        return ()
    signing = max(trusted, key=lambda each: each[0].signs_from if each[0].signs_from <= now else -1.0)
    return (signing[1], *(a for term, a in trusted if a is not signing[1]))


def rotate(
    path: Path,
    list_name: str,
    make: Callable[[str], Mapping[str, Any]],
    *,
    longest: timedelta,
    overlap: timedelta = OVERLAP,
    now: Callable[[], float] = time.time,
) -> tuple[str, float, float]:
    """Adds an authority made by `make(id)` to the pool file: (its id, when it signs, when the others end).

    `longest` is the life of what the pool signs. Entries whose end is over are taken out. FailedPrecondition when the
    file is unusable, or a rotation is under way.
    """
    at = now()
    try:
        document = json.loads(path.read_text())
        entries = [e for e in document[list_name] if (until := term_of(e).trusted_until) is None or at < until]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FailedPrecondition(f"the pool {path} cannot be rotated: {error}")
    coming = max((term_of(entry).signs_from for entry in entries), default=0.0)
    if coming > at:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(coming))
        raise FailedPrecondition(f"a rotation of {path} is under way: its new authority signs from {when} on")
    signs = at + overlap.total_seconds()
    ends = signs + (longest + SLACK).total_seconds()
    ids = {str(entry["ID"]) for entry in document[list_name]}
    fresh = next(str(number) for number in range(1, len(ids) + 2) if str(number) not in ids)
    for entry in entries:
        entry.setdefault("TrustedUntil", ends)
    entries.append({**make(fresh), "SignsFrom": signs})
    write_whole(path, json.dumps({**document, list_name: entries}, indent=1))
    return fresh, signs, ends
