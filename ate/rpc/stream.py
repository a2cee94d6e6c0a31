"""One HTTP/2 stream carrying gRPC messages, the same on both sides of a connection.

`connection` feeds it what arrives; `call` (server) and `client_stream` send and receive whole messages. Flow control is
end to end: a peer gets window back only for what the reader took, so a slow reader holds at most one window and one
message in memory. One task may receive and one may send at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError

from ate.errors import Internal, ResourceExhausted, Unimplemented
from ate.rpc.wire import FRAME_HEADER, Headers, frame

if TYPE_CHECKING:
    from ate.rpc.connection import Connection


@dataclass(frozen=True)
class Failure:
    """Why a stream ended early. `unprocessed` means that the peer provably did nothing with the request."""

    reason: str
    reset: int | None = None  # HTTP/2 error code of an RST_STREAM; None for a lost connection
    unprocessed: bool = False


class StreamFailed(Exception):
    """A stream ended before its time. Internal to `ate.rpc`: callers see an AteError made from the failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class Http2Stream:
    """State of one stream; `headers`, `trailers` and `eof` are what the peer sent so far."""

    def __init__(self, connection: Connection, stream_id: int, headers: Headers | None = None) -> None:
        self.id = stream_id
        self.headers = headers
        self.trailers: Headers | None = None
        self.eof = False
        self.ended = False  # we sent END_STREAM
        self.failure: Failure | None = None
        self._connection = connection
        self._inbound = bytearray()
        self._uncredited = 0  # bytes received for which the peer has not got its window back
        self._readable = trio.lowlevel.ParkingLot()
        self._sending = False

    # What the connection's reader calls. None of these wait.

    def feed(self, data: bytes, size: int) -> None:
        self._inbound += data
        self._uncredited += size
        self._readable.unpark_all()

    def wake(self) -> None:
        self._readable.unpark_all()

    def fail(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
        self._readable.unpark_all()

    # What calls use.

    async def wait_headers(self) -> Headers:
        """The peer's first headers. Raises StreamFailed. Cancellation loses nothing."""
        while self.headers is None:
            self._check()
            await self._readable.park()
        return self.headers

    async def receive(self, limit: int) -> bytes | None:
        """The next message, or None at the end of the peer's messages. Cancellation loses nothing.

        Raises ResourceExhausted for a message of over `limit` bytes before it is taken in, Unimplemented for a
        compressed one, Internal for one cut short, StreamFailed.
        """
        while True:
            need = FRAME_HEADER
            if len(self._inbound) >= FRAME_HEADER:
                if self._inbound[0] != 0:
                    raise Unimplemented("compressed messages are not supported: send with grpc-encoding identity")
                size = int.from_bytes(self._inbound[1:FRAME_HEADER], "big")
                if size > limit:
                    raise ResourceExhausted(f"message of {size} bytes is larger than the limit of {limit}")
                need += size
                if len(self._inbound) >= need:
                    with memoryview(self._inbound) as view:
                        message = bytes(view[FRAME_HEADER:need])
                    del self._inbound[:need]
                    self._credit(self._uncredited - len(self._inbound))
                    return message
            if self.eof:
                if self._inbound:
                    raise Internal(
                        f"the peer ended the stream inside a message, {len(self._inbound)} of {need} bytes in"
                    )
                return None
            self._check()
            self._credit(self._uncredited)  # the message needs more room than what is buffered takes
            await self._readable.park()

    async def send(self, payload: bytes, *, end: bool = False) -> None:
        """Queues one message within the peer's window, waiting where it is full. Raises StreamFailed.

        A cancelled or failed send that already put part of the message out resets the stream: nothing could follow.
        """
        if self._sending:
            raise trio.BusyResourceError("another task is sending on this stream")
        if self.ended:
            raise RuntimeError("a message was sent after the end of the stream")
        data = memoryview(frame(payload))
        at = 0
        self._sending = True
        try:
            while at < len(data):
                self._check()
                room = self._connection.room(self.id)
                if room <= 0:
                    await self._connection.wait_writable()
                    continue
                chunk = data[at : at + room]
                at += len(chunk)
                self._connection.send_data(self.id, bytes(chunk), end=end and at == len(data))
        except BaseException:
            if at:
                self.reset(ErrorCodes.CANCEL)
            raise
        finally:
            self._sending = False
        if end:
            self._local_end()

    def send_headers(self, headers: Headers, *, end: bool = False) -> None:
        """Queues headers or trailers; never waits. Raises StreamFailed."""
        self._check()
        self._connection.send_headers(self.id, headers, end=end)
        if end:
            self._local_end()

    def send_end(self) -> None:
        """Queues an empty DATA frame with END_STREAM; never waits."""
        self._check()
        if not self.ended:
            self._connection.send_data(self.id, b"", end=True)
            self._local_end()

    def reset(self, code: ErrorCodes, reason: str = "reset by us") -> None:
        """Queues RST_STREAM unless the stream is over; never waits, so that it is safe while being cancelled."""
        if self.failure is None and not (self.eof and self.ended):
            self._connection.reset(self.id, code)
        self.fail(Failure(reason, reset=int(code)))
        self._connection.forget(self)

    def _local_end(self) -> None:
        self.ended = True
        if self.eof:
            self._connection.forget(self)

    def _check(self) -> None:
        if self.failure is not None:
            raise StreamFailed(self.failure)

    def _credit(self, size: int) -> None:
        # Half a window at a time: the peer then always has more than nothing, and updates stay few.
        if size >= self._connection.stream_window // 2 and size > 0 and not self.eof and self.failure is None:
            self._uncredited -= size
            try:
                self._connection.credit(self.id, size)
            except (ProtocolError, KeyError):
                pass  # the stream closed inside h2 while its events were on the way to us
