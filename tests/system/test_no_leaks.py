"""Promise: two hundred sleeps later there is no netns, veth, mount, cgroup, runsc container, temporary file, socket,
descriptor, thread, process or row more than before, on the host and inside the workers' namespaces.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.system.install import Install, open_install

ACTORS, WORKERS, CYCLES = 8, 2, 200
ROLES = ("api", "atelet", "controller", "router", "identity-broker")


def tree(pid: int) -> set[int]:
    """The process and all below it."""
    found, waiting = set(), [pid]
    while waiting:
        now = waiting.pop()
        found.add(now)
        for task in Path(f"/proc/{now}/task").glob("*/children"):
            with suppress(OSError):
                waiting += [int(child) for child in task.read_text().split()]
    return found


def census(install: Install) -> dict[str, int]:
    """What the install holds of each kind, on the host and inside its workers' namespaces."""
    counts: dict[str, int] = {}
    processes: set[int] = set()
    for role in (*ROLES, "ateom"):
        pids = install.pids(role)
        counts[f"processes of {role}"] = len(pids)
        for pid in pids:
            processes |= tree(pid)
    counts["processes in all"] = len(processes)
    counts["zombies"] = sum(_state(pid) == "Z" for pid in processes)
    for role in ROLES:
        (pid,) = install.pids(role)
        counts[f"descriptors of {role}"] = len(os.listdir(f"/proc/{pid}/fd"))
    for kind in ("net", "mnt", "pid", "ipc", "uts"):
        counts[f"{kind} namespaces"] = len({_namespace(pid, kind) for pid in processes} - {""})
    counts["named network namespaces"] = len(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else 0
    counts["mounts of the host"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    counts["links of the host"] = len(os.listdir("/sys/class/net"))
    counts["unix sockets"] = _sockets("self", str(install.root))
    for at, pid in enumerate(innermost(install)):
        counts[f"descriptors of worker {at}"] = len(os.listdir(f"/proc/{pid}/fd"))
        counts[f"mounts of worker {at}"] = len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())
        counts[f"links of worker {at}"] = len(Path(f"/proc/{pid}/net/dev").read_text().splitlines())
        counts[f"unix sockets of worker {at}"] = _sockets(str(pid), "")
        private = [path.name for path in _private(pid).rglob("*")]
        counts[f"containers of worker {at}"] = sum(name.endswith(".state") for name in private)
        counts[f"private files of worker {at}"] = len(private)
    install_id = (install.root / "install-id").read_text().strip()
    counts["control groups"] = sum(1 for path in Path("/sys/fs/cgroup").rglob(f"*{install_id}*/**") if path.is_dir())
    for folder in sorted(path.name for path in install.root.iterdir() if path.is_dir()):
        if folder != "snapshots":
            counts[f"entries below {folder}"] = sum(1 for _ in (install.root / folder).rglob("*"))
    counts["entries below snapshots/staging"] = sum(1 for _ in (install.root / "snapshots/staging").rglob("*"))
    counts["temporary files"] = sum(1 for _ in Path(install.root.parent / "tmp").rglob("*"))
    counts["temporary files of ours elsewhere"] = len([n for n in os.listdir("/tmp") if re.search(r"ate|runsc", n)])
    with contextlib.closing(sqlite3.connect(f"file:{install.root}/api/store.db?mode=ro", uri=True)) as store:
        for kind, number in store.execute("SELECT kind, count(*) FROM rows GROUP BY kind"):
            counts[f"rows of {kind}"] = number
    return counts


def _private(pid: int) -> Path:
    """The memory file system with runsc's state that only this worker sees."""
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.split()[:2] == ["tmpfs", "ate"]:
            return Path(f"/proc/{pid}/root{fields.split()[4]}")
    raise AssertionError(f"worker {pid} has no private files")


def _sockets(pid: str, below: str) -> int:
    lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()
    return sum(below in line.split()[-1] if below else len(line.split()) == 8 for line in lines[1:])


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _namespace(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def innermost(install: Install) -> list[int]:
    """The real worker process of each ateom: the last of its chain."""
    by_uid: dict[str, int] = {}
    for pid in install.pids("ateom"):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        uid = next(word for word in words if word.startswith("--worker-uid="))
        by_uid[uid] = pid
    return [by_uid[uid] for uid in sorted(by_uid)]


@pytest.mark.slow
async def test_two_hundred_sleeps_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    own = {"TMPDIR": str(tmp_path / "tmp")}
    async with open_install(tmp_path / "root", "--parked-request-budget=120", env=own) as install:
        await install.set_up(replicas=WORKERS)
        names = [f"a{n}" for n in range(ACTORS)]
        for name in names:
            await install.add_actor(name)
        counts = dict.fromkeys(names, 0)

        async def cycles(name: str, number: int) -> None:
            for _ in range(number):
                answer = await install.count(name)
                counts[name] += 1
                assert answer["ram"] == counts[name], f"{name} lost a count"
                await install.suspend(name)

        async def all_of(number: int) -> None:
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(cycles, name, number)

        await all_of(2)  # everything that is made once is made by now
        before = await quiet(lambda: census(install))
        assert before["containers of worker 0"] > 0, "a spare is prepared: the census has to see it"
        await all_of(CYCLES // ACTORS)
        await no_more_than(before, lambda: census(install))
        cached = sum(path.is_file() for path in (install.root / "snapshots/cache").rglob("*"))
        assert cached <= ACTORS * 5, "the cache holds what may be asked for again, not every snapshot ever taken"


async def quiet(take: Callable[[], dict[str, int]]) -> dict[str, int]:
    """A census that stayed the same for two seconds: sandboxes end and are prepared in the background."""
    last = take()
    with trio.fail_after(60):
        while True:
            await trio.sleep(2)
            now = take()
            if now == last:
                return now
            last = now


async def no_more_than(before: dict[str, int], take: Callable[[], dict[str, int]]) -> None:
    """Waits for the background to finish, then compares; caches may hold a little more, never what is counted."""
    more: dict[str, tuple[int, int]] = {}
    with trio.move_on_after(40):
        while True:
            now = take()
            more = {what: (before.get(what, 0), count) for what, count in now.items() if count > before.get(what, 0)}
            if not more:
                return
            await trio.sleep(1)
    raise AssertionError(f"more than before (before, now): {more}")
