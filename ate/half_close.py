"""Ending one direction of a stream while the other goes on, over plain TCP and over TLS.

trio's SSLStream has no half-close; HTTP upgrades need one, and they need to tell an end from a break. Used by the
tunnel and by the router. Whoever may call `end_sending` on a stream reads it by `receive`.
"""

from __future__ import annotations

import ssl
import weakref
from typing import Any

import trio

CHUNK = 64 * 1024

_read_before: weakref.WeakKeyDictionary[trio.abc.Stream, bytearray] = weakref.WeakKeyDictionary()
"""What `end_sending` had to take out of a TLS stream, for the next `receive`."""


def tell_breaks(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, whose connections report an end without TLS's goodbye as a break, which Python hides by default."""
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    return context


async def receive(stream: trio.abc.Stream) -> bytes:
    """Reads once, b"" at the end; also after `end_sending`, when ssl reports the peer's goodbye as an error."""
    if earlier := _read_before.pop(stream, None):
        return bytes(earlier)
    try:
        data = bytes(await stream.receive_some(CHUNK))
    except trio.BrokenResourceError as error:
        if not isinstance(error.__cause__, ssl.SSLZeroReturnError):
            raise
        data = b""
    # The other direction may have ended, and taken out what came before, while this waited.
    return bytes(_read_before.pop(stream, b"")) + data


async def end_sending(stream: trio.abc.Stream) -> None:
    """Tells the peer that no more comes, while it may go on sending: FIN on TCP, close_notify on TLS."""
    try:
        if isinstance(stream, trio.SSLStream):
            # trio's `unwrap` would also wait for the peer's close_notify and forbid further reading meanwhile.
            ssl_object, outgoing = stream._ssl_object, stream._outgoing
            # OpenSSL gives up on a connection that says goodbye with data unread, so that comes out first.
            if unread := _take_out(ssl_object):
                _read_before.setdefault(stream, bytearray()).extend(unread)
            try:
                ssl_object.unwrap()
            except ssl.SSLError:
                pass  # it waits for the peer's goodbye, which comes to `receive`
            pending = outgoing.read()
            if pending:
                await stream.transport_stream.send_all(pending)
        elif isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer is gone altogether; reading from it will say so


def _take_out(ssl_object: Any) -> bytes:
    taken = []
    try:
        while data := ssl_object.read(CHUNK):
            taken.append(data)
    except ssl.SSLError:
        pass  # no more of it here, or a fault that reading meets again
    return b"".join(taken)
