"""Promise: `make demo` tells its whole story, again and again, also after everything was killed in the middle of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.system.install import REPOSITORY


def demo(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / "demos/counter/demo.py"), f"--root={root}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
    )


def told(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "all held" in output
    return output


def everything_of(root: Path) -> list[int]:
    """Every process whose command line names the root, sandboxes included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(root).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


def test_the_story_holds_twice_in_a_row_and_after_a_kill_of_everything(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    output = told(demo(root))
    for phase in ("cold boot and golden snapshot", "suspend", "request that woke the sleeping actor"):
        assert phase in output
    assert not everything_of(root), "nothing runs on after the demo"
    told(demo(root))
    interrupted = demo(root)
    assert interrupted.stdout is not None
    for line in interrupted.stdout:
        if "suspend actor ann" in line:
            break
    time.sleep(0.3)
    for pid in everything_of(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    interrupted.kill()
    interrupted.wait()
    told(demo(root))
    assert not everything_of(root)
