"""The built-in pause image: a static program of a few bytes that only waits, so that a node needs no registry.

Its programs are written here by hand, for amd64 and arm64; the image is an index of both and the same bytes on every
node, so its reference is too.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
from pathlib import Path
from typing import Any, Final

import trio

from ate.errors import FailedPrecondition
from ate.node.images.disk import ImageDirectory
from ate.node.images.document import INDEX_TYPES, MANIFEST_TYPES, architecture
from ate.node.images.layers import install_layer

NAME: Final = "ate.local/pause"
_LAYER_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
_CONFIG_TYPE: Final = "application/vnd.oci.image.config.v1+json"
_BASE: Final = 0x400000

# amd64: mov eax, 34 (pause); syscall; jmp back.
# arm64: mov x8, 73 (ppoll, there is no pause); x0..x4 = 0; svc 0; b back. x0 is set again, it holds the result.
_CODE: Final = {
    "amd64": (62, bytes.fromhex("b8220000000f05ebf7")),
    "arm64": (
        183,
        b"".join(
            struct.pack("<I", word)
            for word in (
                0xD2800928,  # mov x8, #73
                0xD2800000,  # mov x0, #0
                0xD2800001,  # mov x1, #0
                0xD2800002,  # mov x2, #0
                0xD2800003,  # mov x3, #0
                0xD2800004,  # mov x4, #0
                0xD4000001,  # svc #0
                0x17FFFFFA,  # b to mov x0
            )
        ),
    ),
}


def program(arch: str) -> bytes:
    """A whole ELF executable: 64-byte header, one program header, the code."""
    machine, code = _CODE[arch]
    size = 64 + 56 + len(code)
    header = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    return header + segment + code


def _layer(arch: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        entry = tarfile.TarInfo("pause")
        content = program(arch)
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def documents() -> tuple[str, list[bytes], dict[str, bytes]]:
    """(digest of the index, every document, layers by their digest), the same everywhere."""
    entries, blobs, layers = [], [], {}
    for arch in sorted(_CODE):
        layer = _layer(arch)
        layers[_digest(layer)] = layer
        config = _json(
            {
                "architecture": arch,
                "os": "linux",
                "config": {"Entrypoint": ["/pause"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST_TYPES[0],
                "config": _descriptor(_CONFIG_TYPE, config),
                "layers": [_descriptor(_LAYER_TYPE, layer)],
            }
        )
        entries.append({**_descriptor(MANIFEST_TYPES[0], manifest), "platform": {"architecture": arch, "os": "linux"}})
        blobs += [config, manifest]
    index = _json({"schemaVersion": 2, "mediaType": INDEX_TYPES[0], "manifests": entries})
    return _digest(index), [*blobs, index], layers


async def build_pause_image(directory: Path) -> str:
    """Puts the pause image into the image store at `directory`; its reference. Cheap when it is there already."""
    return await trio.to_thread.run_sync(_build, directory)


def _build(directory: Path) -> str:
    digest, blobs, layers = documents()
    if architecture() not in _CODE:
        raise FailedPrecondition(
            f"there is no built-in pause image for {architecture()}: name one in the SandboxConfig"
        )
    wanted = _digest(_layer(architecture()))
    disk = ImageDirectory(directory)
    if not disk.layer(wanted).exists():
        with disk.stage() as staging:
            blob = staging / "blob"
            blob.write_bytes(layers[wanted])
            install_layer(disk, blob, staging, f"{wanted} of the pause image", wanted, lambda: None)
    for document in blobs:
        disk.write_blob(document)
    disk.mark_imported(digest)
    return f"{NAME}@{digest}"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}


def _json(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
