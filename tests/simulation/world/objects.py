"""Object storage as a dictionary that outlives every process; puts are whole or not at all, any call may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import trio

from ate.errors import NotFound
from ate.objects.store import ObjectInfo
from tests.simulation.world.process import gate


class SimStore:
    """Stands for `ate.objects.file.FileStore`. `bytes_of` is shared by all; `fault(before)` may raise Unavailable."""

    bytes_of: dict[str, bytes]
    fault: Callable[[bool], None]

    def __init__(self, folder: Path) -> None:
        self._prefix = str(folder).rstrip("/") + "/"

    async def _enter(self) -> None:
        await trio.sleep(0.001)
        await gate()
        self.fault(True)

    async def _leave(self) -> None:
        self.fault(False)
        await trio.lowlevel.checkpoint()
        await gate()

    async def put(self, key: str, chunks: Iterable[bytes]) -> None:
        await self._enter()
        self.bytes_of[self._prefix + key] = b"".join(chunks)
        await self._leave()

    async def get(self, key: str, sink: Callable[[bytes], object]) -> None:
        await self._enter()
        data = self.bytes_of.get(self._prefix + key)
        if data is None:
            raise NotFound(f"{self.uri(key)} not found")
        sink(data)
        await self._leave()

    async def list(self, *, partial: bool = False) -> list[ObjectInfo]:
        await self._enter()
        found = [(k.removeprefix(self._prefix), len(v)) for k, v in self.bytes_of.items() if k.startswith(self._prefix)]
        await self._leave()
        return [ObjectInfo(key, size) for key, size in sorted(found)]

    async def delete(self, keys: Sequence[str]) -> None:
        await self._enter()
        for key in keys:
            self.bytes_of.pop(self._prefix + key, None)
        await self._leave()

    async def copy(self, source: str, target: str) -> None:
        await self._enter()
        data = self.bytes_of.get(self._prefix + source)
        if data is None:
            raise NotFound(f"{self.uri(source)} not found")
        self.bytes_of[self._prefix + target] = data
        await self._leave()

    def uri(self, key: str) -> str:
        return f"file://{self._prefix}{key}"
