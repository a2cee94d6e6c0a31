"""One HTTP/2 connection over a trio stream: reader, writer, keepalive and flow control, the same for both sides.

`server` and `client` run one of these for each transport. All sending goes through a byte queue that a single writer
task empties: a cancelled caller never leaves half a frame on the wire, and frames of one tick leave in one write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import NoAvailableStreamIDError, ProtocolError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes
from hpack import Encoder
from hyperframe.frame import Frame, GoAwayFrame

from ate.rpc.stream import Failure, Http2Stream
from ate.rpc.wire import Headers, decode_headers

READ_SIZE = 65536
SLICE = 2048  # bytes looked at between two turns of the other tasks, while they complete messages of calls
LINGER = 1.0  # seconds a finished connection waits for its peer to close, so that our last bytes are not lost to an RST
_DEFAULT_WINDOW = 65535


@dataclass(frozen=True)
class Keepalive:
    """A PING after `interval` seconds of silence; no byte within `timeout` seconds of it ends the connection."""

    interval: float = 30.0
    timeout: float = 10.0
    when_idle: bool = True


@dataclass(frozen=True)
class Tuning:
    """Sizes of one connection, in bytes; tests make them small."""

    stream_window: int = 256 * 1024
    connection_window: int = 4 * 1024 * 1024
    max_streams: int = 1000
    write_buffer: int = 256 * 1024  # queued output above which senders of data wait
    read_pause: int = (
        1024 * 1024
    )  # queued output above which we stop reading: it grows only for a flood of control frames


class _Frames(FrameBuffer):
    """h2 takes in all of a frame, up to 16 MiB of it, before it looks whether the frame is too long."""

    def __next__(self) -> Frame:
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        return super().__next__()


_IN_TABLE = frozenset(
    (b":method", b":scheme", b":path", b":authority", b":status", b"te", b"content-type", b"user-agent", b"grpc-status")
)


class _Encoder(Encoder):
    """Keeps what differs from call to call out of the header table, which is searched in turn for every header, and
    leaves Huffman codes alone, which cost more than the bytes they save: 16 us instead of 61 for a request's headers,
    and 22 instead of 49 to read them."""

    def encode(self, headers: Any, huffman: bool = False) -> bytes:
        if self.header_table.resized:
            return bytes(super().encode(headers, huffman=False))  # says so to the peer, once
        return b"".join([self.add((name, value), name not in _IN_TABLE, False) for name, value in headers])


class _H2(H2Connection):
    """h2 ends a connection on GOAWAY; gRPC lets the streams that the peer accepted finish."""

    def __init__(self, config: H2Configuration) -> None:
        super().__init__(config)
        self.encoder = _Encoder()
        self.incoming_buffer = _Frames(server=not config.client_side)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[events.Event]]:
        event = events.ConnectionTerminated()
        event.error_code = frame.error_code
        event.last_stream_id = frame.last_stream_id
        event.additional_data = frame.additional_data or None
        return [], [event]


class Connection:
    """`run()` works until either side ends the connection; afterwards `lost` says why."""

    def __init__(
        self,
        transport: trio.abc.Stream,
        *,
        client: bool,
        keepalive: Keepalive | None,
        tuning: Tuning,
        on_request: Callable[[Http2Stream], None] | None = None,
        on_reset: Callable[[Http2Stream], None] | None = None,
    ) -> None:
        self.streams: dict[int, Http2Stream] = {}
        self.lost: str | None = None
        self.going_away = False  # no new streams, from either side's GOAWAY or our drain
        self.ready = trio.Event()  # the peer's SETTINGS arrived, or the connection was lost
        self.stream_window = tuning.stream_window
        self._transport = transport
        self._client = client
        self._keepalive = keepalive
        self._tuning = tuning
        self._on_request = on_request
        self._on_reset = on_reset
        # Header checks of h2 end the whole connection, even for a blank that ends a status text, as C-core sends it.
        # Nothing is forwarded from here, so a header out of form can only spoil its own call.
        config = H2Configuration(
            client_side=client,
            header_encoding=None,
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._h2 = _H2(config)
        self._out = bytearray()
        self._finishing = False
        self._peer_done = False  # it sent GOAWAY
        self._heard = 0
        self._heard_at = 0.0
        self._unacknowledged = 0
        self._writer = trio.lowlevel.ParkingLot()
        self._writable = trio.lowlevel.ParkingLot()
        self._slots = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Serves the connection, then closes the transport. I/O and protocol errors end it and are kept in `lost`."""
        h2 = self._h2
        self._heard_at = trio.current_time()
        h2.initiate_connection()
        settings: dict[SettingCodes | int, int] = {SettingCodes.INITIAL_WINDOW_SIZE: self._tuning.stream_window}
        if self._client:
            settings[SettingCodes.ENABLE_PUSH] = 0
        else:
            settings[SettingCodes.MAX_CONCURRENT_STREAMS] = self._tuning.max_streams
        h2.update_settings(settings)
        if self._tuning.connection_window > _DEFAULT_WINDOW:
            h2.increment_flow_control_window(self._tuning.connection_window - _DEFAULT_WINDOW)
        self._flush()
        try:
            with self._scope:
                async with trio.open_nursery() as tasks:
                    tasks.start_soon(self._write_loop)
                    if self._keepalive is not None:
                        tasks.start_soon(self._keepalive_loop, self._keepalive)
                    await self._read_loop()
                    self._scope.cancel()
        finally:
            self.abort("the connection was closed")
            with trio.CancelScope(shield=True, deadline=trio.current_time() + LINGER):
                await trio.aclose_forcefully(self._transport)

    def abort(self, reason: str) -> None:
        """Ends the connection now: every stream fails with `reason`, tasks stop, queued bytes are dropped."""
        self._fail_streams(reason)
        self._scope.cancel()

    def _fail_streams(self, reason: str) -> None:
        if self.lost is None:
            self.lost = reason
        self.going_away = True
        for stream in list(self.streams.values()):
            stream.fail(Failure(self.lost))
            if self._on_reset is not None:
                self._on_reset(stream)
        self.streams.clear()
        self.ready.set()
        self._slots.unpark_all()
        self._writable.unpark_all()

    def finish(self) -> None:
        """Sends GOAWAY, then closes once all is written. Meant for a connection without streams."""
        if self._finishing or self.lost is not None:
            return
        self.going_away = True
        self._finishing = True
        self._flush()
        # Not by h2, which would then take the peer's next PING or WINDOW_UPDATE for an error and have us close before
        # the last reply is read.
        self._out += GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id).serialize()
        self._writer.unpark_all()

    def drain(self) -> None:
        """Takes no new streams; the connection finishes when the last one ends."""
        self.going_away = True
        self._slots.unpark_all()
        if not self.streams:
            self.finish()

    # Sending. None of these wait but wait_writable and wait_slot.

    def open(self, headers: Headers) -> Http2Stream | None:
        """A new client stream, or None when the connection takes no more."""
        if self.going_away:
            return None
        try:
            stream_id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(stream_id, headers)
        except (NoAvailableStreamIDError, ProtocolError):
            self.drain()
            return None
        stream = self.streams[stream_id] = Http2Stream(self, stream_id)
        self._flush()
        return stream

    async def wait_slot(self) -> None:
        """Waits while the peer's limit on open streams is reached."""
        while not self.going_away and len(self.streams) >= self._h2.remote_settings.max_concurrent_streams:
            await self._slots.park()

    def room(self, stream_id: int) -> int:
        """Bytes of data that may be queued on a stream now."""
        if len(self._out) >= self._tuning.write_buffer:
            return 0
        return min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)

    async def wait_writable(self) -> None:
        # No wake-up is lost: between a caller's look at room() and this park no other task runs, and everything that
        # makes room (WINDOW_UPDATE of stream or connection, SETTINGS, a write, a failure) wakes all of the lot.
        await self._writable.park()

    def send_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        self._h2.send_data(stream_id, data, end_stream=end)
        self._flush()

    def send_headers(self, stream_id: int, headers: Headers, *, end: bool) -> None:
        self._h2.send_headers(stream_id, headers, end_stream=end)
        self._flush()

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        try:
            self._h2.reset_stream(stream_id, code)
        except (ProtocolError, KeyError):
            return  # closed on both sides already
        self._flush()

    def credit(self, stream_id: int, size: int) -> None:
        self._h2.increment_flow_control_window(size, stream_id)
        self._flush()

    def forget(self, stream: Http2Stream) -> None:
        """A stream is over on both sides."""
        if self.streams.pop(stream.id, None) is not None:
            self._slots.unpark_all()
            if self.going_away and not self.streams:
                self.finish()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if data:
            self._out += data
            self._writer.unpark_all()

    # Tasks.

    async def _write_loop(self) -> None:
        while True:
            if not self._out:
                if self._finishing and self._peer_done:
                    return self.abort("both sides said GOAWAY")
                if self._finishing:
                    self._scope.deadline = min(self._scope.deadline, trio.current_time() + LINGER)
                await self._writer.park()
                continue
            data = bytes(self._out)
            self._out.clear()
            try:
                await self._transport.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self.abort(f"the connection broke while sending: {error.__cause__ or error}")
                return
            self._writable.unpark_all()

    async def _keepalive_loop(self, keepalive: Keepalive) -> None:
        while True:
            due = self._heard_at + keepalive.interval
            if trio.current_time() < due:  # never "sleep the rest": a rest too small to move the clock would spin
                await trio.sleep_until(due)
                continue
            if not self.streams and not keepalive.when_idle:
                await trio.sleep(keepalive.interval)
                continue
            heard = self._heard
            try:
                self._h2.ping(b"ate-ping")
            except ProtocolError:
                return  # already closing
            self._flush()
            await trio.sleep(keepalive.timeout)
            if self._heard == heard:
                self.abort(f"the peer did not answer a keepalive ping within {keepalive.timeout} s")
                return

    async def _read_loop(self) -> None:
        while True:
            while len(self._out) > self._tuning.read_pause:
                await self._writable.park()
            try:
                data = await self._transport.receive_some(READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                return self.abort(f"the connection broke: {error.__cause__ or error}")
            if not data:
                return self.abort("the peer closed the connection")
            self._heard += 1
            self._heard_at = trio.current_time()
            try:
                await self._take(memoryview(data))
            except Exception as error:  # h2 raises its own and, for hostile bytes, sometimes built-in errors
                self._fail_streams(f"the peer broke the HTTP/2 protocol: {type(error).__name__}: {error}")
                self._flush()
                with trio.move_on_after(LINGER):  # the writer tells the peer why, if it can
                    while self._out:
                        await self._writable.park()
                return self._scope.cancel()
            self._flush()

    async def _take(self, data: memoryview) -> None:
        """Dispatches what came in slices. Handing out many calls at once makes both ends work in turns, one idle while
        the other goes through its batch: measured with 16 calls in flight, each side then used half a core."""
        for at in range(0, len(data), SLICE):
            ended = False
            for event in self._h2.receive_data(bytes(data[at : at + SLICE])):
                self._dispatch(event)
                ended = ended or isinstance(event, events.StreamEnded)
            if ended and at + SLICE < len(data):
                self._flush()
                await trio.lowlevel.checkpoint()

    def _dispatch(self, event: events.Event) -> None:
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case events.DataReceived():
                size = event.flow_controlled_length or 0
                self._credit_connection(size)
                if stream is not None:
                    stream.feed(event.data or b"", size)
            case events.RequestReceived():
                self._request(event.stream_id, decode_headers(event.headers or []))
            case events.ResponseReceived() if stream is not None:
                stream.headers = decode_headers(event.headers or [])
                stream.wake()
            case events.TrailersReceived() if stream is not None:
                stream.trailers = decode_headers(event.headers or [])
                stream.wake()
            case events.StreamEnded() if stream is not None:
                stream.eof = True
                stream.wake()
                if stream.ended:
                    self.forget(stream)
            case events.StreamReset() if stream is not None:
                self._reset_received(stream, int(event.error_code or 0))
            case events.WindowUpdated():
                self._writable.unpark_all()
            case events.RemoteSettingsChanged():
                self.ready.set()
                self._writable.unpark_all()
                self._slots.unpark_all()
            case events.ConnectionTerminated():
                self._goaway(event)
            case _:
                pass

    def _request(self, stream_id: int, headers: Headers) -> None:
        assert self._on_request is not None  # h2 lets only servers receive requests
        if self.going_away:
            self.reset(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        stream = self.streams[stream_id] = Http2Stream(self, stream_id, headers)
        self._on_request(stream)

    def _reset_received(self, stream: Http2Stream, code: int) -> None:
        refused = code == ErrorCodes.REFUSED_STREAM
        if refused:  # a server says this when it drains: later calls go elsewhere
            self.going_away = True
        name = ErrorCodes(code).name if code in set(ErrorCodes) else str(code)
        stream.fail(Failure(f"the peer reset the stream: {name}", reset=code, unprocessed=refused))
        self._writable.unpark_all()
        if self._on_reset is not None:
            self._on_reset(stream)
        self.forget(stream)

    def _goaway(self, event: events.ConnectionTerminated) -> None:
        self.going_away = self._peer_done = True
        self._writer.unpark_all()
        for stream in list(self.streams.values()):
            if self._client and stream.id > (event.last_stream_id or 0):
                stream.fail(Failure("the peer is going away", unprocessed=True))
                self.streams.pop(stream.id, None)
        self._writable.unpark_all()
        self._slots.unpark_all()
        if not self.streams:
            self.finish()

    def _credit_connection(self, size: int) -> None:
        # At once, whoever reads or not: streams have windows of their own, and one slow reader must not stop the rest.
        self._unacknowledged += size
        if self._unacknowledged >= max(_DEFAULT_WINDOW, self._tuning.connection_window) // 2:
            self._h2.increment_flow_control_window(self._unacknowledged)
            self._unacknowledged = 0
