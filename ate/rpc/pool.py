"""Channels to many peers, opened when first asked for and closed together.

A channel's reader lives in the task that opened it, so each gets a task of its own here, whoever asks for it first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from ate.rpc.client import Channel


class ChannelPool:
    """Use `open_channel_pool`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._channels: dict[str, tuple[Channel, trio.CancelScope]] = {}
        self._opening = trio.Lock()

    async def get(self, key: str, make: Callable[[], Channel]) -> Channel:
        """The channel of `key`; `make` gives a new one (not yet entered) where there is none."""
        async with self._opening:
            if key not in self._channels:
                channel, scope = make(), trio.CancelScope()
                await self._nursery.start(self._hold, channel, scope)
                self._channels[key] = (channel, scope)
            return self._channels[key][0]

    def drop(self, key: str) -> None:
        """Closes the channel of `key`, calls on it included; the next `get` opens another."""
        if key in self._channels:
            self._channels.pop(key)[1].cancel()

    async def _hold(self, channel: Channel, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            async with channel:
                task_status.started()
                await trio.sleep_forever()


@asynccontextmanager
async def open_channel_pool() -> AsyncIterator[ChannelPool]:
    """Closes every channel at the end."""
    async with trio.open_nursery() as nursery:
        yield ChannelPool(nursery)
        nursery.cancel_scope.cancel()
