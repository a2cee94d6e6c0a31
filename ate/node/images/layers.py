"""From a layer blob to an unpacked layer in its place: the step that pulls and imports share. Blocking."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ate.errors import AteError
from ate.node.images import settle
from ate.node.images.disk import ImageDirectory
from ate.node.images.unpack import unpack
from ate.objects.file import explain


def install_layer(
    disk: ImageDirectory, blob: Path, staging: Path, layer: str, diff_id: str, check: Callable[[], None]
) -> None:
    """Unpacks `blob` in `staging` and moves it to where layers lie. `layer` names it in errors."""
    fresh = staging / "layer"
    try:
        fresh.mkdir(mode=0o755)
        with blob.open("rb") as file:
            unpacked = unpack(file, fresh / "fs", layer, diff_id, check)
        (fresh / "size").write_text(str(unpacked.size))
        settle.record(fresh, unpacked.implicit)
        disk.commit_layer(fresh, diff_id)
    except OSError as error:
        raise told(error, disk) from error


def told(error: OSError, disk: ImageDirectory) -> AteError:
    """A failed file call in the image store, in the words of our errors."""
    return explain(error, Path(error.filename) if isinstance(error.filename, str) else disk.root)
