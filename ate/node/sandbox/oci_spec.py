"""Builds the OCI config of a container from a template's container and its image's config. Pure functions.

atelet calls `build` when it writes a bundle; the sandbox driver calls `place` to put that config into one sandbox. The
rules (user, capabilities, mounts, precedence of environment and argv) are those of the reference, section 4.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ate.errors import InvalidArgument

PAUSE: Final = "pause"
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEFAULT_CAPABILITIES: Final = ("CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE")
CPU_PERIOD_USEC: Final = 100_000

_TYPE: Final = "io.kubernetes.cri.container-type"
_SANDBOX_ID: Final = "io.kubernetes.cri.sandbox-id"
_NAME: Final = "io.kubernetes.cri.container-name"


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory or file shown to the container."""

    source: Path
    destination: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The parts of an OCI image's config that decide how it is run."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    working_dir: str = ""

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> ImageConfig:
        """From the image's config JSON (`{"config": {"Entrypoint": …}}`); absent and null mean empty."""
        inner = config.get("config") or {}
        return cls(
            entrypoint=tuple(inner.get("Entrypoint") or ()),
            cmd=tuple(inner.get("Cmd") or ()),
            env=tuple(inner.get("Env") or ()),
            working_dir=inner.get("WorkingDir") or "",
        )


@dataclass(frozen=True, slots=True)
class Process:
    """What a template's container says about its process; `env` in order, later entries win."""

    name: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    add_capabilities: tuple[str, ...] = ()
    drop_capabilities: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = field(default=())


def argv(process: Process, image: ImageConfig) -> tuple[str, ...]:
    """`command` replaces ENTRYPOINT and CMD, `args` replaces CMD. InvalidArgument when nothing is left to run."""
    result = process.command + process.args if process.command else image.entrypoint + (process.args or image.cmd)
    if not result:
        raise InvalidArgument(
            f"container {process.name!r} has nothing to run: its image has no ENTRYPOINT and no CMD; set `command`"
        )
    return result


def environment(process: Process, image: ImageConfig) -> list[str]:
    """Template over image over a default PATH, each name once, in order of first appearance."""
    merged = {"PATH": DEFAULT_PATH}
    for entry in image.env:
        name, _, value = entry.partition("=")
        merged[name] = value
    merged.update(process.env)
    return [f"{name}={value}" for name, value in merged.items()]


def capabilities(add: Iterable[str], drop: Iterable[str]) -> list[str]:
    """Defaults, less `drop`, plus `add`; names with or without CAP_, any case; ALL works in `drop` only."""
    dropped = {_capability(name) for name in drop}
    kept = [] if "CAP_ALL" in dropped else [name for name in DEFAULT_CAPABILITIES if name not in dropped]
    return sorted({*kept, *(_capability(name) for name in add)})


def _capability(name: str) -> str:
    upper = name.upper()
    return upper if upper.startswith("CAP_") else f"CAP_{upper}"


def build(process: Process, image: ImageConfig, *, cpu_milli: int = 0, memory_bytes: int = 0) -> dict[str, Any]:
    """The OCI config of one container, without what only the worker knows (network, root, annotations): see `place`."""
    return _config(
        argv(process, image),
        environment(process, image),
        image.working_dir or "/",
        capabilities(process.add_capabilities, process.drop_capabilities),
        process.mounts,
        cpu_milli,
        memory_bytes,
    )


def build_pause(image: ImageConfig | None = None) -> dict[str, Any]:
    """The OCI config of the container that holds a sandbox together: it has no capabilities and only sleeps."""
    image = image or ImageConfig()
    command = image.entrypoint + image.cmd or ("/pause",)
    return _config(command, [f"PATH={DEFAULT_PATH}"], "/", [], (), 0, 0)


def _config(
    args: Sequence[str],
    env: list[str],
    cwd: str,
    caps: list[str],
    mounts: Sequence[Mount],
    cpu_milli: int,
    memory_bytes: int,
) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if cpu_milli:
        resources["cpu"] = {"quota": cpu_milli * CPU_PERIOD_USEC // 1000, "period": CPU_PERIOD_USEC}
    if memory_bytes:
        resources["memory"] = {"limit": memory_bytes}
    return {
        "ociVersion": "1.0.2",
        "hostname": "runsc",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": list(args),
            "env": env,
            "cwd": cwd,
            "capabilities": {kind: caps for kind in ("bounding", "effective", "permitted")},
            "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
            "noNewPrivileges": False,
            "terminal": False,
        },
        "root": {"path": "rootfs", "readonly": False},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            *(
                {
                    "destination": mount.destination,
                    "type": "bind",
                    "source": str(mount.source),
                    "options": ["rbind", "ro" if mount.read_only else "rw"],
                }
                for mount in mounts
            ),
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
            "resources": resources,
        },
    }


def place(
    config: Mapping[str, Any],
    *,
    name: str,
    rootfs: Path,
    netns: Path,
    sandbox_id: str = "",
    root: bool,
    moved: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A config put into one sandbox: its root directory, its network namespace, and its part there.

    `sandbox_id` names the root container for the others. `moved` maps mount sources to those used instead.
    """
    placed = copy.deepcopy(dict(config))
    placed["root"] = {**placed.get("root", {}), "path": str(rootfs)}
    linux = placed.setdefault("linux", {})
    others = [entry for entry in linux.get("namespaces", ()) if entry["type"] != "network"]
    linux["namespaces"] = [*others, {"type": "network", "path": str(netns)}]
    # We place the runtime's processes into a cgroup of ours; limits in the config would make it look for its own.
    linux.pop("cgroupsPath", None)
    annotations = dict(placed.get("annotations") or {})
    annotations[_TYPE] = "sandbox" if root else "container"
    annotations[_NAME] = name
    if not root:
        annotations[_SANDBOX_ID] = sandbox_id
    for mount in placed.get("mounts", ()):
        source = mount.get("source", "")
        if moved and source in moved:
            mount["source"] = moved[source]
    placed["annotations"] = annotations
    return placed
