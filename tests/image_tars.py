"""Layers and images made in Python for tests: tars from short descriptions, OCI layouts from layers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ate.node.images.document import architecture


@dataclass(frozen=True)
class Item:
    """One tar entry: `kind` is dir, file, symlink, hardlink, fifo or char; `value` its content or target."""

    name: str
    kind: str = "file"
    value: str = ""
    mode: int = 0o644
    uid: int = 0
    mtime: float = 1000.0
    xattrs: dict[str, str] = field(default_factory=dict)


_TYPES = {
    "dir": tarfile.DIRTYPE,
    "file": tarfile.REGTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
    "char": tarfile.CHRTYPE,
}


def tar(items: Iterable[Item]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for item in items:
            entry = tarfile.TarInfo(item.name)
            entry.type, entry.mode, entry.mtime, entry.uid = _TYPES[item.kind], item.mode, item.mtime, item.uid
            entry.pax_headers = {f"SCHILY.xattr.{name}": value for name, value in item.xattrs.items()}
            if item.kind in ("symlink", "hardlink"):
                entry.linkname = item.value
            content = item.value.encode() if item.kind == "file" else b""
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class BuiltImage:
    """Everything of an image by digest; `layers` are (digest, diff_id), bottom first."""

    digest: str
    blobs: dict[str, bytes]
    manifest: bytes
    layers: list[tuple[str, str]]


def image(layers: Iterable[bytes], *, compress: bool = True, docker: bool = False) -> BuiltImage:
    """An image of tars. `docker` gives it the media types of Docker's schema 2."""
    vendor = "application/vnd.docker" if docker else "application/vnd.oci"
    types = (
        (".distribution.manifest.v2+json", ".container.image.v1+json", ".image.rootfs.diff.tar.gzip")
        if docker
        else (".image.manifest.v1+json", ".image.config.v1+json", ".image.layer.v1.tar+gzip")
    )
    blobs: dict[str, bytes] = {}

    def add(data: bytes, kind: str) -> dict[str, object]:
        blobs[digest(data)] = data
        return {"mediaType": vendor + kind, "digest": digest(data), "size": len(data)}

    described, ids = [], []
    for layer in layers:
        packed = gzip.compress(layer, 1, mtime=0) if compress else layer
        described.append(add(packed, types[2]))
        ids.append((digest(packed), digest(layer)))
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": ["/bin/true"]},
        "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in ids]},
    }
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": vendor + types[0],
            "config": add(json.dumps(config).encode(), types[1]),
            "layers": described,
        }
    ).encode()
    return BuiltImage(digest(manifest), blobs, manifest, ids)


def layout(built: BuiltImage, folder: Path, name: str = "example.com/team/app:v1") -> Path:
    """Writes an OCI layout."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for known, data in {**built.blobs, built.digest: built.manifest}.items():
        (blobs / known.removeprefix("sha256:")).write_bytes(data)
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": built.digest,
        "size": len(built.manifest),
        "annotations": {"org.opencontainers.image.ref.name": name},
    }
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
