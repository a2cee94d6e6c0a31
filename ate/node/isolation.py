"""Puts a worker process into PID, mount and network namespaces of its own, like a pod in the small.

    outer (host)  ->  init (pid 1 of the new namespace: reaps)  ->  worker (returns from here)
      \\-> janitor (host): removes the worker's control groups when all of the others are gone

Each dies with its parent (PR_SET_PDEATHSIG), and the kernel kills a PID namespace with its init, so a kill -9 of any of
them ends every process inside, sandboxes included; mounts, network namespaces and links go with the last of them. Only
control groups have no owner the kernel knows, hence the janitor. Called by the ateom role before anything else: one
thread only, before trio.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ate.errors import FailedPrecondition
from ate.node.network import interfaces as kernel

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_libc = ctypes.CDLL(None, use_errno=True)


def enter_worker_namespaces(
    *,
    keep_open: Sequence[int] = (),
    pid_namespace: bool = True,
    at_end: Callable[[], None] | None = None,
) -> None:
    """Returns in the worker only; the processes around it end with `os._exit`, with the worker's status.

    `keep_open`: descriptors (listeners opened in the host's network) that the worker keeps; the others close them.
    `pid_namespace=False` where a container already gives one: then this process is the reaper of all its descendants.
    `at_end` runs in the janitor once all others are gone. Needs root; raises FailedPrecondition with a second thread.
    """
    if threading.active_count() != 1:
        raise FailedPrecondition("a worker must enter its namespaces before any second thread is started")
    lifeline_read, lifeline_write = os.pipe()  # write ends live in outer, init and worker: end of file = all gone
    if at_end is not None and os.fork() == 0:
        _janitor(lifeline_read, lifeline_write, at_end)
    if pid_namespace:
        kernel.unshare(kernel.CLONE_NEWPID)
        alive_read, alive_write = os.pipe()  # tells init whether outer died before the death signal was set
        init = os.fork()
        if init != 0:
            _close_all_but(lifeline_write, alive_write)
            _forward_signals(init)
            os._exit(_wait_for(init))
        os.close(alive_write)
        _die_with_parent(alive_read)
    else:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWNET)
    # Slave, not private: volumes that the node agent mounts later must be seen here; ours are never seen outside.
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    if pid_namespace:
        kernel.mount("proc", "/proc", "proc")
    alive_read, alive_write = os.pipe()
    worker = os.fork()
    if worker != 0:
        _close_all_but(lifeline_write, alive_write)
        _forward_signals(worker)
        status = _wait_for(worker)
        if not pid_namespace:
            _kill_descendants()
        os._exit(status)
    os.close(alive_write)
    _die_with_parent(alive_read)
    os.close(lifeline_read)
    os.set_inheritable(lifeline_write, False)
    for descriptor in keep_open:
        os.set_inheritable(descriptor, False)
    kernel.set_up("lo")


def _die_with_parent(alive: int) -> None:
    """SIGKILL when the parent ends. `alive` reads end of file if it already has."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    ended, _, _ = select.select([alive], [], [], 0)
    if ended:
        os._exit(1)
    os.close(alive)


def _forward_signals(child: int) -> None:
    def forward(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)


def _wait_for(child: int) -> int:
    """Reaps every process that ends, at once, until `child` does; its exit status, 128 + n for a signal."""
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            return 1
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _kill_descendants() -> None:
    """Ends all that was left to this subreaper, generation by generation."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.wait()


def _close_all_but(*kept: int) -> None:
    edges = sorted({2, *kept})
    for low, high in zip(edges, [*edges[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, min(high, 1 << 16))


def _janitor(lifeline: int, other_end: int, at_end: Callable[[], None]) -> None:
    """Waits, outside of everything the worker has, for its end; then tidies up and ends."""
    os.close(other_end)
    _close_all_but(lifeline)
    os.setsid()  # a signal to the worker's whole group must not reach it
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    os.read(lifeline, 1)
    time.sleep(0.01)
    try:
        at_end()
    finally:
        os._exit(0)
