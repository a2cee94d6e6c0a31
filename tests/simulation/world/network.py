"""The network: addresses that processes serve, in-memory connections between them, and what happens to RPCs on the way.

Connections die with either process. Unary calls may be lost before or after they took effect, come late, or come twice.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import trio
import trio.testing
from grpclib.const import Cardinality

from ate.errors import Unavailable
from ate.rpc import Channel, Peer
from ate.rpc.client_stream import ClientStream
from tests.simulation.world.process import Process, current

Serve = Callable[[trio.abc.Stream, Peer], Awaitable[None]]


@dataclass
class Chaos:
    """Probabilities for each unary call, and seconds."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    latest: float = 0.0


class Network:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chaos = Chaos()
        self.calm = Chaos()
        self._served: dict[str, tuple[Process, Serve]] = {}

    def serve(self, address: str, process: Process, serve: Serve) -> None:
        self._served[address] = (process, serve)

    def listens(self, address: str) -> bool:
        found = self._served.get(address)
        return found is not None and found[0].alive

    async def connect(self, address: str, certificate: bytes | None) -> trio.abc.Stream:
        """OSError when nobody listens there. A role's name alone (`api`) means any of its processes."""
        caller = current.get()
        await trio.sleep(0.0002)
        if caller is not None:
            await caller.gate()
        names = sorted(name for name in self._served if name.startswith(f"{address}/") and self.listens(name))
        process, serve = self._served.get(self.rng.choice(names) if names else address, (None, None))
        if process is None or serve is None or not process.alive:
            raise ConnectionRefusedError(f"nobody listens at {address}")
        ours, theirs = trio.testing.memory_stream_pair()
        process.start_soon(serve, _Link(theirs, process), Peer(f"sim:{caller}", certificate))
        return _Link(ours, caller)

    def channel(self, address: str, certificate: bytes | None = None) -> Channel:
        async def connect() -> trio.abc.Stream:
            return await self.connect(address, certificate)

        channel = _ChaosChannel(connect)
        channel.address = address
        channel.network = self
        return channel


class _Link(trio.abc.HalfCloseableStream):
    """One end of a connection, held by a process: both break when it dies."""

    def __init__(self, stream: Any, process: Process | None) -> None:
        self._stream, self._process = stream, process
        if process is not None:
            process.at_death(self._cut)

    def _cut(self) -> None:
        self._stream.send_stream.close()
        self._stream.receive_stream.close()

    async def _gate(self) -> None:
        if self._process is not None:
            await self._process.gate()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._gate()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._gate()
        await self._stream.send_eof()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = await self._stream.receive_some(max_bytes)
        await self._gate()
        return bytes(data)

    async def aclose(self) -> None:
        self._cut()
        await trio.lowlevel.checkpoint()


class _ChaosChannel(Channel):
    network: Network

    def request(self, name: str, cardinality: Cardinality, *types: Any, **options: Any) -> ClientStream:
        chaos = self.network.chaos
        stream = super().request(name, cardinality, *types, **options)
        if cardinality is Cardinality.UNARY_UNARY and chaos is not self.network.calm:
            stream.__class__ = _ChaosStream
            stream.again = lambda: super(_ChaosChannel, self).request(name, cardinality, *types, **options)  # type: ignore[attr-defined]
            stream.network, stream.chaos = self.network, chaos  # type: ignore[attr-defined]
        return stream


class _ChaosStream(ClientStream):
    network: Network
    chaos: Chaos
    again: Callable[[], ClientStream]

    async def send_message(self, message: Any, *, end: bool = False) -> None:
        rng, chaos = self.network.rng, self.chaos
        if rng.random() < chaos.lose_request:
            raise Unavailable("sim: the request was lost")
        process = current.get()
        if rng.random() < chaos.twice and process is not None and not self._channel.address.startswith("ateom/"):
            process.start_soon(self._repeat, message, rng.random() * chaos.latest)
        if rng.random() < chaos.late:
            await trio.sleep(rng.random() * chaos.latest)
        await super().send_message(message, end=end)

    async def recv_message(self) -> Any:
        reply = await super().recv_message()
        if self.network.rng.random() < self.chaos.late:
            await trio.sleep(self.network.rng.random() * self.chaos.latest)
        if self.network.rng.random() < self.chaos.lose_reply:
            raise Unavailable("sim: the reply was lost")
        return reply

    async def _repeat(self, message: Any, after: float) -> None:
        await trio.sleep(after)
        try:
            async with self.again() as stream:
                await stream.send_message(message, end=True)
                await stream.recv_message()
        except Exception:
            pass
