"""How this program starts another copy of itself, whether it runs from source or as the one-file binary."""

from __future__ import annotations

import os
import sys


def command() -> list[str]:
    """The words before a subcommand. The one-file binary's launcher names itself in ATE_BINARY."""
    if getattr(sys, "frozen", False):
        return [os.environ.get("ATE_BINARY") or sys.executable]
    return [sys.executable, "-m", "ate"]
