"""HTTP/1.1 framing without sockets: heads are parsed strictly, bodies are measured and passed on byte for byte.

Strictness is what prevents request smuggling: whatever two parsers could read in two ways is refused. Header names keep
their case and order, for servers that mind. Used by the router, the tunnel and the gate; everything here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MAX_HEAD: Final = 64 * 1024
_MAX_CHUNK_LINE: Final = 4096
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_VERSION: Final = re.compile(rb"HTTP/1\.[01]")
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_CHUNK_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}")

Headers = tuple[tuple[bytes, bytes], ...]


class BadMessage(Exception):
    """The bytes are not one unambiguous HTTP/1.1 message; `status` is what a server answers."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


@dataclass(frozen=True, slots=True)
class RequestHead:
    method: bytes
    target: bytes
    version: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class ResponseHead:
    version: bytes
    status: int
    reason: bytes
    headers: Headers


def find_head(buffer: bytes | bytearray) -> int:
    """Length of the head at the start of `buffer`, its blank line included; 0 when it is not complete yet."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > MAX_HEAD:
            raise BadMessage(f"headers are longer than {MAX_HEAD} bytes", 431)
        if _BARE_LF.search(buffer):
            raise BadMessage("a line ends without CR")  # said now: the blank line that is waited for may never come
        return 0
    if end + 4 > MAX_HEAD:
        raise BadMessage(f"headers are longer than {MAX_HEAD} bytes", 431)
    return end + 4


def parse_request(head: bytes) -> RequestHead:
    """Reads a request's head. Raises BadMessage."""
    first, headers = _lines(head)
    parts = first.split(b" ")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise BadMessage("the request line is malformed")
    if not _VERSION.fullmatch(parts[2]):
        raise BadMessage("only HTTP/1.0 and HTTP/1.1 are spoken here", 505)
    return RequestHead(parts[0], parts[1], parts[2], headers)


def parse_response(head: bytes) -> ResponseHead:
    """Reads a response's head. Raises BadMessage."""
    first, headers = _lines(head)
    version, _, rest = first.partition(b" ")
    status, _, reason = rest.partition(b" ")
    if not _VERSION.fullmatch(version) or not re.fullmatch(rb"[1-9][0-9]{2}", status) or not _VALUE.fullmatch(reason):
        raise BadMessage("the status line is malformed", 502)
    return ResponseHead(version, int(status), reason, headers)


def _lines(head: bytes) -> tuple[bytes, Headers]:
    first, *rest = head[:-4].split(b"\r\n")
    headers = []
    for line in rest:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise BadMessage(f"the header line {line[:80]!r} is malformed")
        headers.append((name, value))
    return first, tuple(headers)


def values(headers: Headers, name: bytes) -> list[bytes]:
    """All values of a header; `name` in lower case."""
    return [value for key, value in headers if key.lower() == name]


def tokens(headers: Headers, name: bytes) -> list[bytes]:
    """The comma-separated tokens of a header over all its lines, in lower case."""
    return [token.strip().lower() for value in values(headers, name) for token in value.split(b",") if token.strip()]


def without(headers: Headers, names: Iterable[bytes], prefix: bytes) -> Headers:
    """Headers less those named (lower case) and those that begin with `prefix`, in whatever case they came."""
    dropped = frozenset(names)
    return tuple(
        (key, value) for key, value in headers if key.lower() not in dropped and not key.lower().startswith(prefix)
    )


def encode_request(head: RequestHead) -> bytes:
    return _encode(b" ".join((head.method, head.target, head.version)), head.headers)


def encode_response(head: ResponseHead) -> bytes:
    return _encode(b"%s %d %s" % (head.version, head.status, head.reason), head.headers)


def _encode(first: bytes, headers: Headers) -> bytes:
    return b"".join([first, b"\r\n", *(b"%s: %s\r\n" % pair for pair in headers), b"\r\n"])


