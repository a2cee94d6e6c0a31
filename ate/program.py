"""What every process of this program is: how it starts another copy of itself, ends with it, and collects garbage."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

from ate.errors import FailedPrecondition

_PR_SET_PDEATHSIG = 1


def command() -> list[str]:
    """The words before a subcommand. The one-file binary's launcher names itself in ATE_BINARY."""
    if getattr(sys, "frozen", False):
        return [os.environ.get("ATE_BINARY") or sys.executable]
    return [sys.executable, "-m", "ate"]


def die_with_parent() -> None:
    """Has the kernel kill this process when the one that started it ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise FailedPrecondition("the process that started this one is gone already")


def collect_rarely() -> None:
    """Cyclic garbage is looked for every 10,000 objects instead of 700: a server makes few cycles and many objects.

    Gave 10-20 % more wake-ups a second in bench/control_plane.py on two cores.
    """
    gc.set_threshold(10_000, 20, 50)
