"""What containers print: lines become JSON objects in bounded files, `<root>/logs/<actor uid>/<container>.jsonl`.

A line that is a JSON object is kept and augmented, any other becomes {time, message}; labels say whose it is, and
labels that a program sets itself under `ate.` are dropped. Written by ateom, read by the node agent.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import trio

MAX_FILE: Final = 4 << 20
MAX_LINE: Final = 64 << 10


def to_json(line: bytes, labels: Mapping[str, str], now: datetime) -> str:
    """One printed line as one JSON line, without its newline. Pure."""
    text = line.decode("utf-8", "replace")
    record: dict[str, Any] | None = None
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(text)
            if isinstance(parsed, dict):
                record = {key: value for key, value in parsed.items() if not key.startswith("ate.")}
    stamp = now.isoformat(timespec="microseconds")
    if record is None:
        record = {"time": stamp, "message": text}
    else:
        record.setdefault("time", stamp)
    given = record.get("labels")
    own = {k: v for k, v in given.items() if not k.startswith("ate.")} if isinstance(given, dict) else {}
    record["labels"] = {**own, **labels}
    # JSON forbids NaN and lone surrogates, which json.loads lets in.
    try:
        encoded = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        encoded.encode()
    except ValueError:
        encoded = json.dumps({"time": stamp, "message": text, "labels": dict(labels)}, separators=(",", ":"))
    return encoded


class LineSplitter:
    """Cuts a byte stream into lines; longer ones than MAX_LINE are cut, so that memory stays bounded."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        lines: list[bytes] = []
        while True:
            end = self._rest.find(b"\n")
            if end < 0 and len(self._rest) < MAX_LINE:
                return lines
            stop = min(end if end >= 0 else len(self._rest), MAX_LINE)
            lines.append(bytes(self._rest[:stop]).rstrip(b"\r"))
            del self._rest[: stop + 1 if stop == end else stop]

    def finish(self) -> list[bytes]:
        """The last line, where the stream ended without a newline."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest else []


class ContainerLog:
    """The log of one container of one actor: two files of bounded size, the older with suffix `.1`."""

    def __init__(self, path: Path, labels: Mapping[str, str]) -> None:
        self._path, self._labels = path, dict(labels)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self.tail: deque[str] = deque(maxlen=10)

    def write(self, lines: list[bytes]) -> None:
        """Appends the lines in one write, so that a reader sees whole lines."""
        now = datetime.now(UTC)
        self.tail.extend(line.decode("utf-8", "replace") for line in lines)
        self._file.write(b"".join(to_json(line, self._labels, now).encode() + b"\n" for line in lines))
        self._file.flush()
        if self._file.tell() > MAX_FILE:
            self._file.close()
            self._path.rename(self._path.with_name(self._path.name + ".1"))
            self._file = self._path.open("ab")

    def close(self) -> None:
        self._file.close()


async def pump(reader: int, log: ContainerLog) -> None:
    """Copies a pipe into the log until its last writer is gone; owns `reader` and `log`. Full disks lose lines only."""
    splitter = LineSplitter()
    os.set_blocking(reader, False)
    stream = trio.lowlevel.FdStream(reader)
    try:
        async with stream:
            while data := await stream.receive_some(65536):
                if lines := splitter.feed(data):
                    with contextlib.suppress(OSError):
                        log.write(lines)
            if lines := splitter.finish():
                with contextlib.suppress(OSError):
                    log.write(lines)
    finally:
        with contextlib.suppress(OSError):
            log.close()
