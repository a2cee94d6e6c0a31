"""Machines that lose power: what was not forced to disk is damaged afterwards, and the next boot has another id."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from ate.node import boot
from tests.simulation.world.process import current


class Machines:
    """The nodes' machines; the processes of node `n1` are those whose name ends with it, or are told by `place`."""

    def __init__(self, disk: Path) -> None:
        self._disk = disk
        self._boots: Counter[str] = Counter()
        self._places: dict[str, str] = {}
        self._on_disk: set[int] = set()
        """Inodes that were forced to disk."""

    def place(self, process: str, node: str) -> None:
        self._places[process] = node

    def on(self, node: str) -> list[str]:
        """Names of the processes there."""
        return sorted(name for name, at in self._places.items() if at == node)

    def lose_power(self, node: str) -> None:
        """The processes there have to be killed first."""
        self._boots[node] += 1
        for path in sorted((self._disk / node).rglob("*")):
            if path.is_file() and path.stat().st_ino not in self._on_disk:
                path.write_bytes(b"")

    @contextmanager
    def in_charge(self) -> Iterator[None]:
        """Within, `fsync` and the boot id are these machines'."""

        def fsync(descriptor: int) -> None:
            self._on_disk.add(os.fstat(descriptor).st_ino)

        def boot_id() -> str:
            process = current.get()
            node = self._places.get(process.name, "") if process is not None else ""
            return f"boot-{self._boots[node]}"

        with mock.patch.object(os, "fsync", fsync), mock.patch.object(boot, "boot_id", boot_id):
            yield
