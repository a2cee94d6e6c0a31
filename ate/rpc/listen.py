"""Where connections come from: TCP and unix listeners, client connects, and TLS over both.

`server` accepts from an RpcListener, `client` dials with `connect_tcp` and `connect_unix`. A TlsProvider is asked for
its context for every new connection, so a renewed certificate is used without a restart.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from ate.errors import FailedPrecondition, Unavailable
from ate.unix_path import socket_path

HANDSHAKE_TIMEOUT = 10.0
CONNECT_TIMEOUT = 10.0
BACKLOG = 512


class TlsProvider(Protocol):
    """Makes TLS contexts; peers are checked against its CA, names (SPIFFE ids) by the caller's own code."""

    def server_context(self) -> ssl.SSLContext: ...

    def client_context(self) -> ssl.SSLContext: ...


@dataclass(frozen=True)
class Peer:
    """Who is at the other end: address for logs, DER of its leaf certificate, uid if it came by a unix socket."""

    address: str
    certificate: bytes | None = None
    uid: int | None = None


class RpcListener:
    """A listening socket, plus how its connections are secured."""

    def __init__(self, listener: trio.SocketListener, address: str, tls: TlsProvider | None, path: Path | None) -> None:
        self.address = address
        self.port: int = 0 if path else listener.socket.getsockname()[1]
        self.path = path
        self._listener = listener
        self._tls = tls
        self._mark = _file_mark(path) if path else None

    async def accept(self) -> trio.SocketStream:
        return await self._listener.accept()

    async def secure(self, raw: trio.SocketStream) -> tuple[trio.abc.Stream, Peer]:
        """TLS handshake, bounded in time. Runs in the connection's own task. Raises Unavailable."""
        uid = None
        address = self.address
        if self.path is None:
            host, port = raw.socket.getpeername()[:2]
            address = f"{host}:{port}"
        else:
            uid = _peer_uid(raw.socket)
        if self._tls is None:
            return raw, Peer(address, None, uid)
        context = self._tls.server_context()
        stream = await _handshake(raw, context, address, server_side=True)
        return stream, Peer(address, _leaf(stream), uid)

    async def aclose(self) -> None:
        """Stops listening; a unix socket's file goes if it is still ours."""
        await self._listener.aclose()
        if self.path is not None:
            try:
                if _file_mark(self.path) == self._mark:
                    self.path.unlink()
            except FileNotFoundError:
                pass


async def open_tcp_listener(host: str, port: int, tls: TlsProvider | None = None) -> RpcListener:
    """Listens on one address; port 0 takes a free one, see `.port`. Raises FailedPrecondition if it is taken."""
    try:
        [listener, *others] = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
    except OSError as error:
        raise FailedPrecondition(f"cannot listen on {host}:{port}: {error}") from error
    for other in others:  # a name with several addresses: the first is what was asked for
        await other.aclose()
    return RpcListener(listener, f"{host}:{listener.socket.getsockname()[1]}", tls, None)


async def open_unix_listener(
    path: str | os.PathLike[str], *, mode: int = 0o600, tls: TlsProvider | None = None
) -> RpcListener:
    """Listens on a unix socket. Removes a stale file, never one on which somebody listens (FailedPrecondition)."""
    where = Path(path)
    await _remove_stale(where)
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Bound under a private name and renamed: nobody can connect before the mode is set, and the umask stays.
        early = where.with_name(f".{where.name}.{os.getpid()}")
        early.unlink(missing_ok=True)
        with socket_path(early) as name:
            await sock.bind(name)
        early.chmod(mode)
        sock.listen(BACKLOG)
        early.rename(where)
    except OSError as error:
        sock.close()
        raise FailedPrecondition(f"cannot listen on unix socket {where}: {error}") from error
    return RpcListener(trio.SocketListener(sock), f"unix:{where}", tls, where)


async def connect_tcp(
    host: str, port: int, tls: TlsProvider | None, server_hostname: str | None
) -> tuple[trio.abc.Stream, Peer]:
    """Connects and, with TLS, shakes hands. Raises Unavailable naming the address."""
    address = f"{host}:{port}"
    raw = await _dial(address, partial(trio.open_tcp_stream, host, port))
    return await _secure_client(raw, address, tls, server_hostname or host)


async def connect_unix(path: str | os.PathLike[str], tls: TlsProvider | None) -> tuple[trio.abc.Stream, Peer]:
    """Connects to a unix socket; the peer's uid is the listener's. Raises Unavailable naming the path."""
    address = f"unix:{os.fspath(path)}"

    async def connect() -> trio.SocketStream:
        with socket_path(Path(path)) as name:
            return await trio.open_unix_socket(name)

    raw = await _dial(address, connect)
    return await _secure_client(raw, address, tls, "localhost")


async def _dial(address: str, connect: Callable[[], Awaitable[trio.SocketStream]]) -> trio.SocketStream:
    try:
        with trio.fail_after(CONNECT_TIMEOUT):
            return await connect()
    except trio.TooSlowError:
        raise Unavailable(f"cannot connect to {address}: no answer within {CONNECT_TIMEOUT} s") from None
    except OSError as error:
        raise Unavailable(f"cannot connect to {address}: {error}") from error


async def _secure_client(
    raw: trio.SocketStream, address: str, tls: TlsProvider | None, name: str
) -> tuple[trio.abc.Stream, Peer]:
    uid = _peer_uid(raw.socket) if address.startswith("unix:") else None
    if tls is None:
        return raw, Peer(address, None, uid)
    try:
        context = tls.client_context()
    except BaseException:
        await trio.aclose_forcefully(raw)
        raise
    stream = await _handshake(raw, context, address, server_hostname=name)
    return stream, Peer(address, _leaf(stream), uid)


async def _handshake(
    raw: trio.SocketStream,
    context: ssl.SSLContext,
    address: str,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
) -> trio.SSLStream[trio.SocketStream]:
    context.set_alpn_protocols(["h2"])
    # https_compatible: HTTP/2 has its own framing, so a peer that skips close_notify truncates nothing.
    stream = trio.SSLStream(
        raw, context, server_side=server_side, server_hostname=server_hostname, https_compatible=True
    )
    try:
        with trio.fail_after(HANDSHAKE_TIMEOUT):
            await stream.do_handshake()
    except BaseException as error:
        await trio.aclose_forcefully(raw)
        if isinstance(error, trio.TooSlowError):
            raise Unavailable(f"TLS handshake with {address} took over {HANDSHAKE_TIMEOUT} s") from None
        if isinstance(error, trio.BrokenResourceError | ssl.SSLError | OSError):
            raise Unavailable(f"TLS handshake with {address} failed: {error.__cause__ or error}") from error
        raise
    return stream


def _leaf(stream: trio.SSLStream[trio.SocketStream]) -> bytes | None:
    der = stream.getpeercert(binary_form=True)
    return der if isinstance(der, bytes) else None


def _peer_uid(sock: trio.socket.SocketType) -> int:
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _file_mark(path: Path) -> tuple[int, int]:
    """Tells a socket file from a later one under its name; inode numbers alone are used again at once."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns


async def _remove_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FailedPrecondition(f"cannot listen on {path}: a file that is no socket is in the way; remove it")
    except FileNotFoundError:
        return
    try:
        with socket_path(path) as name:
            probe = await trio.open_unix_socket(name)
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    else:
        await probe.aclose()
        raise FailedPrecondition(f"cannot listen on {path}: another process already listens there")
