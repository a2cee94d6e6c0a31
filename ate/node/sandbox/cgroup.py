"""Control groups of one worker's sandboxes: limits, statistics, and the end of every process in one.

A sandbox's processes are started inside their group (the runtime's command joins it first), so nothing escapes a limit
even for a moment. Version 1 and 2 differ only in this file. Used by the gVisor driver and by the worker's janitor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ate.node.sandbox.driver import Stats

_ROOT: Final = Path("/sys/fs/cgroup")
_V1: Final = ("memory", "cpu", "cpuacct", "pids")
_PERIOD_USEC: Final = 100_000


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """Where groups of one worker lie: `/<name>/…` in every hierarchy in use."""

    version: str
    bases: tuple[Path, ...]

    @classmethod
    def find(cls, name: str) -> CgroupTree:
        """`name` carries the install id and the worker (`ate-<install>/<worker>`). Version '' when unusable here."""
        if (_ROOT / "cgroup.controllers").exists():
            if not {"memory", "cpu"} <= set((_ROOT / "cgroup.controllers").read_text().split()):
                return cls("", ())
            found, candidates = "v2", [_ROOT / name]
        else:
            found, candidates = "v1", [_ROOT / kind / name for kind in _V1 if (_ROOT / kind / "tasks").exists()]
        for base in candidates:
            if not os.access(_existing_parent(base), os.W_OK):
                return cls("", ())
        return cls(found if candidates else "", tuple(candidates))

    def group(self, name: str) -> Cgroup:
        return Cgroup(self.version, tuple(base / name for base in self.bases))

    def remove(self, patience: float = 5.0) -> bool:
        """Kills what is left in any group of this tree and removes them all; False if some could not be removed."""
        deadline = time.monotonic() + patience
        while True:
            left = False
            for base in self.bases:
                if not base.exists():
                    continue
                for group in sorted((path for path in base.rglob("*") if path.is_dir()), reverse=True):
                    left |= not _remove(group)
                left |= not _remove(base)
                with contextlib.suppress(OSError):
                    base.parent.rmdir()  # shared by the install's workers: goes with the last
            if not left or time.monotonic() > deadline:
                return not left
            time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One sandbox's group, as one directory per hierarchy (one in version 2)."""

    version: str
    paths: tuple[Path, ...]

    @property
    def procs_files(self) -> tuple[Path, ...]:
        """Files a process writes its id into to join."""
        return tuple(path / "cgroup.procs" for path in self.paths)

    def create(self, *, cpu_milli: int = 0, memory_bytes: int = 0) -> None:
        """Makes the group with its limits (0: none)."""
        for path in self.paths:
            path.mkdir(parents=True, exist_ok=True)
            if self.version == "v2":
                _enable_controllers(path)
        if self.version == "v2":
            (path,) = self.paths
            if memory_bytes:
                (path / "memory.max").write_text(str(memory_bytes))
            if cpu_milli:
                (path / "cpu.max").write_text(f"{cpu_milli * _PERIOD_USEC // 1000} {_PERIOD_USEC}")
            return
        for path in self.paths:
            if memory_bytes and (path / "memory.limit_in_bytes").exists():
                (path / "memory.limit_in_bytes").write_text(str(memory_bytes))
            if cpu_milli and (path / "cpu.cfs_quota_us").exists():
                (path / "cpu.cfs_period_us").write_text(str(_PERIOD_USEC))
                (path / "cpu.cfs_quota_us").write_text(str(cpu_milli * _PERIOD_USEC // 1000))

    def stats(self) -> Stats | None:
        """A sample, or None before the group exists."""
        try:
            return self._stats_v2() if self.version == "v2" else self._stats_v1()
        except FileNotFoundError:
            return None

    def _stats_v1(self) -> Stats:
        by_kind = {path.relative_to(_ROOT).parts[0]: path for path in self.paths}
        memory = by_kind["memory"]
        usage = int((memory / "memory.usage_in_bytes").read_text())
        return Stats(
            memory_bytes=usage,
            memory_peak_bytes=int((memory / "memory.max_usage_in_bytes").read_text()),
            working_set_bytes=max(0, usage - _field(memory / "memory.stat", "total_inactive_file")),
            cpu_usec=int((by_kind["cpuacct"] / "cpuacct.usage").read_text()) // 1000,
        )

    def _stats_v2(self) -> Stats:
        (path,) = self.paths
        usage = int((path / "memory.current").read_text())
        peak = path / "memory.peak"
        return Stats(
            memory_bytes=usage,
            memory_peak_bytes=int(peak.read_text()) if peak.exists() else 0,
            working_set_bytes=max(0, usage - _field(path / "memory.stat", "inactive_file")),
            cpu_usec=_field(path / "cpu.stat", "usage_usec"),
        )

    def out_of_memory_kills(self) -> int:
        """How often the kernel killed a process of the group for want of memory."""
        for path in self.paths:
            for name in ("memory.events", "memory.oom_control"):
                if (path / name).exists():
                    return _field(path / name, "oom_kill")
        return 0

    def pids(self) -> frozenset[int]:
        """Processes in the group, as numbered in our own PID namespace."""
        found: set[int] = set()
        for file in self.procs_files:
            with contextlib.suppress(OSError):
                found.update(int(line) for line in file.read_text().split())
        return frozenset(found - {0})

    def kill(self) -> None:
        """SIGKILL to every process in the group."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Removes the group; False while processes are in it."""
        return all([_remove(path) for path in self.paths])


def _remove(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with contextlib.suppress(OSError):
            for line in (path / "cgroup.procs").read_text().split():
                if int(line) > 0:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(line), signal.SIGKILL)
        return False
    return True


def _enable_controllers(group: Path) -> None:
    """Version 2: every group above must pass the controllers on, which one that holds processes may not.

    In a container the top group holds our own processes: they move to a group beside the sandboxes' first.
    """
    for parent in reversed(list(group.relative_to(_ROOT).parents)):
        control = _ROOT / parent / "cgroup.subtree_control"
        if {"cpu", "memory"} <= set(control.read_text().split()):
            continue
        try:
            control.write_text("+cpu +memory +pids")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            own = _ROOT / "ateom"
            own.mkdir(exist_ok=True)
            for pid in (_ROOT / parent / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (own / "cgroup.procs").write_text(pid)
            control.write_text("+cpu +memory +pids")


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _existing_parent(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
