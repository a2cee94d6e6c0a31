"""Paused state: a checkpoint's files kept uncompressed in a folder of their node, with a manifest. Plain functions.

The folder appears by rename with everything in it, forced to disk. Files are moved into it one by one before that, so
a save that was killed is finished by repeating it: what is not in the checkpoint folder any more is in the unfinished
one.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from ate.errors import DataLoss
from ate.files import sync_folder, sync_tree
from ate.node.snapshots import sparse
from ate.node.snapshots.manifest import Manifest, StoredObject

_MANIFEST = "manifest.json"


def save(folder: Path, directory: Path, manifest: Manifest) -> Manifest:
    """See SnapshotStore.save_local."""
    names = manifest.all_names()
    unfinished = folder.with_name(f".saving-{folder.name}")
    if folder.exists() and not unfinished.exists() and not any((directory / name).exists() for name in names):
        return load(folder)  # saved before; the answer was lost
    unfinished.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        if (directory / name).exists():
            shutil.move(directory / name, unfinished / name)
        elif not (unfinished / name).exists():
            raise DataLoss(f"snapshot file {directory / name} is missing: the checkpoint did not write it")
    stored = []
    for name in names:
        size, digest = sparse.content_digest(unfinished / name)
        stored.append(StoredObject(name, size, digest))
    manifest = dataclasses.replace(manifest, objects=tuple(stored))
    (unfinished / _MANIFEST).write_bytes(manifest.to_json())
    sync_tree(unfinished)
    if folder.exists():
        shutil.rmtree(folder)
    unfinished.rename(folder)
    for parent in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
        sync_folder(parent)
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other)
    return manifest


def load(folder: Path) -> Manifest:
    """See SnapshotStore.open_local."""
    try:
        data = (folder / _MANIFEST).read_bytes()
    except OSError as error:
        raise DataLoss(
            f"the paused state {folder.name} is not on this node any more ({error.strerror}): "
            "revert the actor to its last good snapshot"
        ) from error
    return Manifest.from_json(data, str(folder / _MANIFEST))


def verify(folder: Path, stored: StoredObject) -> None:
    """DataLoss unless the file has the content that its manifest names."""
    try:
        found = sparse.content_digest(folder / stored.name)
    except FileNotFoundError as error:
        raise sparse.mismatch(stored.name, str(folder), "no such file", "otherwise") from error
    if found != (stored.raw_size, stored.raw_sha256):
        raise sparse.mismatch(stored.name, str(folder), found, (stored.raw_size, stored.raw_sha256))
