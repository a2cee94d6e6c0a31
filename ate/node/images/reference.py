"""Image references: `registry/repository[:tag]@sha256:<hex>`. Pure; the digest is what counts, a tag is ignored."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ate.errors import InvalidArgument

DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_PATH: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_DOCKER_HUB: Final = "registry-1.docker.io"


@dataclass(frozen=True, slots=True)
class Reference:
    """`registry` is host[:port], `repository` the path there, `digest` `sha256:<hex>`."""

    text: str
    registry: str
    repository: str
    digest: str


def parse(text: str) -> Reference:
    """InvalidArgument unless the reference is pinned by digest."""
    name, found, digest = text.partition("@")
    if not found or not DIGEST.fullmatch(digest):
        raise InvalidArgument(f"image {text!r} is not pinned: write name@sha256:<64 hex digits>")
    host, slash, path = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, path = _DOCKER_HUB, name
    if host in ("docker.io", "index.docker.io"):
        host = _DOCKER_HUB
    head, colon, _ = path.rpartition(":")
    path = head if colon else path
    if host == _DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    if not _HOST.fullmatch(host) or not _PATH.fullmatch(path):
        raise InvalidArgument(f"image {text!r} has no usable name: write registry/repository@sha256:<64 hex digits>")
    return Reference(text, host, path, digest)


def is_loopback(registry: str) -> bool:
    host = registry.rsplit(":", 1)[0] if not registry.endswith("]") else registry
    return host in ("localhost", "[::1]") or bool(re.fullmatch(r"127(\.[0-9]{1,3}){3}", host))
