"""A file as a canonical stream of what is in it: zero runs cost nothing, so a 2 GiB RAM file counts what it holds.

The stream is int64 size, then records (int64 offset, int64 length, bytes) of runs of non-zero blocks, then int64 -1;
all little-endian. It is canonical in the content (blocks of 64 KiB, runs cut at multiples of 1 MiB, all-zero blocks
left out whether they are holes or not), so its sha256 identifies the content, and hashing holes is free. Stored objects
hold it as the reference's format does: `ATESPRSE`, uint32 version 2, the stream in zstd.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from ate.errors import DataLoss

MAGIC: Final = b"ATESPRSE" + struct.pack("<I", 2)
_BLOCK: Final = 64 << 10
_WINDOW: Final = 1 << 20
_ZEROS: Final = bytes(_BLOCK)
_RECORD: Final = struct.Struct("<qq")
_INT: Final = struct.Struct("<q")
_END: Final = _INT.pack(-1)
_LEVEL: Final = 1


def stream(descriptor: int) -> Iterator[bytes]:
    """The canonical stream of an open file, in pieces of up to 1 MiB."""
    size = os.fstat(descriptor).st_size
    yield _INT.pack(size)
    for window in _windows(descriptor, size):
        data = _pread(descriptor, min(_WINDOW, size - window), window)
        for start, end in _runs(data):
            yield _RECORD.pack(window + start, end - start)
            yield data[start:end] if (start, end) != (0, len(data)) else data
    yield _END


def _windows(descriptor: int, size: int) -> Iterator[int]:
    """Offsets of the 1 MiB windows that the file system keeps data for."""
    at = 0
    while at < size:
        try:
            data = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        hole = os.lseek(descriptor, data, os.SEEK_HOLE)
        window = max(at, data // _WINDOW * _WINDOW)
        while window < hole:
            yield window
            window += _WINDOW
        at = window


def _runs(data: bytes) -> Iterator[tuple[int, int]]:
    start = -1
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        if block == (_ZEROS if len(block) == _BLOCK else bytes(len(block))):
            if start >= 0:
                yield start, at
                start = -1
        elif start < 0:
            start = at
    if start >= 0:
        yield start, len(data)


def _pread(descriptor: int, count: int, offset: int) -> bytes:
    data = os.pread(descriptor, count, offset)
    while len(data) < count:
        more = os.pread(descriptor, count - len(data), offset + len(data))
        if not more:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        data += more
    return data


def content_digest(path: Path) -> tuple[int, str]:
    """(size, hex sha256 of the canonical stream) of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for piece in stream(file.fileno()):
            digest.update(piece)
        return os.fstat(file.fileno()).st_size, digest.hexdigest()


class Compressor:
    """Iterates over the stored form of an open file; knows both digests and the stored size afterwards."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.raw = hashlib.sha256()
        self.stored = hashlib.sha256()
        self.stored_size = 0

    def __iter__(self) -> Iterator[bytes]:
        compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        yield self._count(MAGIC)
        for piece in stream(self._descriptor):
            self.raw.update(piece)
            if compressed := compressor.compress(piece):
                yield self._count(compressed)
        yield self._count(compressor.flush())

    def _count(self, data: bytes) -> bytes:
        self.stored.update(data)
        self.stored_size += len(data)
        return data


def restore(source: BinaryIO, target: int, raw_size: int) -> str:
    """Writes the file a stored object stands for to an empty open file; hex sha256 of its canonical stream.

    ValueError for anything that is not exactly one canonical stream of `raw_size`.
    """
    if source.read(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin with ATESPRSE version 2")
    digest = hashlib.sha256()
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(source, closefd=False) as plain:
            for offset, data in _records(plain, digest, raw_size):
                view = memoryview(data)
                while view:
                    written = os.pwrite(target, view, offset)
                    view, offset = view[written:], offset + written
    except zstandard.ZstdError as error:
        raise ValueError(f"its zstd stream is broken: {error}") from error
    os.ftruncate(target, raw_size)
    return digest.hexdigest()


def _records(plain: BinaryIO, digest: hashlib._Hash, raw_size: int) -> Iterator[tuple[int, bytes]]:
    def take(count: int) -> bytes:
        data = plain.read(count)
        while len(data) < count:
            more = plain.read(count - len(data))
            if not more:
                raise ValueError("it ends too early")
            data += more
        digest.update(data)
        return data

    if (size := _INT.unpack(take(8))[0]) != raw_size:
        raise ValueError(f"it stands for {size} bytes, not {raw_size}")
    after = 0
    while (offset := _INT.unpack(take(8))[0]) != -1:
        length = _INT.unpack(take(8))[0]
        if not (after <= offset and 0 < length <= _WINDOW and offset + length <= raw_size):
            raise ValueError(f"it has an impossible record at {offset}, {length} bytes")
        yield offset, take(length)
        after = offset + length
    if plain.read(1):
        raise ValueError("it goes on after its end")


def copy(source: int, target: int) -> None:
    """Copies an open file with its holes to an empty open file of another file system."""
    size = os.fstat(source).st_size
    pieces: Iterable[bytes] = stream(source)
    iterator = iter(pieces)
    next(iterator)
    for header in iterator:
        if header == _END:
            break
        offset, _ = _RECORD.unpack(header)
        view = memoryview(next(iterator))
        while view:
            written = os.pwrite(target, view, offset)
            view, offset = view[written:], offset + written
    os.ftruncate(target, size)


def mismatch(what: str, where: str, found: object, expected: object) -> DataLoss:
    return DataLoss(
        f"{what} of snapshot {where} is damaged: found {found}, its manifest says {expected}. "
        "Nothing of it was used; revert the actor to its last good snapshot"
    )
