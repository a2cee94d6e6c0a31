"""Container images without a container engine: layers and blobs in an OCI layout, as a folder or as one archive.

The same files give the same bytes: entries are sorted, owned by root, of time 0, and no mode follows the umask.
Standard library only, for demos/counter/build_image.py runs with the system's python3 alone.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_TYPES = "application/vnd.oci.image"
_LEVEL = 6
"""9 takes three times as long for one percent."""


@dataclass(frozen=True)
class Layer:
    """`descriptor` names the compressed blob as a manifest does, `diff_id` its plain content as a config does."""

    descriptor: dict[str, Any]
    diff_id: str


class Layout:
    """An OCI image layout in the new folder `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)
        (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))

    def add_layer(self, root: Path) -> Layer:
        """Everything below `root`. FIFOs and devices are refused (ValueError): no image of ours has them."""
        fresh = self._blobs / ".fresh"
        with fresh.open("wb") as file:
            packed = _Digesting(file)
            with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=packed, mtime=0) as zipped:
                plain = _Digesting(zipped)
                with tarfile.open(fileobj=plain, mode="w|") as tar:
                    _add_tree(tar, root)
        fresh.rename(self._blobs / packed.digest().removeprefix("sha256:"))
        media_type = f"{_TYPES}.layer.v1.tar+gzip"
        return Layer({"mediaType": media_type, "digest": packed.digest(), "size": packed.size}, plain.digest())

    def add_image(self, name: str, layers: Sequence[Layer], config: dict[str, Any]) -> str:
        """Makes the layout hold this image alone; its digest. `config` is what containers of it start with.

        `name` is written where containerd looks for it (`ctr images import` takes a full `host/path:tag`) and where
        the OCI specification has it.
        """
        document = {
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPES}.manifest.v1+json",
            "config": self._add_document(document, f"{_TYPES}.config.v1+json"),
            "layers": [layer.descriptor for layer in layers],
        }
        described = self._add_document(manifest, f"{_TYPES}.manifest.v1+json")
        digest: str = described["digest"]
        described["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        (self._folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
        return digest

    def _add_document(self, document: dict[str, Any], media_type: str) -> dict[str, Any]:
        data = json.dumps(document).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self._blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def archive(self, target: Path) -> None:
        """Writes the layout as one tar, which appears at `target` whole."""
        fresh = target.with_name(f".{target.name}.fresh")
        with tarfile.open(fresh, "w") as tar:
            _add_tree(tar, self._folder)
        fresh.rename(target)


def architecture() -> str:
    """This machine's, in the words of images."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def _add_tree(tar: tarfile.TarFile, root: Path) -> None:
    for path in sorted(root.rglob("*")):
        info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
        if info is None or not (info.isdir() or info.isreg() or info.issym() or info.islnk()):
            raise ValueError(f"{path} is no file, folder or link: it cannot be part of an image; remove it")
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = 0
        info.mode = _mode(info)
        if info.isreg():
            with path.open("rb") as file:
                tar.addfile(info, file)
        else:
            tar.addfile(info)


def _mode(info: tarfile.TarInfo) -> int:
    if info.issym() or (info.isdir() and info.mode & stat.S_ISVTX):
        return 0o777 if info.issym() else 0o1777
    return 0o755 if info.isdir() or info.mode & stat.S_IXUSR else 0o644


class _Digesting(io.RawIOBase):
    """Writes through to `target` and knows the sha256 and the size of everything that was written."""

    def __init__(self, target: BinaryIO | gzip.GzipFile) -> None:
        self._target, self._sha256, self.size = target, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        self.size += len(data)
        self._target.write(data)
        return len(data)

    def digest(self) -> str:
        return "sha256:" + self._sha256.hexdigest()
