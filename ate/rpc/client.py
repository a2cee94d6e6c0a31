"""The client's end: `Channel` holds one connection to one address and gives generated stubs their streams.

It connects at the first call, again after a loss, and hands every call a connection that is alive as far as anybody can
know. What a single call does with it is `client_stream`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

import trio
from grpclib.const import Cardinality

from ate.errors import AteError, FailedPrecondition, Unavailable
from ate.log import Logger
from ate.rpc.client_stream import ClientStream
from ate.rpc.connection import Connection, Keepalive, Tuning
from ate.rpc.listen import CONNECT_TIMEOUT, Peer, TlsProvider, connect_tcp, connect_unix
from ate.rpc.stream import Http2Stream
from ate.rpc.wire import CONTENT_TYPE, Headers, MetadataLike

log = Logger("ate.rpc")

MAX_MESSAGE_BYTES = 16 << 20
USER_AGENT = f"grpc-python-ate/0.1 (trio; {sys.platform})"


class _Attempt:
    """One connecting, shared by all calls that wait for it: a caller that gives up does not stop it for the others."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.connection: Connection | None = None
        self.error: Exception | None = None


class Channel:
    """`async with Channel.tcp(host, port, tls=...) as channel: stub = ControlStub(channel)`.

    Leaving the block cancels what is in flight and closes the connection. `verify_peer` sees the peer after the TLS
    handshake and before any byte of a request; the AteError it raises is the error of the call.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[trio.abc.Stream]],
        *,
        verify_peer: Callable[[Peer], None] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive: Keepalive | None = Keepalive(when_idle=False),  # noqa: B008 - a frozen value
        tuning: Tuning = Tuning(),  # noqa: B008 - a frozen value
    ) -> None:
        async def dial() -> tuple[trio.abc.Stream, Peer]:
            return await connect(), Peer(self.address)

        self.address = "memory"
        self.max_message_bytes = max_message_bytes
        self._dial: Callable[[], Awaitable[tuple[trio.abc.Stream, Peer]]] = dial
        self._verify_peer = verify_peer
        self._keepalive = keepalive
        self._tuning = tuning
        self._authority = "localhost"
        self._scheme = "http"
        self._tasks: trio.Nursery | None = None
        self._tasks_manager: Any = None
        self._connection: Connection | None = None
        self._attempt: _Attempt | None = None
        self._peers: dict[Connection, Peer] = {}

    @classmethod
    def tcp(
        cls,
        host: str,
        port: int,
        tls: TlsProvider | None = None,
        verify_peer: Callable[[Peer], None] | None = None,
        server_hostname: str | None = None,
        **options: Any,
    ) -> Self:
        """A channel over TCP. `options` are those of the constructor."""

        async def dial() -> tuple[trio.abc.Stream, Peer]:
            return await connect_tcp(host, port, tls, server_hostname)

        return cls._over(dial, f"{host}:{port}", server_hostname or f"{host}:{port}", tls, verify_peer, options)

    @classmethod
    def unix(
        cls,
        path: str | os.PathLike[str],
        tls: TlsProvider | None = None,
        verify_peer: Callable[[Peer], None] | None = None,
        **options: Any,
    ) -> Self:
        """A channel over a unix socket. `options` are those of the constructor."""

        async def dial() -> tuple[trio.abc.Stream, Peer]:
            return await connect_unix(path, tls)

        return cls._over(dial, f"unix:{os.fspath(path)}", "localhost", tls, verify_peer, options)

    @classmethod
    def _over(
        cls,
        dial: Callable[[], Awaitable[tuple[trio.abc.Stream, Peer]]],
        address: str,
        authority: str,
        tls: TlsProvider | None,
        verify_peer: Callable[[Peer], None] | None,
        options: dict[str, Any],
    ) -> Self:
        async def unused() -> trio.abc.Stream:
            raise AssertionError("replaced below")

        channel = cls(unused, verify_peer=verify_peer, **options)
        channel.address = address
        channel._dial = dial
        channel._authority = authority
        channel._scheme = "http" if tls is None else "https"
        return channel

    async def __aenter__(self) -> Self:
        if self._tasks is not None:
            raise RuntimeError(f"the channel to {self.address} is open already")
        self._tasks_manager = trio.open_nursery()
        self._tasks = await self._tasks_manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.finish()
            await trio.lowlevel.cancel_shielded_checkpoint()  # lets the writer say GOAWAY if the transport takes it
        tasks.cancel_scope.cancel()
        try:
            # Our tasks keep their errors, so the nursery is told of none: the block's own error leaves as it is.
            await self._tasks_manager.__aexit__(None, None, None)
        except trio.Cancelled:
            if error is None:
                raise

    def request(
        self,
        name: str,
        cardinality: Cardinality,
        request_type: type[Any],
        reply_type: type[Any],
        *,
        timeout: float | None = None,
        deadline: Any = None,
        metadata: MetadataLike | None = None,
    ) -> ClientStream:
        """What generated stubs call. Sends nothing yet."""
        if deadline is not None:
            raise TypeError("grpclib's Deadline reads a real clock: pass timeout, or use trio's cancel scopes")
        return ClientStream(self, name, cardinality, request_type, reply_type, timeout, metadata)

    async def open_stream(self, method: str, extra: Headers) -> tuple[Http2Stream, Peer]:
        """An HTTP/2 stream with its request headers queued, on a connection that takes it. Raises Unavailable."""
        while True:
            connection = await self._connected()
            await connection.wait_slot()
            stream = connection.open(
                [
                    (":method", "POST"),
                    (":scheme", self._scheme),
                    (":path", method),
                    (":authority", self._authority),
                    ("te", "trailers"),
                    ("content-type", CONTENT_TYPE),
                    ("user-agent", USER_AGENT),
                    *extra,
                ]
            )
            if stream is not None:
                return stream, self._peers[connection]
            if self._connection is connection:  # going away between our look and now
                self._connection = None

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and not connection.going_away:
            return connection
        if self._tasks is None:
            raise FailedPrecondition(f"the channel to {self.address} is not open: use it inside `async with`")
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = _Attempt()
            self._tasks.start_soon(self._connect, attempt)
        await attempt.done.wait()
        if attempt.error is not None:
            if isinstance(attempt.error, AteError):  # a copy: several calls may raise it at once
                raise type(attempt.error)(attempt.error.message, details=attempt.error.details) from attempt.error
            raise Unavailable(f"cannot connect to {self.address}: {attempt.error}") from attempt.error
        assert attempt.connection is not None
        return attempt.connection

    async def _connect(self, attempt: _Attempt) -> None:
        """Connects and then is the connection's task until it ends."""
        connection: Connection | None = None
        try:
            try:
                stream, peer = await self._dial()
                try:
                    if self._verify_peer is not None:
                        self._verify_peer(peer)
                    connection = Connection(stream, client=True, keepalive=self._keepalive, tuning=self._tuning)
                except BaseException:
                    await trio.aclose_forcefully(stream)
                    raise
            except Exception as error:
                if not isinstance(error, AteError | OSError | trio.BrokenResourceError):
                    log.error("connecting failed", exc=error, address=self.address)
                attempt.error = error
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.run)
                # The peer's SETTINGS prove that it speaks HTTP/2 and, under TLS 1.3, that it took our certificate.
                with trio.move_on_after(CONNECT_TIMEOUT):
                    await connection.ready.wait()
                if connection.lost is not None or not connection.ready.is_set():
                    reason = connection.lost or f"no HTTP/2 settings within {CONNECT_TIMEOUT} s"
                    attempt.error = Unavailable(f"cannot connect to {self.address}: {reason}")
                    connection.abort(reason)
                    return
                self._peers[connection] = peer
                self._connection = attempt.connection = connection
                self._attempt = None
                attempt.done.set()
        except Exception as error:
            log.error("a connection failed", exc=error, address=self.address)
            attempt.error = attempt.error or error
        finally:
            if attempt.connection is None and attempt.error is None:
                attempt.error = Unavailable(f"the channel to {self.address} was closed")
            if self._attempt is attempt:
                self._attempt = None
            attempt.done.set()
            if connection is not None:
                if self._connection is connection:
                    self._connection = None
                self._peers.pop(connection, None)
