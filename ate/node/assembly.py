"""Reads what the node agent prepared for an actor (bundles, layers, volumes) into one immutable description.

`template_key` is equal for actors whose sandboxes are interchangeable before they are restored: that is what lets a
worker prepare the next sandbox ahead. Used by ateom.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ate.errors import FailedPrecondition, InvalidArgument
from ate.node.gate import Probe
from ate.node.sandbox.oci_spec import PAUSE
from ate.proto import ateom_pb2


@dataclass(frozen=True, slots=True)
class Bundle:
    """One container: its OCI config, its image's layers, top first, and those of image volumes by mount point."""

    name: str
    config: Mapping[str, Any]
    layers: tuple[Path, ...]
    image_volumes: Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, slots=True)
class Assembly:
    """All that a sandbox is made of. `own_mounts` are mount sources inside the actor's own directory."""

    runsc: Path
    bundles: tuple[Bundle, ...]
    pause: Bundle | None
    probes: tuple[Probe, ...]
    durable_dir: Path
    durable_volumes: tuple[str, ...]
    own_mounts: tuple[Path, ...]
    cpu_milli: int
    memory_bytes: int
    template_key: str


Request = ateom_pb2.RunWorkloadRequest | ateom_pb2.RestoreWorkloadRequest


def read(request: Request) -> Assembly:
    """Raises InvalidArgument for a request without the needed fields, FailedPrecondition for files that are missing."""
    dirs = request.actor_dirs
    for field in ("root_dir", "oci_bundle_dir"):
        if not getattr(dirs, field):
            raise InvalidArgument(f"actor_dirs.{field} is required")
    if not request.runsc_path:
        raise InvalidArgument("runsc_path is required")
    if not request.spec.containers:
        raise InvalidArgument("spec.containers: at least one container is required")
    directory = Path(dirs.oci_bundle_dir)
    bundles = tuple(_bundle(directory, container.name) for container in request.spec.containers)
    pause = _bundle(directory, PAUSE) if len(bundles) > 1 else None
    durable = {m.volume_name for c in request.spec.containers for m in c.durable_dir_volume_mounts}
    root = Path(dirs.root_dir)
    own = {
        Path(mount["source"])
        for bundle in bundles
        for mount in bundle.config.get("mounts", ())
        if mount.get("type") == "bind" and Path(mount["source"]).is_relative_to(root)
    }
    everything = tuple(bundle for bundle in (*bundles, pause) if bundle is not None)
    # The actor's own directory is the only thing in a bundle that differs between actors of one template.
    parts = [
        (b.name, b.config, list(map(str, b.layers)), {at: list(map(str, x)) for at, x in b.image_volumes.items()})
        for b in everything
    ]
    text = json.dumps(parts, sort_keys=True)
    text = text.replace(str(root), "<actor>") + f"|{request.runsc_path}|{request.cpu_milli}|{request.memory_bytes}"
    return Assembly(
        runsc=Path(request.runsc_path),
        bundles=bundles,
        pause=pause,
        probes=tuple(
            Probe(c.name, c.readyz.http_get.path, c.readyz.http_get.port or 80, float(c.readyz.timeout_seconds or 30))
            for c in request.spec.containers
            if c.HasField("readyz")
        ),
        durable_dir=Path(dirs.durable_dir_volume_mounts_dir or root / "durable-dir"),
        durable_volumes=tuple(sorted(durable)),
        own_mounts=tuple(sorted(own)),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        template_key=hashlib.sha256(text.encode()).hexdigest(),
    )


def _bundle(directory: Path, name: str) -> Bundle:
    if "/" in name or name.startswith("."):
        raise InvalidArgument(f"{name!r} is not a container name")
    try:
        config = json.loads((directory / name / "config.json").read_text())
        overlay = json.loads((directory / name / "rootfs-overlay.json").read_text())
        layers = tuple(Path(layer) for layer in overlay["layers"])
        volumes = {at: tuple(map(Path, paths)) for at, paths in overlay.get("imageVolumes", {}).items()}
    except FileNotFoundError as error:
        raise FailedPrecondition(f"the bundle of container {name!r} is incomplete: {error.filename} is missing")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FailedPrecondition(f"the bundle of container {name!r} in {directory / name} cannot be read: {error}")
    return Bundle(name, config, layers, volumes)
