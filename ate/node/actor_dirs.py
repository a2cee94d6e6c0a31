"""Where an actor's files lie on a node: one folder an actor, by uid, so that a name used again inherits nothing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ate.files import sync_folder, sync_tree
from ate.names import is_uuid
from ate.proto import ateom_pb2


@dataclass(frozen=True, slots=True)
class ActorDirs:
    """The folders of one actor below `<root>/actors/<uid>`."""

    root: Path

    @classmethod
    def of(cls, node_root: Path, actor_uid: str) -> ActorDirs:
        """ValueError when the uid could lead out of the folder."""
        if not is_uuid(actor_uid):
            raise ValueError(f"actor uid {actor_uid!r} is not a UUID")
        return cls(node_root / "actors" / actor_uid)

    @property
    def bundles(self) -> Path:
        return self.root / "bundles"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def restore(self) -> Path:
        return self.root / "restore"

    @property
    def local_checkpoints(self) -> Path:
        return self.root / "local-checkpoint"

    @property
    def durable(self) -> Path:
        return self.root / "durable-dir"

    @property
    def system_info(self) -> Path:
        return self.root / "system-info"

    @property
    def volumes(self) -> Path:
        return self.root / "volumes"

    def reset(self, *, keep_local_checkpoints: bool = True) -> None:
        """Removes what one run left and makes the empty folders for the next. Paused state stays unless told."""
        self.wipe(keep_local_checkpoints=keep_local_checkpoints)
        for path in (self.bundles, self.checkpoint, self.restore, self.durable, self.system_info, self.volumes):
            path.mkdir(parents=True, mode=0o700)

    def wipe(self, *, keep_local_checkpoints: bool = False) -> None:
        """Removes everything, or everything but the paused state."""
        if not self.root.exists():
            return
        for path in self.root.iterdir():
            if keep_local_checkpoints and path == self.local_checkpoints:
                continue
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not any(self.root.iterdir()):
            self.root.rmdir()

    def sync_checkpoint(self) -> None:
        """Forces the checkpoint's files, and their names, to disk: they survive power loss afterwards."""
        sync_tree(self.checkpoint)
        sync_folder(self.root)
        sync_folder(self.root.parent)

    def to_proto(self) -> ateom_pb2.ActorDirs:
        return ateom_pb2.ActorDirs(
            root_dir=str(self.root),
            oci_bundle_dir=str(self.bundles),
            checkpoint_dir=str(self.checkpoint),
            restore_dir=str(self.restore),
            durable_dir_volume_mounts_dir=str(self.durable),
            system_info_volume_roots_dir=str(self.system_info),
            volumes_dir=str(self.volumes),
        )
