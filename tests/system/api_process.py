"""The api role in a process of its own, to be killed and started again at the same address.

Store and CA lie in its folder. A fork server that has imported everything makes the processes, which saves a second
each time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import grpc
import trio

from ate.api.server import ApiConfig, run_api
from ate.identity import ca
from tests.system.api_peer import DOMAIN, Caller, account, identity_of
from tests.system.servers import free_port

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


class ApiProcess:
    """`start` returns once the role serves, `kill` is a kill -9 that is waited for."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: ForkServerProcess | None = None

    def start(self) -> float:
        """Seconds from the start of the process until it took a connection."""
        began = time.monotonic()
        self._process = _processes.Process(target=_serve, args=(self.folder, self.port), daemon=True)
        self._process.start()
        pool = ca.load_or_make(self.folder / "pool.json")
        caller = Caller(self.port, identity_of(pool, account("api")).credentials, pool.trust_bundle_pem)
        try:
            grpc.channel_ready_future(caller.channel).result(timeout=60)
        except grpc.FutureTimeoutError:
            raise AssertionError(f"the api role did not start: {self.log()}") from None
        finally:
            caller.channel.close()
        return time.monotonic() - began

    def kill(self) -> None:
        """The role must have been alive: it does not die of itself."""
        if self._process is not None:
            died = self._process.exitcode
            self._process.kill()
            self._process.join()
            self._process = None
            assert died is None, f"the api role ended by itself with status {died}: {self.log()}"

    def log(self) -> str:
        return (self.folder / "api.log").read_text()[-4000:]


def _serve(folder: Path, port: int) -> None:
    with (folder / "api.log").open("ab") as log:
        os.dup2(log.fileno(), 2)
    pool = ca.load_or_make(folder / "pool.json")
    config = ApiConfig(folder / "store.db", listen_port=port, trust_domain=DOMAIN)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_api, config, identity_of(pool, account("api")), trio.Event()))

    trio.run(run)
