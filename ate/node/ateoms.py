"""The ateoms of this node, as the atelet sees them: one unix socket a worker, and what their errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from ate.errors import NOT_STARTED, InvalidArgument, Unavailable, with_reason
from ate.names import is_uuid
from ate.proto.ateom_grpc import AteomStub
from ate.rpc import Channel, ChannelPool, open_channel_pool
from ate.unix_path import socket_path

PATIENCE = 10.0
"""Seconds to wait for a worker that is just starting (or starting again) to open its socket."""


class Ateoms:
    """Use `open_ateoms`."""

    def __init__(self, root: Path, channels: ChannelPool) -> None:
        self._root, self._channels = root, channels

    async def stub(self, worker_uid: str) -> AteomStub:
        """The driver of a worker of this node. InvalidArgument for a uid that is none."""
        if not is_uuid(worker_uid):
            raise InvalidArgument(f"target_ateom_uid: {worker_uid!r} is not a UUID")
        path = self.socket(worker_uid)
        return AteomStub(await self._channels.get(worker_uid, lambda: Channel.unix(path)))

    def socket(self, worker_uid: str) -> Path:
        return self._root / "ateoms" / worker_uid / "ateom.sock"

    async def wait(self, worker_uid: str) -> None:
        """Returns once the worker's socket accepts; Unavailable (nothing started) when it does not within PATIENCE."""
        with trio.move_on_after(PATIENCE):
            while not await self.alive(worker_uid):
                await trio.sleep(0.02)
            return
        raise with_reason(Unavailable(f"worker {worker_uid} does not answer on this node"), NOT_STARTED)

    async def alive(self, worker_uid: str) -> bool:
        """Whether a process listens on the worker's socket."""
        try:
            with socket_path(self.socket(worker_uid)) as name:
                stream = await trio.open_unix_socket(name)
        except OSError:
            return False
        await stream.aclose()
        return True


@asynccontextmanager
async def open_ateoms(root: Path) -> AsyncIterator[Ateoms]:
    """Closes every channel at the end."""
    async with open_channel_pool() as channels:
        yield Ateoms(root, channels)
