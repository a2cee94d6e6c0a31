"""Page tokens: opaque, bound to the query they belong to, and signed so that a forged or foreign one is refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message

from ate.api.validation.problems import Problems
from ate.errors import InvalidArgument
from ate.store import Key, Row

M = TypeVar("M", bound=Message)

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_TOKEN = 256
_SIGNATURE_BYTES = 12
_NOT_OURS = "not a token of this list; start again without one"


def encode(secret: bytes, query: str, last: Key) -> str:
    """The token for the page after `last` of `query`."""
    body = f"{last.scope}\0{last.name}".encode()
    return base64.urlsafe_b64encode(_sign(secret, query, body) + body).decode().rstrip("=")


def decode(secret: bytes, query: str, token: str) -> Key | None:
    """Where the page begins; None for the first. InvalidArgument for a token not made for this query."""
    if not token:
        return None
    try:
        if len(token) > MAX_TOKEN:
            raise ValueError
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        signature, body = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, _sign(secret, query, body)):
            raise ValueError
        scope, name = body.decode().split("\0")
    except ValueError:
        raise InvalidArgument(f"page_token: {_NOT_OURS}")
    return Key(scope, name)


def _sign(secret: bytes, query: str, body: bytes) -> bytes:
    return hmac.new(secret, query.encode() + b"\0" + body, hashlib.sha256).digest()[:_SIGNATURE_BYTES]


async def page(
    problems: Problems,
    secret: bytes,
    query: str,
    size: int,
    token: str,
    read: Callable[[Key | None, int], Awaitable[list[Row[M]]]],
) -> tuple[list[M], str]:
    """One page of a list and the token of the next. `size` 0 is the default, above 1000 counts as 1000.

    What is wrong with size and token is raised together with the `problems` the request has already.
    """
    after: Key | None = None
    problems.check("page_size", size >= 0, "may not be negative")
    try:
        after = decode(secret, query, token)
    except InvalidArgument:
        problems.add("page_token", _NOT_OURS)
    problems.raise_if_any()
    size = min(size or DEFAULT_PAGE, MAX_PAGE)
    rows = await read(after, size + 1)
    more = len(rows) > size
    rows = rows[:size]
    return [row.value for row in rows], encode(secret, query, rows[-1].key) if more else ""
