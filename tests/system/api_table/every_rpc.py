"""Rules of every RPC, made from the descriptors: unknown fields are refused however deep they sit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from ate.api.access.gate import ELAPSED_TRAILER
from ate.api.access.table import TABLE
from tests.system.api_peer import METHODS, Api, Caller, refused, request_of
from tests.system.api_table.rows import add

UNKNOWN = b"\xd2\x87\x0f\x01x"
"""Field 31098, a string: known to no message."""
Path = tuple[str, ...]


def caller(api: Api, rpc: str) -> Caller:
    """Who may call the RPC."""
    rule = TABLE[f"/{METHODS[rpc].containing_service.full_name}/{rpc}"]
    return api.atelet if rule.people is None else api.user


def messages_in(descriptor: Descriptor, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Paths of every message a request can hold, itself first. Well-known types are not ours to extend."""
    yield ()
    for field in descriptor.fields:
        kind = field.message_type
        if kind is None or kind.full_name.startswith("google.") or kind.full_name in above:
            continue
        if kind.GetOptions().map_entry:
            if kind.fields_by_name["value"].message_type is None:
                continue
            kind = kind.fields_by_name["value"].message_type
        for rest in messages_in(kind, (*above, kind.full_name)):
            yield (field.name, *rest)


def with_unknown_field(request: Message, path: Path) -> Message:
    inner = request
    for name in path:
        field = inner.DESCRIPTOR.fields_by_name[name]
        value = getattr(inner, name)
        if field.message_type.GetOptions().map_entry:
            inner = value["amd64"]
        else:
            inner = value.add() if field.is_repeated else value
            inner.SetInParent()
    inner.MergeFromString(UNKNOWN)
    return request


def unknown_fields(rpc: str, api: Api) -> None:
    for path in messages_in(METHODS[rpc].input_type):
        with refused("INVALID_ARGUMENT", "does not know"):
            caller(api, rpc).send(rpc, with_unknown_field(request_of(rpc), path))


def elapsed(rpc: str, api: Api) -> None:
    channel, method = caller(api, rpc).channel, METHODS[rpc]
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    call = kind(f"/{method.containing_service.full_name}/{rpc}")
    answer = call(UNKNOWN, timeout=60) if method.server_streaming else call.future(UNKNOWN, timeout=60)
    assert answer.code().name == "INVALID_ARGUMENT"
    assert dict(answer.trailing_metadata())[ELAPSED_TRAILER].isdigit()


for name in METHODS:
    if name != "DebugClear":  # not served here; see debug.py
        add(name, "unknown fields are INVALID_ARGUMENT, however deep they sit", partial(unknown_fields, name))
        add(name, "an error tells in its trailers how long the server took", partial(elapsed, name))
