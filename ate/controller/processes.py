"""Worker processes of one machine: started detached, found again after a restart of the controller, stopped.

Each worker has a folder `<root>/ateoms/<uid>` with `worker.json`. A worker is its own session and its process is found
by its uid on the command line, so the controller's death orphans none. A folder without a note is what a controller
left that died while it made or removed a worker, and is collected.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import trio

from ate import program
from ate.controller.plan import Process
from ate.errors import Unavailable
from ate.files import write_whole
from ate.log import Logger
from ate.names import new_uid
from ate.unix_path import socket_path

log = Logger("ate.controller")

STOP_GRACE = 5.0
"""Seconds an idle worker gets between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class Note:
    """What worker.json says."""

    uid: str
    pool: str
    sandbox_class: str
    ip: str
    port: int
    epoch: int
    cpu_milli: int = 0
    memory_bytes: int = 0


class Processes:
    """The workers of one install (`root`). `arguments` are flags every worker gets."""

    def __init__(self, root: Path, tunnel_port: int, arguments: Sequence[str]) -> None:
        self._directory = root / "ateoms"
        self._logs = root / "logs"
        self._port, self._arguments = tunnel_port, tuple(arguments)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._pids: dict[str, int] = {}

    def load(self) -> None:
        """Finds the workers a former controller left running."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        for uid, pid in _running().items():
            if (self._directory / uid / "worker.json").exists():
                self._pids[uid] = pid
                log.info("worker process adopted", worker=uid, pid=pid)

    async def collect(self, busy: Set[str] = frozenset()) -> None:
        """Removes folders that belong to no worker: none of `busy`, no note, and no process that others started."""
        for uid in [path.name for path in self._directory.iterdir() if path.is_dir() and path.name not in busy]:
            try:
                self._note(uid)
            except (FileNotFoundError, ValueError, TypeError) as error:
                if uid not in await trio.to_thread.run_sync(_running):
                    log.warning("a worker's folder without a note is removed", worker=uid, error=str(error))
                    await self.stop(uid)
            except OSError:
                pass  # a disk in trouble says nothing about the note

    def all(self) -> Mapping[str, Process]:
        """Every worker with a note, alive or not."""
        found = {}
        for path in sorted(self._directory.glob("*/worker.json")):
            with suppress(ValueError, TypeError, OSError):
                note = self._note(path.parent.name)
                alive = self._alive(note.uid)
                found[note.uid] = Process(note.uid, note.pool, note.ip, note.epoch, alive, alive and self._ready(note))
        return found

    def note(self, uid: str) -> Note:
        return self._note(uid)

    def add(self, pool: str, sandbox_class: str, cpu_milli: int, memory_bytes: int) -> Note:
        """Makes a new worker's folder and starts its process."""
        uid = new_uid()
        note = Note(uid, pool, sandbox_class, self._free_address(uid), self._port, 1, cpu_milli, memory_bytes)
        (self._directory / uid).mkdir(mode=0o700)
        self._write(note)
        self._spawn(note)
        return note

    def last_words(self, uid: str) -> str:
        """The end of the last line the worker logged: mostly why it ended."""
        with suppress(OSError), (self._logs / f"ateom-{uid}.log").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 4096, 0))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1][-1000:] if lines else ""
        return ""

    def restart(self, uid: str) -> Note:
        """Starts a dead worker again under the next epoch, which is noted before the process exists."""
        old = self._note(uid)
        note = Note(**{**asdict(old), "epoch": old.epoch + 1})
        self._write(note)
        self._spawn(note)
        return note

    async def stop(self, uid: str) -> None:
        """Ends the process and removes its folder. Its namespaces take everything in them along."""
        pid = self._pids.pop(uid, None)
        if pid is not None:
            await self._end(pid, uid)
        self._reap(uid)
        self._children.pop(uid, None)
        await trio.to_thread.run_sync(lambda: shutil.rmtree(self._directory / uid, ignore_errors=True))

    async def _end(self, pid: int, uid: str) -> None:
        try:
            # Opened before it is looked at, and signalled by this: a number may pass to a stranger at any moment.
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            for number in (signal.SIGTERM, signal.SIGKILL):
                if not _is_worker(pid, uid):
                    return
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, number)
                with trio.move_on_after(STOP_GRACE):
                    while _is_worker(pid, uid):
                        self._reap(uid)
                        await trio.sleep(0.02)
        finally:
            os.close(process)

    def _alive(self, uid: str) -> bool:
        self._reap(uid)
        pid = self._pids.get(uid)
        return pid is not None and _is_worker(pid, uid)

    def _reap(self, uid: str) -> None:
        child = self._children.get(uid)
        if child is not None:
            child.poll()

    def _ready(self, note: Note) -> bool:
        """Whether its socket accepts: the last thing a starting ateom does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            with socket_path(self._directory / note.uid / "ateom.sock") as name:
                return probe.connect_ex(name) == 0

    def _spawn(self, note: Note) -> None:
        argv = [
            *program.command(), "serve", "--role=ateom", f"--worker-uid={note.uid}",
            f"--tunnel-listen={note.ip}:{note.port}", f"--cpu-milli={note.cpu_milli}",
            f"--memory-bytes={note.memory_bytes}", *self._arguments,
        ]  # fmt: skip
        with (self._logs / f"ateom-{note.uid}.log").open("ab") as output:
            child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/",
                env={**os.environ, "PYTHONPATH": _source_root()},
            )  # fmt: skip
        self._children[note.uid], self._pids[note.uid] = child, child.pid
        log.info("worker process started", worker=note.uid, pid=child.pid, address=f"{note.ip}:{note.port}")

    def _note(self, uid: str) -> Note:
        return Note(**json.loads((self._directory / uid / "worker.json").read_text()))

    def _write(self, note: Note) -> None:
        write_whole(self._directory / note.uid / "worker.json", json.dumps(asdict(note)))

    def _free_address(self, uid: str) -> str:
        """A loopback address of its own for the worker's tunnel, as a pod has its own address."""
        taken = set()
        for path in self._directory.glob("*/worker.json"):
            with suppress(OSError, ValueError, TypeError):
                taken.add(self._note(path.parent.name).ip)
        for attempt in range(1000):
            digest = hashlib.sha256(f"{uid}:{attempt}".encode()).digest()
            ip = f"127.{64 + digest[0] % 64}.{digest[1]}.{1 + digest[2] % 254}"
            if ip in taken:
                continue
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with suppress(OSError):
                    probe.bind((ip, self._port))
                    return ip
        raise Unavailable(f"no loopback address has port {self._port} free: choose another --tunnel-port")


def _source_root() -> str:
    """Lets a child that starts in / import us when we run from a source tree."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))


def _running() -> dict[str, int]:
    """Worker uid -> pid of the outermost process of that worker, from /proc."""
    found: dict[str, int] = {}
    for path in sorted(Path("/proc").glob("[0-9]*/cmdline"), key=lambda p: int(p.parent.name)):
        uid = _worker_uid(path)
        if uid:
            found.setdefault(uid, int(path.parent.name))  # the outermost has the lowest pid: it forked the others
    return found


def _worker_uid(cmdline: Path) -> str:
    with suppress(OSError):
        words = cmdline.read_bytes().split(b"\0")
        if b"--role=ateom" in words:
            return next((w[13:].decode() for w in words if w.startswith(b"--worker-uid=")), "")
    return ""


def _is_worker(pid: int, uid: str) -> bool:
    """Whether `pid` still is that worker; a zombie is not, and neither is another process with a reused number."""
    return _worker_uid(Path(f"/proc/{pid}/cmdline")) == uid
