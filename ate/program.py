"""How this program starts another copy of itself, from source or as the one-file binary, and how they end together."""

from __future__ import annotations

import ctypes
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
