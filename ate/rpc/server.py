"""The gRPC server: connections from listeners or any trio stream, calls on them, and a drain that loses none.

Roles make one `Server` with their services and run `serve` in a nursery. Health and reflection are always on. It knows
calls only as `call.ServerCall` and bytes only through `connection.Connection`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import trio
from grpclib.const import Handler
from h2.errors import ErrorCodes

from ate.errors import Unavailable
from ate.log import Logger
from ate.rpc.call import ServerCall
from ate.rpc.connection import LINGER, Connection, Keepalive, Tuning
from ate.rpc.handlers import Interceptor
from ate.rpc.health import Health
from ate.rpc.listen import Peer, RpcListener
from ate.rpc.reflection import reflection_services
from ate.rpc.stream import Http2Stream

log = Logger("ate.rpc")

MAX_MESSAGE_BYTES = 16 << 20
ACCEPT_PAUSE = 0.1  # after accept failed for want of descriptors: others free them meanwhile


class IServable(Protocol):
    """A service: an instance of a class derived from a generated `XBase`."""

    def __mapping__(self) -> Mapping[str, Handler]: ...


class Server:
    """Serves `services`; see `serve`, `serve_stream` and `drain`.

    `max_deadline` (seconds) bounds every call, also one without a deadline of its own. `health` is settable a service:
    `server.health.set("ateapi.Control", serving=False)`.
    """

    def __init__(
        self,
        services: Sequence[IServable],
        *,
        interceptors: Sequence[Interceptor] = (),
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        keepalive: Keepalive | None = Keepalive(interval=60.0, timeout=20.0),  # noqa: B008 - a frozen value
        max_deadline: float | None = None,
        tuning: Tuning = Tuning(),  # noqa: B008 - a frozen value
    ) -> None:
        self.draining = trio.Event()
        names = sorted({path.split("/")[1] for service in services for path in service.__mapping__()})
        self.health = Health(names)
        reflection = reflection_services([*names, "grpc.health.v1.Health"])
        self._handlers: dict[str, Handler] = {}
        for service in (*services, self.health, *reflection):
            self._handlers.update(service.__mapping__())
        self._interceptors = tuple(interceptors)
        self._limit = max_message_bytes
        self._keepalive = keepalive
        self._max_deadline = max_deadline
        self._tuning = tuning
        self._connections: dict[Connection, dict[int, ServerCall]] = {}
        self._acceptors = trio.CancelScope()
        self._drained = trio.Event()
        self._changed = trio.lowlevel.ParkingLot()  # a connection ended

    async def serve(
        self,
        listeners: Sequence[RpcListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accepts until cancelled or drained, then closes the listeners. Use with `nursery.start`."""
        try:
            async with trio.open_nursery() as connections:
                with self._acceptors:
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            acceptors.start_soon(self._accept, listener, connections)
                        task_status.started()
                await self._drained.wait()
                connections.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):  # closing a listener never waits for a peer
                for listener in listeners:
                    await listener.aclose()

    async def serve_stream(self, stream: trio.abc.Stream, peer: Peer) -> None:
        """Serves one connection over any trio stream until either side ends it."""
        calls: dict[int, ServerCall] = {}

        def on_request(http: Http2Stream) -> None:
            # Calls that were reset still run their clean-up: a client that opens and resets without end is refused.
            if len(calls) >= 2 * self._tuning.max_streams:
                http.reset(ErrorCodes.REFUSED_STREAM)
                return
            call = ServerCall(http, peer, self.draining, limit=self._limit, max_deadline=self._max_deadline)
            calls[http.id] = call
            nursery.start_soon(self._run_call, call, http.id, calls)

        def on_reset(http: Http2Stream) -> None:
            if http.id in calls:
                calls[http.id].scope.cancel()

        connection = Connection(
            stream,
            client=False,
            keepalive=self._keepalive,
            tuning=self._tuning,
            on_request=on_request,
            on_reset=on_reset,
        )
        if self.draining.is_set():
            await trio.aclose_forcefully(stream)
            return
        self._connections[connection] = calls
        try:
            async with trio.open_nursery() as nursery:
                await connection.run()
        finally:
            del self._connections[connection]
            self._changed.unpark_all()

    async def drain(self, grace: float) -> None:
        """Stops in order: no new connections or calls, NOT_SERVING, calls in flight get `grace` seconds, GOAWAY last.

        A call still running after `grace` ends with UNAVAILABLE. `serve` returns afterwards.
        """
        if self.draining.is_set():
            await self._drained.wait()
            return
        self.draining.set()
        self.health.shut_down()
        self._acceptors.cancel()
        try:
            for connection, calls in list(self._connections.items()):
                for call in list(calls.values()):
                    if call.method.startswith(
                        "/grpc.reflection."
                    ):  # an idle tool's stream holds nothing worth waiting for
                        call.kill("the server is shutting down")
                connection.drain()
            with trio.move_on_after(grace):
                await self._wait_closed()
            for calls in list(self._connections.values()):
                for call in list(calls.values()):
                    call.kill("the server is shutting down and the call outlasted its grace")
            with trio.move_on_after(2 * LINGER):
                await self._wait_closed()
            for connection in list(self._connections):
                connection.abort("the server is shutting down")
        finally:
            self._drained.set()

    async def _wait_closed(self) -> None:
        while self._connections:
            await self._changed.park()

    async def _accept(self, listener: RpcListener, connections: trio.Nursery) -> None:
        while True:
            try:
                raw = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                log.warning("cannot accept a connection", exc=error, address=listener.address)
                await trio.sleep(ACCEPT_PAUSE)
                continue
            connections.start_soon(self._serve_accepted, listener, raw)

    async def _serve_accepted(self, listener: RpcListener, raw: trio.SocketStream) -> None:
        try:
            stream, peer = await listener.secure(raw)
            await self.serve_stream(stream, peer)
        except (Unavailable, OSError) as error:  # the peer's doing: a failed handshake, gone before we looked
            log.info("connection refused", address=listener.address, reason=str(error))
        except Exception as error:
            log.error("a connection failed", exc=error, address=listener.address)
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(raw)

    async def _run_call(self, call: ServerCall, stream_id: int, calls: dict[int, ServerCall]) -> None:
        try:
            await call.run(self._handlers.get(call.method), self._interceptors)
        finally:
            del calls[stream_id]
