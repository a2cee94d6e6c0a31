"""What tests with real sandboxes share: the runsc builds found here, root file systems, and counts of what is left."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import rootfs

pytest.register_assert_rewrite("tests.system.api_table", "tests.system.api_peer")

_NEWEST = (Path(__file__).parents[2] / "build/runsc", Path("/usr/local/bin/runsc-new"))
_PACKAGED = Path("/usr/bin/runsc")
RUNSC_BUILDS = [path for path in (_PACKAGED, next(filter(Path.exists, _NEWEST), _NEWEST[0])) if path.exists()]
"""Debian's, and the newest that `make test` (packaging/build-runsc.sh) or somebody by hand has built."""


@pytest.fixture(params=RUNSC_BUILDS or [None], ids=lambda path: path.name if path else "none")
def runsc_binary(request: pytest.FixtureRequest) -> Path:
    """Every runsc build of this machine in turn."""
    if request.param is None or os.geteuid() != 0:
        pytest.skip("needs root and runsc (apt-get install runsc/bookworm-backports, or packaging/build-runsc.sh)")
    path: Path = request.param
    return path


@pytest.fixture(scope="session")
def python_root() -> Path:
    return rootfs.python()


@pytest.fixture(scope="session")
def busybox_root() -> Path:
    return rootfs.busybox()


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory with a short path: sockets lie in it."""
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="ate", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def actor_address_to_ourselves() -> Iterator[None]:
    """One test at a time may own 169.254.17.1/30 in the host's network."""
    with open("/run/lock/ate-tests-actor-address", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def leftovers(needle: str) -> dict[str, list[str]]:
    """Processes, mounts, links, network namespaces and control groups of this machine whose names carry `needle`."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if needle in line:
                processes.append(line)
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if needle in line]
    links = [path.name for path in Path("/sys/class/net").iterdir() if needle[:8] in path.name]
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/ate-*") if needle in str(path)]
    groups += [str(path) for path in Path("/sys/fs/cgroup").glob("ate-*") if needle in str(path)]
    return {"processes": processes, "mounts": mounts, "links": links, "cgroups": groups}


NOTHING: dict[str, list[str]] = {"processes": [], "mounts": [], "links": [], "cgroups": []}
