"""The one interface behind which sandboxes run, and the values that cross it.

`ate.node.ateom` drives a `SandboxDriver`; `gvisor.py` implements it on runsc. A driver knows processes, images of
memory and mounts of one sandbox; it knows no actors, templates or requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ate.errors import Internal, InvalidArgument


class SandboxError(Internal):
    """A sandbox could not be created, started or restored; nothing of it is left."""


class UnusableImage(InvalidArgument):
    """Files given to `restore` are missing, cut short, or were written by a runtime that this one cannot read."""


class CheckpointFailed(Internal):
    """A checkpoint did not succeed. `sandbox_alive` says whether the sandbox still runs, its state intact."""

    def __init__(self, message: str, *, sandbox_alive: bool) -> None:
        fate = "the sandbox still runs" if sandbox_alive else "the sandbox is gone, with all state since its last save"
        super().__init__(f"{message}; {fate}")
        self.sandbox_alive = sandbox_alive


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one runtime binary can do on this host. `notes` says in words what is missing and what is done instead."""

    runtime: str
    version: str
    platform: str
    flags: frozenset[str]
    checkpoint: bool
    resets_connections: bool
    """TCP connections open at a checkpoint are reset inside and listeners survive; else they make it fail."""
    prepared: bool
    """`create` ahead of time, `restore` into it later."""
    multi_container: bool
    background_pages: bool
    hides_sysctl_net: bool
    """runsc takes any network namespace for the root one on this kernel unless /proc/sys/net is hidden from it."""
    cgroup: str
    """'v1', 'v2' or '' where limits and statistics cannot be had."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stdio:
    """Descriptors of a container's standard output and error. The driver hands them on and never closes them."""

    stdout: int
    stderr: int


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container: its OCI config (from oci_spec.py; the driver fills in network and root) and its root directory."""

    name: str
    config: Mapping[str, Any]
    rootfs: Path
    """Read-only on our side: what the container writes stays in the sandbox and goes into its checkpoint."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox; all ids have the same length. A single container is its root; with more, `pause` is."""

    id: str
    containers: tuple[ContainerSpec, ...]
    netns: Path
    pause: ContainerSpec | None = None
    stdio: Mapping[str, Stdio] = field(default_factory=dict)
    cpu_milli: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """Resource use of a sandbox now: bytes, microseconds of CPU since it was created."""

    memory_bytes: int
    memory_peak_bytes: int
    working_set_bytes: int
    cpu_usec: int


@dataclass(slots=True, eq=False)
class Sandbox:
    """Handle on a sandbox that exists. `pidfd` refers to its process; `started` is false while it is only prepared."""

    spec: SandboxSpec
    pids: tuple[int, ...]
    pidfd: int
    started: bool = False
    ended: bool = False
    warm: bool = False
    """Its network is connected already; all that is left is to load an image."""

    @property
    def id(self) -> str:
        return self.spec.id


class SandboxDriver(Protocol):
    """Cancelling any call leaves no half-made sandbox: what was begun is taken down before Cancelled goes on."""

    async def probe(self) -> Capabilities:
        """What this host and binary can do; measured once, then remembered."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Makes a sandbox that runs nothing yet. Raises SandboxError."""

    async def warm(self, sandbox: Sandbox) -> None:
        """Does ahead of time whatever else a restore into this prepared sandbox would take, where the runtime can."""

    async def start(self, sandbox: Sandbox) -> None:
        """Starts every container. Raises SandboxError; the sandbox is then gone."""

    async def pause(self, sandbox: Sandbox) -> None:
        """Stops every container in its tracks. A paused sandbox can be checkpointed, resumed and terminated."""

    async def resume(self, sandbox: Sandbox) -> None:
        """Undoes `pause`."""

    async def checkpoint(self, sandbox: Sandbox, directory: Path) -> tuple[str, ...]:
        """Saves memory and root file systems into the empty `directory` and ends the sandbox; names of the files.

        Raises CheckpointFailed, which says whether the sandbox still runs. Its remains are for `terminate`.
        """

    async def restore(self, spec: SandboxSpec, directory: Path, prepared: Sandbox | None = None) -> Sandbox:
        """Starts a sandbox from saved files, into `prepared` (created from an equal spec) where given.

        Raises UnusableImage or SandboxError; nothing is left then, the prepared sandbox included.
        """

    async def terminate(self, sandbox: Sandbox) -> None:
        """Ends the sandbox, whatever state it is in, and removes all that it had. Ending one twice is fine."""

    async def stats(self, sandbox: Sandbox) -> Stats | None:
        """A sample, or None where this host cannot measure."""

    async def logs(self, sandbox: Sandbox) -> str:
        """The runtime's own last words about this sandbox, for error messages."""

    async def wait_exit(self, sandbox: Sandbox) -> str:
        """Returns when the sandbox or one of its containers is gone, with a sentence that says so."""
