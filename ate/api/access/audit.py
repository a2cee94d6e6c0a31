"""The audit log: who asked for what and whether they were let, in lines of JSON that nobody can change unnoticed.

Each record holds the hash of the one before it, so that a changed, missing or moved line breaks the chain. Files are
`audit-<first sequence>.jsonl`, the newest is appended to; the oldest go when there are too many, and the chain says
then where it begins. A record is in the file before what it tells of is done. What the chain cannot show is an end that
was cut off: keep what `ate audit verify` prints somewhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ate.errors import DataLoss, Unavailable

MAX_FILE: Final = 64 << 20
"""Bytes after which a new file is begun."""
KEPT_FILES: Final = 16
NOTHING: Final = "0" * 64
"""What the first record ever has as the hash before it."""


def digest(record: dict[str, Any]) -> str:
    """The hash of a record, over all its fields but `hash`."""
    body = {name: value for name, value in record.items() if name != "hash"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class AuditLog:
    """Appends to the files in `folder`. Blocking, by a few microseconds a record; `sync` forces them to disk."""

    def __init__(
        self,
        folder: Path,
        *,
        max_file: int = MAX_FILE,
        kept: int = KEPT_FILES,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._max_file, self._kept, self._now = folder, max_file, kept, now
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sequence, self._last = _end_of(folder)
        self._file: int | None = None
        self._size = 0
        self._unsynced = False

    def write(self, **fields: Any) -> None:
        """Adds a record with these fields. Unavailable when it cannot be written: then nothing may be done."""
        record = {"seq": self._sequence + 1, "time": self._stamp(), **fields, "prev": self._last}
        record["hash"] = digest(record)
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"  # ASCII: one line for every reader
        try:
            if self._file is None or self._size + len(line) > self._max_file:
                self._begin(record["seq"])
            assert self._file is not None
            written = os.write(self._file, line)
            if written != len(line):
                os.ftruncate(self._file, self._size)
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise Unavailable(f"the audit log in {self._folder} cannot be written ({error.strerror}): nothing is done")
        self._size += len(line)
        self._sequence, self._last = record["seq"], record["hash"]
        self._unsynced = True

    def sync(self) -> None:
        """Forces what was written to disk."""
        if self._unsynced and self._file is not None:
            self._unsynced = False
            os.fsync(self._file)

    def close(self) -> None:
        if self._file is not None:
            self.sync()
            os.close(self._file)
            self._file = None

    def _begin(self, first: int) -> None:
        """Goes on in the newest file while there is room, else in a new one."""
        self.close()
        files = files_of(self._folder)
        newest = files[-1] if files else None
        if newest is None or newest.stat().st_size >= self._max_file or self._size:
            newest = self._folder / f"audit-{first:012}.jsonl"
            files.append(newest)
        self._file = os.open(newest, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size:
            self._drop_torn(newest)
        for old in files[: -self._kept]:
            old.unlink(missing_ok=True)

    def _drop_torn(self, path: Path) -> None:
        """What a crash left of a last line was never told of anything that was done."""
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            assert self._file is not None
            os.ftruncate(self._file, whole)
            self._size = whole

    def _stamp(self) -> str:
        now = self._now()
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06}Z"


def files_of(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("audit-*.jsonl"))


def _end_of(folder: Path) -> tuple[int, str]:
    """(sequence, hash) of the last whole record."""
    for path in reversed(files_of(folder)):
        lines = path.read_bytes().split(b"\n")
        for line in reversed(lines[:-1]):  # the last has no newline: nothing, or torn
            if line:
                record = json.loads(line)
                return int(record["seq"]), str(record["hash"])
    return 0, NOTHING


@dataclass(frozen=True)
class Verdict:
    """Of a whole chain: how many records, where it begins and ends."""

    records: int
    first: int
    last: int
    last_hash: str


def read(folder: Path, *, after: int = 0) -> Iterator[tuple[Path, int, dict[str, Any]]]:
    """(file, line, record) of those after a sequence, oldest first. DataLoss naming file and line of what is none."""
    files = files_of(folder)
    for at, path in enumerate(files):
        if at + 1 < len(files) and _first_of(files[at + 1]) <= after + 1:
            continue
        data = path.read_bytes()
        *lines, rest = data.split(b"\n")
        if rest and path is not files[-1]:
            raise DataLoss(f"{path}, line {len(lines) + 1}: is cut off")
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("is no record")
            except ValueError as error:
                raise DataLoss(f"{path}, line {number}: {error}")
            if record.get("seq", 0) > after:
                yield path, number, record


def _first_of(path: Path) -> int:
    return int(path.stem.removeprefix("audit-"))


def verify(folder: Path) -> Verdict:
    """Follows the chain. DataLoss naming the first file and line that does not fit."""
    count, first, before = 0, 0, None
    for path, number, record in read(folder):
        where = f"{path}, line {number}"
        if record.get("hash") != digest(record):
            raise DataLoss(f"{where}: the record was changed")
        if before is not None and (record.get("prev") != before["hash"] or record.get("seq") != before["seq"] + 1):
            raise DataLoss(f"{where}: does not follow record {before['seq']}: something is missing or out of order")
        if before is None:
            first = int(record.get("seq", 0))
            if first == 1 and record.get("prev") != NOTHING:
                raise DataLoss(f"{where}: is not the beginning it says it is")
        count, before = count + 1, record
    return Verdict(count, first, int(before["seq"]) if before else 0, str(before["hash"]) if before else NOTHING)
