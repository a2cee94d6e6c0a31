"""Collects every breach of a request before one INVALID_ARGUMENT is raised, each with the path of its field."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2

from ate import names
from ate.errors import InvalidArgument

_MOST_SECONDS = 315_576_000_000


class Problems:
    """`check(path, ok, message)` notes a breach; `raise_if_any()` raises them all together."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def add(self, path: str, message: str) -> None:
        self.found.append((path, message))

    def check(self, path: str, ok: bool, message: str) -> bool:
        if not ok:
            self.add(path, message)
        return ok

    def short(self, path: str, text: str, *, required: bool = True) -> None:
        """A DNS label."""
        if text == "":
            self.check(path, not required, "is required")
        else:
            self.check(path, names.is_short(text), f"{text!r} is not a DNS label (a-z, 0-9, '-'; 1..63 characters)")

    def long(self, path: str, text: str, *, required: bool = True) -> None:
        """A DNS subdomain."""
        if text == "":
            self.check(path, not required, "is required")
        else:
            self.check(path, names.is_long(text), f"{text!r} is not a DNS subdomain (1..253 characters)")

    def uuid(self, path: str, text: str, *, required: bool = True) -> None:
        if text == "":
            self.check(path, not required, "is required")
        else:
            self.check(path, names.is_uuid(text), f"{text!r} is not a lower-case UUID")

    def known(self, path: str, number: int, values: Collection[int]) -> None:
        """A value of an enum; what is left out (0) stands for the default."""
        self.check(path, number in values, f"{number} is no known value")

    def timestamp(self, path: str, value: Timestamp) -> None:
        try:
            value.ToNanoseconds()
        except ValueError:
            self.add(path, "is no point in time of the years 1..9999")

    def duration(self, path: str, value: Duration, *, least: int, most: int | None = None) -> None:
        """`least` and `most` in seconds. The bounds of the type itself are those of duration.proto."""
        nanoseconds = value.ToNanoseconds()
        one_sign = value.seconds * value.nanos >= 0 and abs(value.nanos) < 10**9
        if not one_sign or abs(value.seconds) > _MOST_SECONDS:
            self.add(path, "is no duration of at most 10000 years")
            return
        ok = least * 10**9 <= nanoseconds and (most is None or nanoseconds <= most * 10**9)
        self.check(path, ok, f"must be at least {least} s" if most is None else f"must be {least}..{most} s")

    def at_most(self, path: str, items: Sequence[Any] | Collection[Any], limit: int) -> None:
        self.check(path, len(items) <= limit, f"has {len(items)} entries, at most {limit} are allowed")

    def length(self, path: str, text: str, limit: int, *, required: bool = False) -> None:
        self.check(path, bool(text) or not required, "is required")
        self.check(path, len(text) <= limit, f"is longer than {limit} characters")
        self.check(path, "\0" not in text, "holds a NUL character")

    def unique(self, path: str, keys: Iterable[Any], what: str) -> None:
        """Entries may not repeat a key."""
        seen: set[Any] = set()
        for index, key in enumerate(keys):
            if key in seen:
                self.add(f"{path}[{index}]", f"{what} {key!r} is there twice")
            seen.add(key)

    def one_of(self, path: str, message: Message, fields: Sequence[str]) -> str | None:
        """Exactly one of `fields` must be set; returns its name."""
        present = [name for name in fields if message.HasField(name)]
        if len(present) != 1:
            self.add(path, f"exactly one of {', '.join(fields)} must be set")
            return None
        return present[0]

    def raise_if_any(self) -> None:
        if not self.found:
            return
        violations = [error_details_pb2.BadRequest.FieldViolation(field=p, description=m) for p, m in self.found]
        raise InvalidArgument(
            "; ".join(f"{path}: {message}" for path, message in self.found),
            details=[error_details_pb2.BadRequest(field_violations=violations)],
        )


def reject_unknown_fields(request: Message) -> None:
    """InvalidArgument naming the first message with a field this server does not know (contract: Update)."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.DiscardUnknownFields()
    if bare.ByteSize() != request.ByteSize():
        raise InvalidArgument(
            f"{_unknown_path(request) or request.DESCRIPTOR.name}: has fields this server does not know"
        )


def _unknown_path(message: Message, path: str = "") -> str | None:
    from google.protobuf.unknown_fields import UnknownFieldSet

    fields = UnknownFieldSet(message)
    if len(fields):
        return f"{path or message.DESCRIPTOR.name} (field number {fields[0].field_number})"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        items = value if descriptor.is_repeated else [value]
        for index, item in enumerate(items):
            where = f"{path}.{descriptor.name}" if path else descriptor.name
            found = _unknown_path(item, f"{where}[{index}]" if descriptor.is_repeated else where)
            if found:
                return found
    return None
