"""Ending one direction of a stream while the other goes on, over plain TCP and over TLS.

trio's SSLStream has no half-close; HTTP upgrades need one. Used by the tunnel and by the router's upgrades.
"""

from __future__ import annotations

import ssl

import trio

CHUNK = 64 * 1024


async def receive(stream: trio.abc.Stream) -> bytes:
    """Reads once, b"" at the end; also after `end_sending`, when ssl reports the peer's goodbye as an error."""
    try:
        return bytes(await stream.receive_some(CHUNK))
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLZeroReturnError):
            return b""
        raise


async def end_sending(stream: trio.abc.Stream) -> None:
    """Tells the peer that no more comes, while it may go on sending: FIN on TCP, close_notify on TLS."""
    try:
        if isinstance(stream, trio.SSLStream):
            # trio's `unwrap` would also wait for the peer's close_notify and forbid further reading meanwhile.
            ssl_object, outgoing = stream._ssl_object, stream._outgoing
            try:
                ssl_object.unwrap()
            except Exception:
                pass
            pending = outgoing.read()
            if pending:
                await stream.transport_stream.send_all(pending)
        elif isinstance(stream, trio.abc.HalfCloseableStream):
            await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer is gone altogether; reading from it will say so
