"""The one way to run another program: output kept, time bounded, failure told with the program's own words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import trio

from ate.errors import DeadlineExceeded, Internal


class CommandFailed(Internal):
    """A program ended with a non-zero status. `status` and `stderr` hold what it said."""

    def __init__(self, argv: Sequence[str], status: int, stderr: str) -> None:
        tail = stderr.strip()[-2000:]
        super().__init__(f"{argv[0]} {argv[1] if len(argv) > 1 else ''} ended with status {status}: {tail}")
        self.status, self.stderr = status, stderr


async def run(
    argv: Sequence[str], *, timeout: float = 60.0, stdin: bytes = b"", check: bool = True, **options: Any
) -> subprocess.CompletedProcess[bytes]:
    """Runs `argv` and returns its output; raises CommandFailed or DeadlineExceeded (seconds).

    Cancellation kills the program before it is raised further. `options` go to trio.run_process.
    """
    with trio.move_on_after(timeout):
        done = await trio.run_process(
            list(argv), stdin=stdin, capture_stdout=True, capture_stderr=True, check=False, **options
        )
        if check and done.returncode != 0:
            raise CommandFailed(argv, done.returncode, done.stderr.decode("utf-8", "replace"))
        return done
    raise DeadlineExceeded(f"{' '.join(argv[:2])} did not end within {timeout:g} s")
