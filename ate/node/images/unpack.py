"""One layer's tar stream into a folder that overlayfs can use as a lower layer. Pure file work, run in a thread.

Kept: owners, modes, mtimes, extended attributes, hard links, FIFOs. Left out: device nodes (a sandbox has its own /dev)
and `trusted.*` attributes (they would steer overlayfs). OCI whiteouts become overlayfs ones after everything else: they
speak only of layers below, so neither their place in the tar nor a sibling of the same name matters. Anything that
leads out of the layer is refused as InvalidArgument that names the layer and the entry.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from ate.errors import DataLoss, InvalidArgument
from ate.log import Logger
from ate.node.images.compression import DECOMPRESSION_ERRORS, Digested, open_plain
from ate.node.images.tree import Escape, Tree

log = Logger("ate.node")

_CHUNK: Final = 1 << 20
_MAX_HEADER: Final = 1 << 20
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_RESERVED: Final = ".wh..wh."
_XATTR: Final = "SCHILY.xattr."


class _Entry(tarfile.TarInfo):
    """Refuses headers that would have to be held in memory whole and are too long to be honest."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        special = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
        if self.type in (*special, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK) and self.size > _MAX_HEADER:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(tar)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """`size` is the bytes of all files, `implicit` the folders that no entry of the layer named."""

    size: int
    implicit: frozenset[tuple[str, ...]]


