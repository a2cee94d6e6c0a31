"""Snapshots on their way between a node's disk and object storage: compressed, checked by digest, cached, restored.

The node agent is the only user. A snapshot is a prefix (or, while an actor is paused, a folder) with files and a
manifest; the manifest is written last and is what makes the snapshot exist.
"""

from ate.node.snapshots.manifest import AssetSource, Manifest, StoredObject
from ate.node.snapshots.store import SnapshotStore

__all__ = ["AssetSource", "Manifest", "SnapshotStore", "StoredObject"]
