"""A layer blob as the tar stream in it: gzip, zstd or plain, told apart by their first bytes; digested while read."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from typing import BinaryIO, Final, cast

import zstandard

_CHUNK: Final = 1 << 20
DECOMPRESSION_ERRORS: Final = (gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError)


def open_plain(blob: BinaryIO) -> BinaryIO:
    """The uncompressed bytes of `blob`, read forward; memory stays bounded whatever the blob holds."""
    magic = blob.read(4)
    blob.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=blob, mode="rb"))
    if magic == b"\x28\xb5\x2f\xfd":
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        return cast(BinaryIO, decompressor.stream_reader(blob, read_across_frames=True, closefd=False))
    return blob


class Digested(io.RawIOBase):
    """Reads through to `source` and knows the sha256 of everything that was read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size if size >= 0 else _CHUNK)
        self._digest.update(data)
        return data

    def finish(self) -> str:
        """Reads what is left (padding after the tar's end) and returns `sha256:<hex>` of the whole."""
        while self.read(_CHUNK):
            pass
        return "sha256:" + self._digest.hexdigest()