def unpack(blob: BinaryIO, into: Path, layer: str, diff_id: str, check: Callable[[], None] = lambda: None) -> Unpacked:
    """Unpacks into the new folder `into`.

    `layer` names it in errors, `check` is called often and may raise to stop. DataLoss when the stream is damaged or is
    not that of `diff_id`; the caller drops the folder then.
    """
    into.mkdir(mode=0o755)
    into.chmod(0o755)
    plain = Digested(open_plain(blob))
    unpacker = _Unpacker(into, layer)
    try:
        source = cast(BinaryIO, plain)
        with tarfile.open(fileobj=source, mode="r|", bufsize=256 << 10, tarinfo=_Entry, errorlevel=2) as tar:
            while (entry := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep every entry otherwise
                check()
                unpacker.add(tar, entry, check)
        unpacker.finish()
        found = plain.finish()
    except (tarfile.TarError, *DECOMPRESSION_ERRORS) as error:
        raise DataLoss(f"layer {layer} is damaged: {type(error).__name__}: {error}") from error
    if found != diff_id:
        raise DataLoss(f"layer {layer} unpacks to {found}, the image's config says {diff_id}")
    return Unpacked(unpacker.written, frozenset(unpacker.implicit))


class _Unpacker:
    def __init__(self, root: Path, layer: str) -> None:
        self._tree = Tree(root)
        self._layer = layer
        self._whiteouts: dict[tuple[str, ...], None] = {}
        self._opaque: dict[tuple[str, ...], None] = {}
        self._folder_times: dict[tuple[str, ...], int] = {}
        self.written = 0

    @property
    def implicit(self) -> set[tuple[str, ...]]:
        return self._tree.implicit

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, check: Callable[[], None]) -> None:
        try:
            parts = self._tree.locate(entry.name)
            base = parts[-1] if parts else ""
            if base.startswith(_WHITEOUT):
                self._note_whiteout(parts)
            else:
                self._make(tar, entry, parts, check)
        except Escape as error:
            raise InvalidArgument(f"layer {self._layer}: entry {entry.name!r} is refused: {error}") from error
        except (NotADirectoryError, FileExistsError, IsADirectoryError, UnicodeEncodeError) as error:
            raise InvalidArgument(f"layer {self._layer}: entry {entry.name!r} cannot be made: {error}") from error
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise InvalidArgument(
                f"layer {self._layer}: entry {entry.name[:80]!r}… has a name that is too long"
            ) from error

    def _note_whiteout(self, parts: tuple[str, ...]) -> None:
        """Whatever type the entry has: some tools write whiteouts as hard links."""
        folder, base = parts[:-1], parts[-1]
        if base == _OPAQUE:
            self._opaque[folder] = None
        elif not base.startswith(_RESERVED):  # the rest of .wh..wh. is the bookkeeping of aufs
            hidden = base.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise Escape("it is a whiteout of no name")
            self._whiteouts[(*folder, hidden)] = None

    def _make(
        self, tar: tarfile.TarFile, entry: tarfile.TarInfo, parts: tuple[str, ...], check: Callable[[], None]
    ) -> None:
        tree, path = self._tree, self._tree.path(parts)
        if not parts and not entry.isdir():
            raise Escape("it would replace the root")
        if entry.isdir():
            tree.make_folder(parts)
            self._folder_times[parts] = _nanoseconds(entry)
        elif entry.islnk():
            self._link(entry, parts)
            return  # its attributes are those of the file it names
        elif entry.issym():
            if not entry.linkname:
                raise Escape("it is a symbolic link to nothing")
            tree.remove(parts)
            os.symlink(entry.linkname, path)
        elif entry.isfifo():
            tree.remove(parts)
            os.mkfifo(path)
        elif entry.isdev():
            log.debug("device node of an image is left out", layer=self._layer, entry=entry.name)
            return
        elif entry.isreg():
            tree.remove(parts)
            self._write(tar, entry, path, check)
        else:
            raise Escape(f"its type {entry.type!r} is unknown")
        os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
        self._set_attributes(entry, path)
        if not entry.issym():
            os.chmod(path, stat.S_IMODE(entry.mode))  # after chown, which clears setuid
        if not entry.isdir():
            time = _nanoseconds(entry)
            os.utime(path, ns=(time, time), follow_symlinks=False)

    def _write(self, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str, check: Callable[[], None]) -> None:
        source = tar.extractfile(entry)
        assert source is not None  # of a regular file
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            while chunk := source.read(_CHUNK):
                check()
                view = memoryview(chunk)
                while view:
                    view = view[file.write(view) :]
                self.written += len(chunk)
        if os.stat(path).st_size != entry.size:
            raise tarfile.ReadError(f"{entry.name} is cut short")

    def _link(self, entry: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        target = self._tree.locate(entry.linkname)
        kind = self._tree.kind(target)
        if kind in (0, stat.S_IFDIR):
            raise Escape(f"it is a hard link to {entry.linkname!r}, which is no file of this layer")
        if target == parts:
            return
        self._tree.remove(parts)
        os.link(self._tree.path(target), self._tree.path(parts), follow_symlinks=False)

    def _set_attributes(self, entry: tarfile.TarInfo, path: str) -> None:
        for key, value in entry.pax_headers.items():
            name = key.removeprefix(_XATTR)
            if name == key or not (name.startswith("user.") or name == "security.capability"):
                continue
            try:
                os.setxattr(path, name, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
            except OSError as error:
                log.warning(
                    "extended attribute is left out", layer=self._layer, entry=entry.name, attribute=name, error=error
                )

    def finish(self) -> None:
        tree = self._tree
        for parts in self._whiteouts:
            if tree.kind(parts) == stat.S_IFDIR:
                # Removed below and made anew here: nothing of the one below shows through.
                self._opaque[parts] = None
        for parts in self._whiteouts:
            # In a folder that shows nothing of those below the kernel would list the whiteout as a file.
            if tree.kind(parts) == 0 and not any(parts[:depth] in self._opaque for depth in range(len(parts))):
                self._hide(parts)
        for parts in self._opaque:
            if tree.kind(parts) == stat.S_IFDIR:
                os.setxattr(tree.path(parts), "trusted.overlay.opaque", b"y")
        for parts, time in self._folder_times.items():
            if tree.kind(parts) == stat.S_IFDIR:
                os.utime(tree.path(parts), ns=(time, time), follow_symlinks=False)

    def _hide(self, parts: tuple[str, ...]) -> None:
        try:
            located = self._tree.locate("/".join(parts))  # a later entry may have removed the folder
        except Escape:
            return  # or put something else in its place: then nothing below shows anyway
        if located == parts:
            os.mknod(self._tree.path(parts), stat.S_IFCHR, os.makedev(0, 0))


def _nanoseconds(entry: tarfile.TarInfo) -> int:
    # A float has not enough digits; pax headers carry the exact time as text.
    whole, _, fraction = entry.pax_headers.get("mtime", str(int(entry.mtime))).partition(".")
    try:
        time = int(whole) * 10**9 + int(fraction[:9].ljust(9, "0") or "0")
    except ValueError:
        time = 0
    return max(-(1 << 62), min(time, (1 << 62) - 1))
