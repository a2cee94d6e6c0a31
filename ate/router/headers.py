"""Which headers of a request go on to the tunnel, which of an answer to the client, and who is asked for. Pure.

Header case, order, repetition and the request target stay as they came. Headers of one connection only, and those that
only the router may set, are dropped in whatever case they are spelled.
"""

from __future__ import annotations

from typing import Final

from ate import http_framing as framing
from ate.http_framing import BadMessage, Headers, RequestHead, ResponseHead
from ate.names import TARGET_ACTOR_HEADER, TARGET_PORT_HEADER, Ref
from ate.router import answers
from ate.router.answers import Answer
from ate.router.resolver import Route
from ate.telemetry import trace

ACTOR_UID_HEADER: Final = b"X-Ate-Actor-Uid"
_OURS: Final = b"x-ate-"
_TRACEPARENT: Final = trace.TRACEPARENT.encode()
_TRACESTATE: Final = trace.TRACESTATE.encode()
_TARGET_ACTOR: Final = TARGET_ACTOR_HEADER.encode()
_TARGET_PORT: Final = TARGET_PORT_HEADER.encode()
_ACTOR_PORT: Final = b"80"
"""The reference overwrites what a client says here; other ports are for CONNECT, which is not spoken yet."""
_HOP_BY_HOP: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"upgrade"}
)  # fmt: skip
_NEVER_DROPPED: Final = frozenset({b"host", b"content-length", b"transfer-encoding"})
"""A client that names these in its Connection header must not change who is asked for, or where the body ends."""


def target(request: RequestHead) -> Ref | Answer:
    """Whom a request is for, or the answer to one that does not say so properly. Raises BadMessage."""
    if request.method == b"CONNECT":
        return Answer(405, "CONNECT is not supported")
    if len(framing.values(request.headers, b"host")) > 1:
        raise BadMessage("Host is given twice")
    return answers.parse_target([v.decode("latin-1") for v in framing.values(request.headers, _TARGET_ACTOR)])


def trace_of(request: RequestHead) -> trace.TraceContext | None:
    """The trace a client's request is part of; one that is given twice, or malformed, is none."""
    parents = framing.values(request.headers, _TRACEPARENT)
    if len(parents) != 1:
        return None
    states = b",".join(framing.values(request.headers, _TRACESTATE))
    return trace.received(parents[0].decode("latin-1"), states.decode("latin-1"))


def wants_upgrade(request: RequestHead) -> bool:
    """Whether the client asks to switch protocols, in a request that has no body to carry first."""
    return (
        request.version == b"HTTP/1.1"
        and b"upgrade" in framing.tokens(request.headers, b"connection")
        and bool(framing.values(request.headers, b"upgrade"))
        and framing.request_body(request).done
    )


def forwarded(request: RequestHead, ref: Ref, route: Route) -> bytes:
    """The request's head for the tunnel."""
    headers: list[tuple[bytes, bytes]] = [
        pair for pair in _kept(request.headers, upgrade=wants_upgrade(request)) if pair[0].lower() != _TARGET_ACTOR
    ]
    if not framing.values(request.headers, b"host"):
        headers.append((b"Host", f"{ref.name}.{ref.atespace}".encode()))  # HTTP/1.1, which we speak, demands one
    headers += [
        (_TARGET_ACTOR, str(ref).encode()),
        (ACTOR_UID_HEADER, route.actor_uid.encode()),
        (_TARGET_PORT, _ACTOR_PORT),
    ]
    return framing.encode_request(RequestHead(request.method, request.target, b"HTTP/1.1", tuple(headers)))


def answered(response: ResponseHead, *, keep: bool, version: bytes, dechunked: bool = False) -> bytes:
    """The answer's head for a client that speaks `version`; `keep` when its connection stays open."""
    headers = _kept(response.headers, upgrade=response.status == 101)
    if dechunked:
        headers = framing.without(headers, (b"transfer-encoding", b"trailer"), _OURS)
    if not keep:
        headers += ((b"Connection", b"close"),)
    elif version == b"HTTP/1.0":
        headers += ((b"Connection", b"keep-alive"),)
    return framing.encode_response(ResponseHead(b"HTTP/1.1", response.status, response.reason, headers))


def interim(response: ResponseHead) -> bytes:
    """An answer that another one will follow (100, 103)."""
    return framing.encode_response(ResponseHead(b"HTTP/1.1", response.status, response.reason, _kept(response.headers)))


def _kept(headers: Headers, *, upgrade: bool = False) -> Headers:
    dropped = (_HOP_BY_HOP | set(framing.tokens(headers, b"connection"))) - _NEVER_DROPPED
    if upgrade:
        dropped -= {b"connection", b"upgrade"}
    return framing.without(headers, dropped, _OURS)
