"""Object stores: `file://`, `s3://` and `gs://` behind five calls (put, get, list, delete, copy).

A leaf that every role may import. The control plane deletes and copies whole snapshots, the node agent writes and reads
them. Every failure is an error of `ate.errors` that names the object: Unavailable (store down,
bucket missing, credentials refused), NotFound, ResourceExhausted (disk full).
"""

from ate.objects.download import download
from ate.objects.location import Location, open_location
from ate.objects.prefixes import MANIFEST, copy_prefix, delete_other_snapshots, delete_prefix
from ate.objects.store import ObjectInfo, ObjectStore

__all__ = [
    "MANIFEST",
    "Location",
    "ObjectInfo",
    "ObjectStore",
    "copy_prefix",
    "delete_other_snapshots",
    "delete_prefix",
    "download",
    "open_location",
]
