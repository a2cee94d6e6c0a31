"""Unix sockets in folders of any depth: the kernel takes 107 bytes of path, people's folders are longer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LONGEST = 107


@contextmanager
def socket_path(path: Path | str) -> Iterator[str]:
    """A name of the same file that fits; good inside the block only. FileNotFoundError when its folder is absent."""
    path = Path(path)
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
