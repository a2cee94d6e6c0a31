"""Unpacks an archive that is no layer (an image layout, a runtime's tar): plain files, folders and links inside it.

Nothing of it may lead out of the target; owners, times and special files are not taken over. Python 3.11 as Debian has
it knows no `filter=` for tarfile, so the rules are ours, the same as for layers.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from ate.errors import InvalidArgument
from ate.node.images.tree import Escape, Tree


def extract(tar: tarfile.TarFile, into: Path, what: str, check: Callable[[], None] = lambda: None) -> None:
    """Unpacks into the folder `into`; `what` names the archive. InvalidArgument for an entry that leads out."""
    tree = Tree(into)
    for entry in tar:
        check()
        try:
            parts = tree.locate(entry.name)
            if not parts:
                continue
            path = tree.path(parts)
            if entry.isdir():
                tree.make_folder(parts)
            elif entry.issym():
                tree.remove(parts)
                os.symlink(entry.linkname, path)
            elif entry.islnk():
                target = tree.locate(entry.linkname)
                if target != parts:
                    tree.remove(parts)
                    os.link(tree.path(target), path, follow_symlinks=False)
            elif entry.isreg():
                tree.remove(parts)
                source = tar.extractfile(entry)
                assert source is not None  # of a regular file
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
                    os.fchmod(file.fileno(), entry.mode & 0o755 | 0o600)
        except Escape as error:
            raise InvalidArgument(f"{what}: entry {entry.name!r} is refused: {error}") from error
        except (NotADirectoryError, FileNotFoundError, FileExistsError, IsADirectoryError, UnicodeEncodeError) as error:
            raise InvalidArgument(f"{what}: entry {entry.name!r} cannot be made: {error}") from error
