"""What is done to whole snapshots, which are prefixes with a manifest in them: deleted, copied, all but one deleted."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from typing import Final

from ate.errors import InvalidArgument, NotFound
from ate.objects.location import Location, open_location, open_whole, split
from ate.objects.store import ObjectInfo, side_by_side

MANIFEST: Final = "manifest.json"
"""The commit marker: written last, deleted first."""


async def delete_prefix(uri: str) -> None:
    """Removes everything below `uri/` (never `uri-other/`), unfinished puts included. Nothing there is fine."""
    location = open_location(uri)
    await _delete(location, await location.store.list(partial=True))


async def delete_other_snapshots(prefix_uri: str, keep_uri: str) -> None:
    """Removes each folder right below `prefix_uri` except `keep_uri`, which must be one of them."""
    prefix, keep = split(prefix_uri), split(keep_uri)
    name = keep[2].removeprefix(prefix[2]).strip("/")
    if keep[:2] != prefix[:2] or not keep[2].startswith(f"{prefix[2]}/") or "/" in name:
        raise InvalidArgument(f"{keep_uri} is not a folder right below {prefix_uri}: nothing was deleted")
    location = open_location(prefix_uri)
    found = await location.store.list(partial=True)
    await _delete(location, [entry for entry in found if "/" in entry.key and entry.key.split("/")[0] != name])


async def _delete(location: Location, found: Sequence[ObjectInfo]) -> None:
    # A snapshot that is deleted half is no snapshot: its manifest goes first.
    keys = [entry.key for entry in found]
    manifests = [key for key in keys if key.rpartition("/")[2] == MANIFEST]
    if manifests:
        await location.store.delete(manifests)
    rest = sorted(set(keys) - set(manifests))
    if rest:
        await location.store.delete(rest)


async def copy_prefix(source_uri: str, target_uri: str) -> None:
    """Copies everything below `source_uri`, the manifest last; repeatable. NotFound when nothing is there."""
    source, target = open_location(source_uri), open_location(target_uri)
    found = await source.store.list()
    if not found:
        raise NotFound(f"nothing to copy: {source_uri} holds no objects")
    rest = [entry.key for entry in found if entry.key != MANIFEST]
    await side_by_side(functools.partial(_copy, source, target, key) for key in rest)
    if any(entry.key == MANIFEST for entry in found):
        await _copy(source, target, MANIFEST)


async def _copy(source: Location, target: Location, key: str) -> None:
    (scheme, bucket, from_path), (other_scheme, other_bucket, to_path) = split(source.uri), split(target.uri)
    if (scheme, bucket) == (other_scheme, other_bucket):
        above = open_whole(scheme, bucket)  # which holds both, and copies by itself
        await above.copy(f"{from_path}/{key}".lstrip("/"), f"{to_path}/{key}".lstrip("/"))
        return
    with tempfile.TemporaryFile() as file:
        await source.store.get(key, file.write)
        file.seek(0)
        await target.store.put(key, iter(lambda: file.read(1 << 20), b""))
