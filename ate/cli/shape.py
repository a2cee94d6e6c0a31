"""Looks whether what people wrote has the shape of a message, and says in their words what is expected where.

`json_format` would refuse the same, but in words about protobuf and without the place. Used by `manifests.py`; what
only the control plane can judge (names that exist, ranges, combinations) is left to it.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import duration_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ate.errors import InvalidArgument

_BITS = {FieldDescriptor.TYPE_INT32: 32, FieldDescriptor.TYPE_INT64: 64}
_TIME = "a time, as 2026-01-31T08:00:00Z"
_DURATION = "a duration in seconds, as 90s"
_SHOWN = 40


def fitting(value: Mapping[Any, Any], message: Message) -> dict[str, Any]:
    """`value` as `json_format.ParseDict` takes it for `message`. InvalidArgument with the field's path otherwise."""
    return _fields(value, message.DESCRIPTOR, "")


def _fields(value: Mapping[Any, Any], message: Any, path: str) -> dict[str, Any]:
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    given: dict[str, str] = {}
    result: dict[str, Any] = {}
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        field = fields.get(key)
        if field is None:
            raise InvalidArgument(f"{where}: there is no such field{_instead(key, message, path)}")
        if field.name in given:
            raise InvalidArgument(f"{where}: is the same field as {given[field.name]}: give one of them")
        given[field.name] = key
        if item is not None:  # as if it were not there
            result[key] = _field(item, field, where)
    return result


def _instead(key: object, message: Any, path: str) -> str:
    known = [field.json_name for field in message.fields]
    close = difflib.get_close_matches(str(key), known, 1)
    if close:
        return f", did you mean {close[0]}?"
    where = f"{path.rpartition('.')[2]} takes" if path else "it takes"
    return f": {where} {', '.join(known)}" if known else ": it takes none"


def _field(value: Any, field: FieldDescriptor, where: str) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        items = _mapping(value, where)
        of = field.message_type.fields_by_name["value"]
        for key in items:
            if not isinstance(key, str):
                raise InvalidArgument(f"{where}: the key {key!r} must be text{_quotes(key)}")
        return {key: _one(item, of, f"{where}.{key}") for key, item in items.items()}
    if field.is_repeated:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _wrong(value, where, "a list")
        return [_one(item, field, f"{where}[{index}]") for index, item in enumerate(value)]
    return _one(value, field, where)


def _one(value: Any, field: FieldDescriptor, where: str) -> Any:
    if field.message_type is not None:
        return _message(value, field.message_type, where)
    if field.enum_type is not None:
        names = [one.name for one in field.enum_type.values]
        if value in names or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _wrong(value, where, f"one of {', '.join(name for name in names if not name.endswith('_UNSPECIFIED'))}")
    if field.type == FieldDescriptor.TYPE_STRING:
        if not isinstance(value, str):
            raise _wrong(value, where, "text", _quotes(value))
        return value
    if field.type == FieldDescriptor.TYPE_BOOL:
        if not isinstance(value, bool):
            raise _wrong(value, where, "true or false")
        return value
    return _number(value, _BITS[field.type], where)


def _message(value: Any, message: Any, where: str) -> Any:
    if message.full_name == "google.protobuf.Timestamp":
        if isinstance(value, datetime.datetime):  # what YAML makes of one without quotes
            value = value.replace(tzinfo=value.tzinfo or datetime.UTC).isoformat()
        return _parsed(value, timestamp_pb2.Timestamp, where, _TIME)
    if message.full_name == "google.protobuf.Duration":
        return _parsed(value, duration_pb2.Duration, where, _DURATION)
    if message.full_name == "google.protobuf.Struct":
        return _parsed(_mapping(value, where), struct_pb2.Struct, where, "a mapping of texts, numbers and the like")
    return _fields(_mapping(value, where), message, where)


def _parsed(value: Any, kind: Any, where: str, expected: str) -> Any:
    try:
        json_format.ParseDict(value, kind())
    except (json_format.ParseError, TypeError, AttributeError, ValueError):
        raise _wrong(value, where, expected)
    return value


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(value, where, "a mapping")
    return value


def _number(value: Any, bits: int, where: str) -> int:
    whole = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value)
    if not whole and (isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1):
        raise _wrong(value, where, "a whole number")
    number = int(value)
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise _wrong(value, where, f"a number of at most {bits} bits")
    return number


def _quotes(value: object) -> str:
    """Where YAML took a word for something else."""
    return "" if isinstance(value, list | dict) or value is None else ": put it into quotes"


def _wrong(value: Any, where: str, expected: str, hint: str = "") -> InvalidArgument:
    kind = {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value))
    shown = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    if len(shown) > _SHOWN:
        shown = f"{shown[: _SHOWN - 1]}…"
    return InvalidArgument(f"{where}: must be {expected}, not {kind or shown}{hint}")