def keeps_alive(version: bytes, headers: Headers) -> bool:
    """Whether the sender of this head is willing to use the connection again."""
    options = tokens(headers, b"connection")
    return b"close" not in options and (version == b"HTTP/1.1" or b"keep-alive" in options)


class Body:
    """A body that passes through: `take` says how many of the bytes at hand belong to it, and `done` when it ended."""

    done: bool
    ends_with_connection = False

    def take(self, data: bytes | bytearray) -> int:
        """How many bytes at the start of `data` belong to the body. Raises BadMessage."""
        raise NotImplementedError


class LengthBody(Body):
    """Content-Length, or none (0)."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, data: bytes | bytearray) -> int:
        taken = min(len(data), self._left)
        self._left -= taken
        self.done = self._left == 0
        return taken


class EndlessBody(Body):
    """Until the connection ends: a response without a length, and everything after an upgrade."""

    ends_with_connection = True

    def __init__(self) -> None:
        self.done = False

    def take(self, data: bytes | bytearray) -> int:
        return len(data)


class ChunkedBody(Body):
    """Chunked coding, trailers included; passed on as it came.

    `payload`, where given, collects what the chunks carry, for a client that does not know the coding.
    """

    def __init__(self, payload: bytearray | None = None) -> None:
        self.done = False
        self._payload = payload
        self._left = 0
        self._line = bytearray()
        self._state = "size"
        self._trailer_bytes = 0

    def take(self, data: bytes | bytearray) -> int:
        position = 0
        while position < len(data) and not self.done:
            if self._state == "data":
                step = min(self._left, len(data) - position)
                if self._payload is not None:
                    self._payload += data[position : position + step]
                self._left -= step
                position += step
                if self._left == 0:
                    self._state = "after data"
                continue
            end = data.find(b"\n", position)
            stop = len(data) if end < 0 else end + 1
            self._line += data[position:stop]
            position = stop
            if len(self._line) > _MAX_CHUNK_LINE:
                raise BadMessage("a chunk's size line or trailer is too long")
            if end >= 0:
                line = bytes(self._line)
                self._line.clear()
                if not line.endswith(b"\r\n"):
                    raise BadMessage("a line in a chunked body ends without CR")
                self._finish_line(line[:-2])
        return position

    def _finish_line(self, line: bytes) -> None:
        if self._state == "after data":
            if line:
                raise BadMessage("a chunk is longer than its size says")
            self._state = "size"
        elif self._state == "size":
            size, _, extension = line.partition(b";")
            size = size.rstrip(b" \t")
            if not _CHUNK_SIZE.fullmatch(size) or not _VALUE.fullmatch(extension):
                raise BadMessage("a chunk's size is malformed")
            self._left = int(size, 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            name, colon, value = line.partition(b":")
            if self._trailer_bytes > MAX_HEAD or not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
                raise BadMessage("a trailer is malformed")


def request_body(head: RequestHead) -> Body:
    """How the body after this request is framed. Raises BadMessage for whatever is not plain."""
    return _framed(head.version, head.headers) or LengthBody(0)


def response_body(head: ResponseHead, method: bytes) -> Body:
    """How the body after this final response to `method` is framed."""
    if method == b"HEAD" or head.status in (204, 304):
        return LengthBody(0)
    return _framed(head.version, head.headers) or EndlessBody()


def _framed(version: bytes, headers: Headers) -> Body | None:
    codings = tokens(headers, b"transfer-encoding")
    lengths = values(headers, b"content-length")
    if codings or values(headers, b"transfer-encoding"):
        if lengths:
            raise BadMessage("both Content-Length and Transfer-Encoding are given")
        if codings != [b"chunked"] or version != b"HTTP/1.1":
            raise BadMessage("a transfer coding other than chunked", 501)
        return ChunkedBody()
    if lengths:
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,18}", lengths[0]):
            raise BadMessage("Content-Length is malformed or given twice")
        return LengthBody(int(lengths[0]))
    return None
