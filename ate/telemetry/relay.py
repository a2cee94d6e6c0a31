"""How a worker's spans leave its network namespace: through a unix socket, whose other end its node's agent holds.

The agent copies bytes to the collector and back and reads none of them, so that TLS to the collector stays end to end.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from ate.log import Logger
from ate.telemetry.service import ENDPOINT
from ate.unix_path import socket_path

log = Logger("ate.telemetry")

SOCKET = "otlp-relay.sock"
MOST = 64
"""Connections relayed at once; a worker keeps one."""


def collector_address() -> tuple[str, int] | None:
    """Host and port of the collector that the environment names; None where it names none."""
    url = urlsplit(os.environ.get(ENDPOINT, ""))
    if not url.hostname:
        return None
    return url.hostname, url.port or (443 if url.scheme == "https" else 80)


async def run_relay(path: Path) -> None:
    """Serves `path` until cancelled; returns at once where there is no collector."""
    address = collector_address()
    if address is None:
        return
    host, port = address
    path.unlink(missing_ok=True)
    limit = trio.CapacityLimiter(MOST)
    with trio.socket.socket(socket.AF_UNIX) as listener, socket_path(path) as name:
        await listener.bind(name)
        os.chmod(path, 0o600)
        listener.listen(MOST)
        async with trio.open_nursery() as nursery:
            while True:
                accepted, _ = await listener.accept()
                nursery.start_soon(_relay, trio.SocketStream(accepted), host, port, limit)


async def _relay(worker: trio.SocketStream, host: str, port: int, limit: trio.CapacityLimiter) -> None:
    try:
        async with limit, worker, await trio.open_tcp_stream(host, port) as collector, trio.open_nursery() as nursery:
            nursery.start_soon(_copy, worker, collector)
            await _copy(collector, worker)
            nursery.cancel_scope.cancel()
    except OSError as error:
        await trio.aclose_forcefully(worker)
        log.info("telemetry of a worker was not relayed", error=str(error))


async def _copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
    try:
        async for data in source:
            await target.send_all(data)
        await target.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass


def session_through(path: Path) -> Any:
    """A `requests` session whose connections all go to the unix socket, whatever host they are for."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.connection import HTTPConnection, HTTPSConnection

    def connect(timeout: object) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.settimeout(timeout if isinstance(timeout, int | float) else 10.0)
            with socket_path(path) as name:
                made.connect(name)
        except BaseException:
            made.close()
            raise
        return made

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self.timeout)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return connect(self.timeout)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    session = requests.Session()
    session.trust_env = False
    session.mount("http://", Adapter())
    session.mount("https://", Adapter())
    return session
