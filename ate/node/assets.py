"""Runtime binaries: fetched by URL, checked by sha256, kept by content, so that a snapshot finds the runtime it needs.

A SandboxConfig without assets means the node's own runsc; a copy of it is kept by content as well, because the
package may be upgraded while snapshots taken with the old one sleep.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
import zstandard

from ate import objects
from ate.errors import DataLoss, FailedPrecondition, InvalidArgument
from ate.log import Logger
from ate.node.images.archive import extract
from ate.node.images.compression import DECOMPRESSION_ERRORS
from ate.proto import atelet_pb2 as pb

log = Logger("ate.node")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MAX_ASSET_BYTES = 8 << 30
"""As the reference (section 4)."""
NODE_SCHEME = "node://"


@dataclass(frozen=True)
class Runtime:
    """The files of a sandbox runtime on this node, and how a manifest names them."""

    sandbox_class: str
    pause_image: str
    paths: Mapping[str, Path]
    sources: Mapping[str, tuple[str, str]]
    """name -> (url, sha256)"""

    @property
    def runsc(self) -> Path:
        """The gVisor binary, wherever the asset's form put it."""
        if "runsc" in self.paths:
            return self.paths["runsc"]
        return self.paths["gvisor"] / "runsc"


def architecture() -> str:
    """This machine's architecture in the words of a SandboxConfig."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


class Assets:
    """Assets below `directory`, fetched on demand. `node_runsc` names the node's own binary (empty: from PATH)."""

    def __init__(self, directory: Path, node_runsc: str = "") -> None:
        self._directory = directory
        self._node_runsc = node_runsc
        self._node_digest: tuple[tuple[str, int, int], str] | None = None
        self._lock = trio.Lock()

    async def ensure(self, wanted: pb.SandboxAssets) -> Runtime:
        """The runtime a config (or a snapshot's manifest) names, for this architecture.

        InvalidArgument for a class or architecture it has nothing for, DataLoss for content of another digest.
        """
        if wanted.sandbox_class != "gvisor":
            raise InvalidArgument(f"this node runs sandboxes of class gvisor, not {wanted.sandbox_class!r}")
        arch = architecture()
        if wanted.assets and arch not in wanted.assets:  # looked up first: a map of messages makes what it is asked for
            raise InvalidArgument(f"the SandboxConfig has no assets for {arch}")
        named = wanted.assets[arch].files if wanted.assets else {}
        files = {name: (file.url, file.sha256) for name, file in named.items()}
        async with self._lock:
            if not files:
                files = {"runsc": await self._keep_node_runsc()}
            paths = {name: await self._fetch(name, url, sha256) for name, (url, sha256) in files.items()}
        runtime = Runtime(wanted.sandbox_class, wanted.pause_image, paths, files)
        if "runsc" not in paths and "gvisor" not in paths:
            raise InvalidArgument("the SandboxConfig has no asset named gvisor or runsc")
        if not runtime.runsc.is_file():
            raise InvalidArgument(f"the gvisor asset {files['gvisor'][0]} holds no file runsc")
        return runtime

    async def _fetch(self, name: str, url: str, sha256: str) -> Path:
        folder = self._directory / "sha256" / sha256
        target = folder / name
        if target.exists():
            return target
        if url.startswith(NODE_SCHEME):
            kept = await self._keep_node_runsc()
            if kept[1] != sha256:
                raise FailedPrecondition(
                    f"the snapshot was taken with {url} (sha256 {sha256}), which this node has no more: "
                    "name that runsc as an asset of the SandboxConfig"
                )
            return folder / "runsc"
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".fetch-") as staging:
            fresh = Path(staging) / "file"
            await objects.download(url, fresh, max_bytes=MAX_ASSET_BYTES)
            found = await trio.to_thread.run_sync(_digest, fresh)
            if found != sha256:
                raise DataLoss(f"asset {name} from {url} has sha256 {found}, not {sha256} as the SandboxConfig says")
            await trio.to_thread.run_sync(_install, fresh, name, target)
        log.info("asset fetched", name=name, url=url, sha256=sha256)
        return target

    async def _keep_node_runsc(self) -> tuple[str, str]:
        """(url, sha256) of the node's own runsc, a copy of it kept by content."""
        path = self._node_runsc or shutil.which("runsc")
        if not path or not Path(path).is_file():
            raise FailedPrecondition(
                "no runsc on this node: install the package (Debian: `apt-get install runsc`), name it with --runsc, "
                "or give the SandboxConfig an asset"
            )
        status = Path(path).stat()
        stamp = (path, status.st_mtime_ns, status.st_size)
        if self._node_digest is None or self._node_digest[0] != stamp:
            self._node_digest = (stamp, await trio.to_thread.run_sync(_digest, Path(path)))
        sha256 = self._node_digest[1]
        target = self._directory / "sha256" / sha256 / "runsc"
        if not target.exists():
            await trio.to_thread.run_sync(_install, Path(path), "runsc", target)
        return NODE_SCHEME + path, sha256


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _install(source: Path, name: str, target: Path) -> None:
    """Puts an asset in place whole or not at all; `gvisor` is a zstd or plain tar that is unpacked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".install-") as staging:
        fresh = Path(staging) / name
        if name == "gvisor":
            fresh.mkdir()
            _unpack(source, fresh)
        else:
            shutil.copyfile(source, fresh)
            fresh.chmod(0o755)
        if not target.exists():
            fresh.rename(target)


def _unpack(source: Path, into: Path) -> None:
    try:
        with source.open("rb") as raw:
            magic = raw.read(4)
            raw.seek(0)
            if magic == b"\x28\xb5\x2f\xfd":
                with (
                    zstandard.ZstdDecompressor().stream_reader(raw) as plain,
                    tarfile.open(fileobj=plain, mode="r|") as tar,
                ):
                    extract(tar, into, "the gvisor asset")
            else:
                with tarfile.open(fileobj=raw, mode="r:*") as tar:
                    extract(tar, into, "the gvisor asset")
    except (tarfile.TarError, *DECOMPRESSION_ERRORS) as error:
        raise InvalidArgument(f"the gvisor asset is no usable tar archive: {error}")
