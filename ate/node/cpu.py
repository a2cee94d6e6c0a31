"""What programs can see of this machine's CPU: its architecture and feature flags."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Sorted; those that every processor of the machine has (x86 "flags", Arm "Features"), and "arch:<name>"."""
    common: set[str] | None = None
    for line in cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            common = set(value.split()) if common is None else common & set(value.split())
    return sorted({f"arch:{platform.machine()}", *(common or ())})
