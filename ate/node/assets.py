"""Runtime binaries: fetched by URL, checked by sha256, kept by content, so that a snapshot finds the runtime it needs.

A SandboxConfig without assets means the node's own runsc; a copy of it is kept by content as well, because the
package may be upgraded while snapshots taken with the old one sleep. A damaged copy would fail every actor of this
runtime for ever, so it is on disk before it has its name, and looked at again at its first use after a start.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trio
import zstandard

from ate import objects
from ate.errors import DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from ate.files import make_folders, sync_folder, sync_tree, write_whole
from ate.log import Logger
from ate.node.images.archive import extract
from ate.node.images.compression import DECOMPRESSION_ERRORS
from ate.proto import atelet_pb2 as pb

log = Logger("ate.node")

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MAX_ASSET_BYTES = 8 << 30
"""As the reference (section 4)."""
NODE_SCHEME = "node://"
_TREE = "gvisor"
"""The one asset that is an archive."""
_STAGING = ".fetch-"


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
        return self.paths[_TREE] / "runsc"


def architecture() -> str:
    """This machine's architecture in the words of a SandboxConfig."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


class Assets:
    """Assets below `directory`, fetched on demand. `node_runsc` names the node's own binary (empty: from PATH).

    One process at a time uses a directory: what a killed one left unfinished is removed here.
    """

    def __init__(self, directory: Path, node_runsc: str = "") -> None:
        self._directory = directory
        self._node_runsc = node_runsc
        self._node_digest: tuple[str, _Stamp, str] | None = None
        self._checked: dict[Path, _Stamp] = {}
        """Files whose content this process has seen to be right, and as what it saw them."""
        self._lock = trio.Lock()
        for left in directory.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)

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
        if "runsc" not in paths and _TREE not in paths:
            raise InvalidArgument("the SandboxConfig has no asset named gvisor or runsc")
        if not runtime.runsc.is_file():
            raise InvalidArgument(f"the gvisor asset {files[_TREE][0]} holds no file runsc")
        return runtime

    async def _fetch(self, name: str, url: str, sha256: str) -> Path:
        target = self._path(name, sha256)
        if await self._is_whole(target, sha256):
            return target
        if url.startswith(NODE_SCHEME):
            kept = await self._keep_node_runsc()
            if kept[1] != sha256:
                raise FailedPrecondition(
                    f"the snapshot was taken with {url} (sha256 {sha256}), which this node has no more: "
                    "name that runsc as an asset of the SandboxConfig"
                )
            return self._path("runsc", sha256)
        with self._staging() as fresh:
            await objects.download(url, fresh, max_bytes=MAX_ASSET_BYTES)
            found = await trio.to_thread.run_sync(_digest, fresh)
            if found != sha256:
                raise DataLoss(f"asset {name} from {url} has sha256 {found}, not {sha256} as the SandboxConfig says")
            await trio.to_thread.run_sync(_install, fresh, target)
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
        stamp = _stamp(Path(path))
        if self._node_digest is None or self._node_digest[:2] != (path, stamp):
            self._node_digest = (path, stamp, await trio.to_thread.run_sync(_digest, Path(path)))
        sha256 = self._node_digest[2]
        target = self._path("runsc", sha256)
        if not await self._is_whole(target, sha256):
            with self._staging() as fresh:
                await trio.to_thread.run_sync(shutil.copyfile, path, fresh)
                if await trio.to_thread.run_sync(_digest, fresh) != sha256:
                    raise Unavailable(f"{path} was replaced while it was copied: try again")
                await trio.to_thread.run_sync(_install, fresh, target)
        return NODE_SCHEME + path, sha256

    async def _is_whole(self, target: Path, sha256: str) -> bool:
        """Whether this asset is kept, and rightly. A file is read for that once in the life of this process."""
        if target.name == _TREE:
            return target.is_dir() and _mark(target).exists()
        try:
            stamp = _stamp(target)
            if self._checked.get(target) == stamp:
                return True
            found = await trio.to_thread.run_sync(_digest, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            found = f"none, it cannot be read: {error}"
        if found == sha256:
            self._checked[target] = stamp
            return True
        log.warning("an asset is damaged on this node's disk and is replaced", path=str(target), found=found)
        return False

    def _path(self, name: str, sha256: str) -> Path:
        return self._directory / "sha256" / sha256 / name

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """A path for a new file, in a folder of its own that goes with the block."""
        make_folders(self._directory, mode=0o755)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=_STAGING) as folder:
            yield Path(folder) / "file"


_Stamp = tuple[int, int, int]


def _stamp(path: Path) -> _Stamp:
    """Inode, time and size: the same for as long as nobody writes or replaces the file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mark(tree: Path) -> Path:
    """What says that a tree is whole: it has no digest of its own to say so, its archive had."""
    return tree.with_name(f"{tree.name}.whole")


def _install(fresh: Path, target: Path) -> None:
    """Puts an asset in place, whole and on disk before it is named; `gvisor` is a zstd or plain tar that is unpacked.

    Takes the place of what is there, which who runs it keeps.
    """
    is_tree = target.name == _TREE
    if is_tree:
        archive, fresh = fresh, fresh.with_name("tree")
        fresh.mkdir()
        _unpack(archive, fresh)
        archive.unlink()
    else:
        fresh.chmod(0o755)
    sync_tree(fresh.parent)
    make_folders(target.parent, mode=0o755)
    if is_tree and target.exists():
        target.rename(fresh.with_name("old"))
    fresh.rename(target)
    sync_folder(target.parent)
    if is_tree:
        write_whole(_mark(target), "")


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
