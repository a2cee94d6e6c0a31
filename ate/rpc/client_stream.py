"""One call on the client: what stubs and callers do with a stream, and how its end becomes an error of the tree.

Made by `Channel.request`. A call that provably never reached the server (refused, or past the last id of a GOAWAY) is
replayed once on a new connection; any other loss is Unavailable, since the server may have acted on it.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio
from google.protobuf.message import DecodeError
from grpclib.const import Cardinality, Status
from h2.errors import ErrorCodes
from multidict import MultiDict

from ate.errors import AteError, DeadlineExceeded, Internal, ResourceExhausted, Unavailable, error_for
from ate.rpc.listen import Peer
from ate.rpc.stream import Failure, Http2Stream, StreamFailed
from ate.rpc.wire import (
    Headers,
    Metadata,
    MetadataLike,
    decode_metadata,
    encode_timeout,
    header,
    http_error,
    metadata_headers,
    reset_status,
    trailers_error,
)
from ate.telemetry import calls

if TYPE_CHECKING:
    from ate.rpc.client import Channel

_REPLAY_BYTES = 1 << 20  # requests of up to this size are kept until the server answers, for a replay


class ClientStream:
    """`async with stub.Method.open(timeout=5) as stream`. Times out with DeadlineExceeded, all of the block included.

    Leaving the block early, by an exception or by cancellation resets the call on the server. One task may send and one
    may receive at a time. `initial_metadata` and `trailing_metadata` are filled as they arrive.
    """

    def __init__(
        self,
        channel: Channel,
        method: str,
        cardinality: Cardinality,
        request_type: type[Any],
        reply_type: type[Any],
        timeout: float | None,
        metadata: MetadataLike | None,
    ) -> None:
        self.initial_metadata: Metadata = MultiDict()
        self.trailing_metadata: Metadata = MultiDict()
        self.peer: Peer | None = None
        self._channel = channel
        self._method = method
        self._cardinality = cardinality
        self._request_type = request_type
        self._reply_type = reply_type
        self._timeout = timeout
        self._metadata = metadata_headers(metadata)
        self._scope = trio.CancelScope()
        self._http: Http2Stream | None = None
        self._opening = trio.Lock()
        self._sent: list[bytes] | None = []  # for a replay; None once there can be none
        self._sent_size = 0
        self._ended = False
        self._replayed = False
        self._got_head = False
        self._replies = 0
        self._complete = False  # trailers seen and said OK
        self._error: AteError | None = None
        self._observed: calls.ObservedCall | None = None

    async def __aenter__(self) -> Self:
        if self._timeout is not None:
            self._scope.deadline = trio.current_time() + self._timeout
        self._observed = calls.on_client(self._method)
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        ending = error
        if ending is None:
            try:
                await self._finish()
            except BaseException as raised:
                ending = raised
        if self._http is not None and not self._complete:
            self._http.reset(ErrorCodes.CANCEL)
        where = None if ending is None else ending.__traceback__
        swallowed = self._scope.__exit__(None if ending is None else type(ending), ending, where)
        if self._observed is not None:
            self._observed.end(self._outcome(ending).name)
        if self._scope.cancelled_caught:
            raise DeadlineExceeded(f"{self._method} on {self._channel.address} took over {self._timeout} s")
        if ending is not None and ending is not error and not swallowed:
            raise ending
        return False

    async def send_request(self, *, end: bool = False) -> None:
        """Opens the call on the server; `send_message` does it by itself."""
        if self._http is None:
            async with self._opening:
                if self._http is None:
                    await self._open()
        if end:
            await self.end()

    async def send_message(self, message: Any, *, end: bool = False) -> None:
        """Sends one request, waiting while the server is slower than we are. Raises the call's error if it is over."""
        if not isinstance(message, self._request_type):
            raise TypeError(f"{self._method} takes {self._request_type}, not {type(message)}")
        payload = message.SerializeToString()
        limit = self._channel.max_message_bytes
        if len(payload) > limit:
            raise ResourceExhausted(f"request of {self._method} has {len(payload)} bytes, over the limit of {limit}")
        await self.send_request()
        self._remember(payload, end)
        try:
            await self._stream.send(payload, end=end)
        except StreamFailed as failed:
            if not await self._replay(failed.failure):
                self._over(failed.failure)

    async def end(self) -> None:
        """Says that no more requests come."""
        if self._ended:
            return
        await self.send_request()
        self._ended = True
        try:
            self._stream.send_end()
        except StreamFailed as failed:
            if not await self._replay(failed.failure):
                self._over(failed.failure)

    async def recv_initial_metadata(self) -> None:
        """Waits for the server's first headers."""
        await self.send_request()
        while not self._got_head:
            try:
                headers = await self._stream.wait_headers()
            except StreamFailed as failed:
                if not await self._replay(failed.failure):
                    self._fail(failed.failure)
                continue
            self._sent = None  # the server has begun: never again
            self._got_head = True
            if header(headers, "grpc-status") is None:
                error = http_error(headers)
                if error is not None:
                    self._raise(error)
                self.initial_metadata.extend(decode_metadata(headers))

    async def recv_message(self) -> Any:
        """The next reply, or None after the last. Raises the call's error."""
        if self._error is not None:
            self._raise(self._error)
        if self._complete:
            return None
        await self.recv_initial_metadata()
        try:
            payload = await self._stream.receive(self._channel.max_message_bytes)
        except StreamFailed as failed:
            self._fail(failed.failure)
        except AteError as error:
            self._raise(error)
        if payload is None:
            self._status()
            if not self._replies and not self._cardinality.server_streaming:
                self._raise(Internal(f"{self._method} ended with OK but without a reply"))
            return None
        self._replies += 1
        if self._replies > 1 and not self._cardinality.server_streaming:
            self._raise(Internal(f"{self._method} replied more than once"))
        try:
            return self._reply_type.FromString(payload)
        except DecodeError as error:
            self._raise(Internal(f"reply of {self._method} is no {self._reply_type.DESCRIPTOR.full_name}: {error}"))

    async def recv_trailing_metadata(self) -> None:
        """Takes what is left of the replies, then the status. Raises the call's error."""
        while await self.recv_message() is not None:
            pass

    async def cancel(self) -> None:
        """Resets the call on the server."""
        if self._http is not None:
            self._http.reset(ErrorCodes.CANCEL)
        self._error = self._error or error_for(Status.CANCELLED, f"{self._method} was cancelled by the caller")

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = await self.recv_message()
        if message is None:
            raise StopAsyncIteration
        return message

    @property
    def _stream(self) -> Http2Stream:
        assert self._http is not None
        return self._http

    async def _open(self) -> None:
        deadline = min(trio.current_effective_deadline(), self._scope.deadline)
        extra: Headers = []
        if deadline != math.inf:
            extra.append(("grpc-timeout", encode_timeout(deadline - trio.current_time())))
        if self._observed is not None:
            extra += self._observed.headers()
        self._http, self.peer = await self._channel.open_stream(self._method, extra + self._metadata)

    def _remember(self, payload: bytes, end: bool) -> None:
        self._ended = self._ended or end
        self._sent_size += len(payload)
        if self._sent is not None and self._sent_size <= _REPLAY_BYTES:
            self._sent.append(payload)
        else:
            self._sent = None

    async def _replay(self, failure: Failure) -> bool:
        """Sends all again on a new connection if that is safe; False if it is not."""
        stale = self._http
        async with self._opening:
            if self._http is not stale:
                return True  # the other task of this call did it
            if not failure.unprocessed or self._replayed or self._sent is None:
                return False
            self._replayed = True
            await self._open()
            try:
                for payload in self._sent:
                    await self._stream.send(payload)
                if self._ended:
                    self._stream.send_end()
            except StreamFailed as failed:
                self._fail(failed.failure)
            return True

    def _status(self) -> None:
        """Reads the trailers of an ended stream. Raises what they say."""
        trailers = self._stream.trailers
        if trailers is None:
            trailers = self._stream.headers or []  # trailers-only, or a server that broke off
        self.trailing_metadata = decode_metadata(trailers)
        error = trailers_error(trailers)
        if error is not None:
            self._complete = self._stream.ended
            self._raise(error)
        self._complete = True
        if not self._stream.ended:  # the server wants no more of our requests
            self._stream.reset(ErrorCodes.NO_ERROR)

    def _over(self, failure: Failure) -> None:
        """A send found the stream over: a status the server sent before that is the call's result."""
        if self._stream.eof:
            self._got_head = True
            self._status()
        else:
            self._fail(failure)

    def _fail(self, failure: Failure) -> Any:
        where = f"{self._method} on {self._channel.address}"
        if failure.reset is None:
            self._raise(Unavailable(f"{where}: {failure.reason}; it may have taken effect"))
        self._raise(error_for(reset_status(failure.reset), f"{where}: {failure.reason}"))

    def _raise(self, error: AteError) -> Any:
        self._error = error
        raise error

    def _outcome(self, ending: BaseException | None) -> Status:
        """What became of the call, for those who count: as its caller saw it."""
        if self._scope.cancelled_caught:
            return Status.DEADLINE_EXCEEDED
        if self._error is not None:
            return self._error.code
        if self._complete:
            return Status.OK
        return ending.code if isinstance(ending, AteError) else Status.CANCELLED

    async def _finish(self) -> None:
        """At a clean end of the block: a call with one reply is waited for, a stream left early is cancelled."""
        if self._http is None or self._complete or self._error is not None:
            return
        if self._ended and not self._cardinality.server_streaming:
            await self.recv_trailing_metadata()
