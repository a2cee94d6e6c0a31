"""Which runtime wrote a memory image, for which containers: a small file beside it, checked before it is restored.

Some runtimes take an image that they cannot read and run it with corrupt memory; so it is refused here. Used by ateom.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ate.node.sandbox.driver import Capabilities, UnusableImage

FILE: Final = "sandbox.json"


def write(directory: Path, runtime: Capabilities, containers: Sequence[str]) -> None:
    """Writes FILE into a checkpoint's directory."""
    (directory / FILE).write_text(json.dumps(_facts(runtime, containers)))


def check(directory: Path, runtime: Capabilities, containers: Sequence[str]) -> None:
    """Raises UnusableImage when the image in `directory` was not written by this runtime for these containers."""
    path = directory / FILE
    try:
        wrote = json.loads(path.read_text())
    except FileNotFoundError:
        raise UnusableImage(f"the snapshot in {directory} has no {FILE}; it cannot be restored")
    except ValueError as error:
        raise UnusableImage(f"{path} cannot be read: {error}")
    for what, reads in _facts(runtime, containers).items():
        if wrote.get(what) != reads:
            raise UnusableImage(
                f"the snapshot was taken with {what} {wrote.get(what)}, which cannot be restored with {reads}"
            )


def _facts(runtime: Capabilities, containers: Sequence[str]) -> dict[str, object]:
    return {
        "runtime": runtime.runtime,
        "version": runtime.version,
        "platform": runtime.platform,
        "containers": list(containers),
    }
