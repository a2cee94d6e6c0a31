"""Image documents as the OCI image spec 1.1 and Docker's schema 2 have them: index, manifest, config. Pure parsing."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ate.errors import FailedPrecondition, InvalidArgument
from ate.node.images.reference import DIGEST

INDEX_TYPES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MAX_DOCUMENT: Final = 8 << 20
"""Bytes; registries refuse manifests above 4 MiB."""
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A blob: `digest` is `sha256:<hex>`, `size` in bytes."""

    digest: str
    size: int
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ImageManifest:
    config: Descriptor
    layers: tuple[Descriptor, ...]
    """Bottom first."""


def architecture() -> str:
    return _MACHINES.get(platform.machine(), platform.machine())


def load(data: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what} is no JSON document: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"{what} is no JSON object")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    return document.get("mediaType") in INDEX_TYPES or ("manifests" in document and "layers" not in document)


def descriptor(value: Any, what: str) -> Descriptor:
    try:
        digest, size = value["digest"], value["size"]
        annotations = value.get("annotations") or {}
        if not DIGEST.fullmatch(digest) or not isinstance(size, int) or size < 0 or not isinstance(annotations, dict):
            raise ValueError(f"digest {digest!r}, size {size!r}")
        return Descriptor(digest, size, annotations)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidArgument(f"{what} names a blob in no usable way: {error}") from error


def choose(index: Mapping[str, Any], what: str) -> Descriptor:
    """The manifest for this machine; FailedPrecondition when the image is not built for it."""
    entries = index.get("manifests")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidArgument(f"{what} is an index without manifests")
    wanted, found = architecture(), []
    for entry in entries:
        built_for = entry.get("platform") or {}
        name = f"{built_for.get('os', 'linux')}/{built_for.get('architecture', wanted)}"
        found.append(name)
        if name == f"linux/{wanted}":
            return descriptor(entry, what)
    raise FailedPrecondition(f"{what} is built for {', '.join(sorted(found))}, this node is linux/{wanted}")


def manifest(document: Mapping[str, Any], what: str) -> ImageManifest:
    layers = document.get("layers")
    if not isinstance(layers, list):
        raise InvalidArgument(f"{what} is no image manifest: it has no layers")
    return ImageManifest(descriptor(document.get("config"), what), tuple(descriptor(layer, what) for layer in layers))


def diff_ids(config: Mapping[str, Any], parsed: ImageManifest, what: str) -> tuple[str, ...]:
    """Digests of the unpacked layers, bottom first; as many as there are layers."""
    try:
        found = config["rootfs"]["diff_ids"]
        if not all(isinstance(item, str) and DIGEST.fullmatch(item) for item in found):
            raise ValueError("a diff_id is no sha256 digest")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{what} has no usable rootfs.diff_ids in its config: {error}") from error
    if len(found) != len(parsed.layers):
        raise InvalidArgument(f"{what} has {len(parsed.layers)} layers but {len(found)} diff_ids")
    return tuple(found)
