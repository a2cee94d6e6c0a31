"""One call on the server: what a handler sees of it, and how it ends.

`server` makes a ServerCall for each HTTP/2 stream and runs it; handlers get its `Call` and `ServerStream`. Every way a
handler can end (reply, error of the tree, any other exception, deadline, a client gone) becomes trailers here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import trio
from google.protobuf.message import DecodeError
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from h2.errors import ErrorCodes

from ate.errors import (
    AteError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
    Unimplemented,
    error_for,
)
from ate.log import Logger
from ate.rpc.listen import Peer
from ate.rpc.stream import Http2Stream
from ate.rpc.wire import (
    CONTENT_TYPE,
    Headers,
    Metadata,
    decode_metadata,
    header,
    metadata_headers,
    request_timeout,
    status_trailers,
)
from ate.telemetry import calls

log = Logger("ate.rpc")

_REPLY_HEADERS: Headers = [(":status", "200"), ("content-type", CONTENT_TYPE), ("grpc-accept-encoding", "identity")]
_MAX_SURPRISE = 300  # characters of an unexpected exception's text that a client gets to see; the log has all

Invoke = Callable[["Call", Callable[[], Awaitable[None]]], Awaitable[None]]


class Call:
    """A call as handlers and interceptors see it. `deadline` is in trio's time; `method` is `/package.Service/Method`.

    `attributes` is for interceptors to leave things for handlers (who the caller is, say). `draining` is set when the
    server is about to stop: an endless stream should end soon after.
    """

    def __init__(
        self, method: str, peer: Peer, metadata: Metadata, deadline: float | None, draining: trio.Event
    ) -> None:
        self.method = method
        self.peer = peer
        self.metadata = metadata
        self.deadline = deadline
        self.draining = draining
        self.initial_metadata: dict[str, str | bytes] = {}
        self.trailing_metadata: dict[str, str | bytes] = {}
        self.attributes: dict[str, Any] = {}
        self.check_request: Callable[[Any], Awaitable[None]] | None = None
        """Set by an interceptor: sees each request message before the handler does, and may raise."""
        self._stream: ServerStream | None = None

    async def send(self, message: Any) -> None:
        """Sends one reply of a stream; waits while the client is slower than we are."""
        assert self._stream is not None
        await self._stream.send_message(message)


class ServerStream:
    """What grpclib-style handlers get: messages both ways. One task may receive and one may send at a time."""

    def __init__(self, http: Http2Stream, call: Call, handler: Handler, limit: int) -> None:
        self.call = call
        self.headers_sent = False
        self.replies = 0
        self._http = http
        self._handler = handler
        self._limit = limit
        call._stream = self

    @property
    def metadata(self) -> Metadata:
        return self.call.metadata

    @property
    def peer(self) -> Peer:
        return self.call.peer

    @property
    def deadline(self) -> float | None:
        return self.call.deadline

    async def recv_message(self) -> Any:
        """The next request, or None when the client has sent all."""
        payload = await self._http.receive(self._limit)
        if payload is None:
            return None
        try:
            message = self._handler.request_type.FromString(payload)
        except DecodeError as error:
            kind = self._handler.request_type.DESCRIPTOR.full_name
            raise Internal(f"request of {self.call.method} is no {kind}: {error}") from None
        if self.call.check_request is not None:
            await self.call.check_request(message)
        return message

    async def send_message(self, message: Any) -> None:
        if not isinstance(message, self._handler.reply_type):
            raise TypeError(f"{self.call.method} must reply {self._handler.reply_type}, not {type(message)}")
        if self.replies and not self._handler.cardinality.server_streaming:
            raise RuntimeError(f"{self.call.method} replied twice")
        payload = message.SerializeToString()
        if len(payload) > self._limit:
            raise ResourceExhausted(
                f"reply of {self.call.method} has {len(payload)} bytes, more than the limit of {self._limit}"
            )
        await self.send_initial_metadata()
        self.replies += 1
        await self._http.send(payload)

    async def send_initial_metadata(self) -> None:
        """Sends `call.initial_metadata` ahead of the first message."""
        if not self.headers_sent:
            headers = _REPLY_HEADERS + metadata_headers(self.call.initial_metadata)
            self._http.send_headers(headers)
            self.headers_sent = True

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message


class ServerCall:
    """Runs one call from its headers to its trailers. `scope` is cancelled when the client is gone."""

    def __init__(self, http: Http2Stream, peer: Peer, draining: trio.Event, *, limit: int, max_deadline: float | None):
        self.scope = trio.CancelScope()
        self.method = header(http.headers or [], ":path") or ""
        self._http = http
        self._peer = peer
        self._draining = draining
        self._limit = limit
        self._max_deadline = max_deadline
        self._killed: str | None = None

    def kill(self, reason: str) -> None:
        """Ends the call with UNAVAILABLE, as a draining server must after its grace."""
        self._killed = reason
        self.scope.cancel()

    async def run(self, handler: Handler | None, interceptors: Sequence[Invoke]) -> None:
        """Never raises but for cancellation from outside: what goes wrong becomes the call's status."""
        headers = self._http.headers or []
        if not _is_grpc(headers):
            self._send([(":status", "415"), ("content-type", "text/plain")])
            return
        observed = calls.on_server(self.method, headers, known=handler is not None)
        status = Status.CANCELLED
        try:
            status = await self._answer(headers, handler, interceptors)
        finally:
            if observed is not None:
                observed.end(status.name)

    async def _answer(self, headers: Headers, handler: Handler | None, interceptors: Sequence[Invoke]) -> Status:
        """Runs the handler and tells the client how it went: the status it was told."""
        stream: ServerStream | None = None
        error: BaseException | None = None
        try:
            if handler is None:
                raise Unimplemented(f"method {self.method} is not known to this server")
            timeout = request_timeout(headers)
            if self._max_deadline is not None:
                timeout = self._max_deadline if timeout is None else min(timeout, self._max_deadline)
            deadline = None if timeout is None else trio.current_time() + timeout
            call = Call(self.method, self._peer, decode_metadata(headers), deadline, self._draining)
            stream = ServerStream(self._http, call, handler, self._limit)
            with self.scope:
                if deadline is not None:
                    self.scope.deadline = deadline
                await _chain(interceptors, call, lambda: handler.func(stream))
                if stream.replies == 0 and not handler.cardinality.server_streaming:
                    raise Internal(f"{self.method} ended without a reply")
        except (Exception, BaseExceptionGroup) as raised:
            if isinstance(raised, BaseExceptionGroup) and raised.subgroup((KeyboardInterrupt, SystemExit)):
                raise
            error = raised
        if self._http.failure is not None:
            return Status.CANCELLED  # the client is gone: nobody to tell
        if error is None and self.scope.cancelled_caught:
            error = (
                Unavailable(self._killed)
                if self._killed is not None
                else DeadlineExceeded(f"{self.method} did not end within its deadline")
            )
        known = None if error is None else self._explain(error)
        self._send(self._trailers(stream, known))
        return Status.OK if known is None else known.code

    def _trailers(self, stream: ServerStream | None, error: AteError | None) -> Headers:
        extra: Headers = []
        head: Headers = []
        try:
            if stream is not None:
                extra = metadata_headers(stream.call.trailing_metadata)
            if stream is None or not stream.headers_sent:  # trailers-only
                head = _REPLY_HEADERS + metadata_headers(stream.call.initial_metadata if stream else None)
        except InvalidArgument as bad:
            log.error("metadata of a reply cannot be sent", method=self.method, error=str(bad))
            error = Internal(f"{self.method}: {bad.message}")
            head = head or ([] if stream is not None and stream.headers_sent else _REPLY_HEADERS)
        if error is None:
            return [*head, ("grpc-status", "0"), *extra]
        return head + status_trailers(error.code, error.message, error.details) + extra

    def _send(self, headers: Headers) -> None:
        self._http.send_headers(headers, end=True)
        if not self._http.eof:  # the client may still be sending what nobody will read
            self._http.reset(ErrorCodes.NO_ERROR)

    def _explain(self, error: BaseException) -> AteError:
        found = _known(error)
        if found is not None:
            return found
        log.error("a handler failed", exc=error, method=self.method, peer=self._peer.address)
        return Internal(f"{type(error).__name__}: {error}"[:_MAX_SURPRISE])


def _chain(interceptors: Sequence[Invoke], call: Call, innermost: Callable[[], Awaitable[None]]) -> Awaitable[None]:
    if not interceptors:
        return innermost()
    first, rest = interceptors[0], interceptors[1:]
    return first(call, lambda: _chain(rest, call, innermost))


def _known(error: BaseException) -> AteError | None:
    """The error of the tree in an exception or in a group that holds nothing else but cancellations."""
    if isinstance(error, AteError):
        return error
    if isinstance(error, GRPCError):
        details = error.details if isinstance(error.details, list | tuple) else ()
        return error_for(error.status, error.message or "", details)
    if isinstance(error, BaseExceptionGroup):
        leaves = [leaf for leaf in error.exceptions if not isinstance(leaf, trio.Cancelled)]
        known = [_known(leaf) for leaf in leaves]
        return known[0] if known and all(item is not None for item in known) else None
    return None


def _is_grpc(headers: Headers) -> bool:
    kind = (header(headers, "content-type") or "").split(";")[0].strip()
    return header(headers, ":method") == "POST" and kind in (CONTENT_TYPE, CONTENT_TYPE + "+proto")
