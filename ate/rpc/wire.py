"""What gRPC says on the wire, as pure functions: headers, metadata, timeouts, statuses and message frames.

Nothing here touches a socket or a clock; `stream`, `call` and `client` use it on both sides. The format is
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import math
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpclib.const import Status
from grpclib.metadata import (
    decode_grpc_message,
    decode_timeout,
    encode_bin_value,
    encode_grpc_message,
    encode_metadata,
)
from multidict import MultiDict

from ate.errors import AteError, InvalidArgument, error_for

Headers = list[tuple[str, str]]
Metadata = MultiDict[str | bytes]
MetadataLike = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]

CONTENT_TYPE = "application/grpc"
FRAME_HEADER = 5  # one byte of flags, four of length
MAX_MESSAGE_TEXT = 2048  # characters of an error text: C-core drops a header block of over 8 to 16 KiB
MAX_DETAILS = 4096

_RESERVED = {"te", "content-type", "user-agent", "host", "connection"}
_HTTP_STATUS = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}
_RST_STATUS = {  # HTTP/2 error code of an RST_STREAM without trailers, after PROTOCOL-HTTP2.md "Errors"
    7: Status.UNAVAILABLE,  # REFUSED_STREAM
    8: Status.CANCELLED,
    11: Status.RESOURCE_EXHAUSTED,  # ENHANCE_YOUR_CALM
    12: Status.PERMISSION_DENIED,  # INADEQUATE_SECURITY
}
_KNOWN_DETAILS = error_details_pb2.DESCRIPTOR  # keeps the standard detail types in the pool


def decode_headers(raw: Iterable[tuple[Any, Any]]) -> Headers:
    """Header pairs as text. Bytes that are no UTF-8 become U+FFFD: a bad peer must not end the connection."""
    return [(bytes(k).decode("ascii", "replace"), bytes(v).decode("utf-8", "replace")) for k, v in raw]


def header(headers: Headers, name: str) -> str | None:
    """The first value of a header, or None."""
    for key, value in headers:
        if key == name:
            return value
    return None


def decode_metadata(headers: Headers) -> Metadata:
    """The application's metadata among the headers. Raises InvalidArgument for a `-bin` value that is no base64."""
    metadata: Metadata = MultiDict()
    for key, value in headers:
        if key.startswith((":", "grpc-")) or key in _RESERVED:
            continue
        if not key.endswith("-bin"):
            metadata.add(key, value)
            continue
        for part in value.split(","):  # several values may come joined
            try:
                metadata.add(key, b64decode(part.strip() + "=" * (-len(part.strip()) % 4), validate=True))
            except ValueError as error:
                raise InvalidArgument(f"metadata {key!r} is not base64: {error}") from None
    return metadata


def metadata_headers(metadata: MetadataLike | None) -> Headers:
    """Header pairs of metadata. Raises InvalidArgument for a key or a value that cannot be sent."""
    if not metadata:
        return []
    pairs = metadata.items() if isinstance(metadata, Mapping) else metadata
    try:
        headers = list(encode_metadata([(key, value) for key, value in pairs]))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"metadata cannot be sent: {error}") from None
    for key, value in headers:
        if value != value.strip():
            raise InvalidArgument(f"metadata cannot be sent: the value of {key!r} begins or ends with a blank")
    return headers


def encode_timeout(seconds: float) -> str:
    """`grpc-timeout`: at most eight digits and a unit. Rounded up: a server never gives up before its client."""
    if seconds <= 0:
        return "0n"
    for unit, scale in (("u", 1e6), ("m", 1e3), ("S", 1.0)):
        count = math.ceil(round(seconds * scale, 6))
        if count < 100_000_000:
            return f"{count}{unit}"
    return f"{min(math.ceil(seconds / 3600), 99_999_999)}H"


def request_timeout(headers: Headers) -> float | None:
    """Seconds the client gives the call, or None. Raises InvalidArgument for a value out of form."""
    value = header(headers, "grpc-timeout")
    if value is None:
        return None
    try:
        return float(decode_timeout(value))
    except ValueError:
        raise InvalidArgument(f"grpc-timeout {value[:40]!r} is not of the form <digits><H|M|S|m|u|n>") from None


def status_trailers(status: Status, message: str = "", details: Sequence[Message] = ()) -> Headers:
    """Trailers of a status; text is cut and details dropped where they would not fit into a peer's header limit."""
    trailers = [("grpc-status", str(status.value))]
    if message:
        if len(message) > MAX_MESSAGE_TEXT:
            message = message[:MAX_MESSAGE_TEXT] + "…"
        trailers.append(("grpc-message", _keep_blanks(encode_grpc_message(message))))
    if details:
        packed = status_pb2.Status(code=status.value, message=message)
        for detail in details:
            packed.details.add().Pack(detail)
        raw = packed.SerializeToString()
        if len(raw) <= MAX_DETAILS:
            trailers.append(("grpc-status-details-bin", encode_bin_value(raw).decode("ascii")))
    return trailers


def trailers_error(trailers: Headers) -> AteError | None:
    """The error that trailers stand for; None when they say OK."""
    code = header(trailers, "grpc-status")
    if code is None:
        return error_for(Status.UNKNOWN, "the server ended the call without a grpc-status")
    try:
        status = Status(int(code))
    except ValueError:
        status = Status.UNKNOWN
    if status is Status.OK:
        return None
    message = decode_grpc_message(header(trailers, "grpc-message") or "")
    return error_for(status, message, _decode_details(header(trailers, "grpc-status-details-bin")))


def http_error(headers: Headers) -> AteError | None:
    """The error of a reply that is not gRPC at all (a proxy's page, say); None when it is."""
    code = header(headers, ":status") or ""
    kind = header(headers, "content-type") or ""
    if code == "200" and kind.startswith(CONTENT_TYPE):
        return None
    status = _HTTP_STATUS.get(int(code) if code.isdigit() else 0, Status.UNKNOWN)
    return error_for(status, f"the server did not answer in gRPC: HTTP status {code}, content-type {kind!r}")


def reset_status(code: int | None) -> Status:
    """The status that an RST_STREAM without trailers stands for."""
    return _RST_STATUS.get(code if code is not None else -1, Status.INTERNAL)


def frame(payload: bytes) -> bytes:
    """A message with its five-byte head, not compressed."""
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


def _keep_blanks(text: str) -> str:
    """HTTP strips blanks around a value; percent-encoded they stay."""
    inner = text.strip(" ")
    if not inner:
        return "%20" * len(text)
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "%20" * before + inner + "%20" * after


def _decode_details(value: str | None) -> list[Message]:
    """Details as messages of the types we know; a detail of another type stays an Any."""
    if not value:
        return []
    packed = status_pb2.Status()
    try:
        packed.ParseFromString(b64decode(value + "=" * (-len(value) % 4)))
    except (ValueError, DecodeError):
        return []  # the status itself still counts; details are extra
    details: list[Message] = []
    for box in packed.details:
        try:
            kind = descriptor_pool.Default().FindMessageTypeByName(box.TypeName())
            detail = message_factory.GetMessageClass(kind)()
            box.Unpack(detail)
        except (KeyError, DecodeError):
            details.append(box)
        else:
            details.append(detail)
    return details
