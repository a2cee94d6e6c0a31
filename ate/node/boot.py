"""Which boot of the machine this is: what was not forced to disk is only good for the one it was written in."""

from __future__ import annotations

from pathlib import Path


def boot_id() -> str:
    """The kernel's random id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
