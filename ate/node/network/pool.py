"""Networks for actors, prepared ahead: one network namespace each, joined to the worker by a veth pair.

Every actor sees the same addresses (169.254.17.2/30 on eth0, gateway .1), so sockets and ARP entries in a checkpoint
stay valid. Several prepared networks do not conflict because only the active one has its worker side up and addressed.
Nothing leads out: the worker's own namespace has no other link, forwards nothing and accepts no connection from actors
but to the metadata endpoint and the SPIFFE Workload API.
Used by `ate.node.ateom`.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ate import log, names
from ate.errors import Internal
from ate.node.network import interfaces as kernel
from ate.process import run

ACTOR_MAC: Final = "02:a8:1e:00:00:02"
GATEWAY_MAC: Final = "02:a8:1e:00:00:01"
ACTOR_PREFIX: Final = 30
_NETMASK: Final = "255.255.255.252"

_log = log.Logger(__name__)

_REFUSE = """
table inet ate_worker {
  chain from_actors {
    type filter hook prerouting priority -300;
    iifname != "at*" accept
    ip daddr GATEWAY tcp dport { 80, 8081 } accept
    meta l4proto tcp tcp flags & (syn | ack) == syn reject with tcp reset
    meta l4proto tcp ip daddr GATEWAY accept
    meta l4proto tcp drop
    reject with icmpx admin-prohibited
  }
}
""".replace("GATEWAY", names.GATEWAY_ADDRESS)


@dataclass(frozen=True, slots=True)
class ActorNetwork:
    """One network: `netns` is a path the runtime can open, `link` the worker's end of the veth pair."""

    netns: Path
    link: str


class NetworkPool:
    """Keeps `spare` networks ready and makes more on demand. One active at a time. Owned by `open_network_pool`."""

    def __init__(self, directory: Path, install_id: str, spare: int) -> None:
        self._directory, self._install_id = directory, install_id
        self._number = 0
        self._ready_send, self._ready_receive = trio.open_memory_channel[ActorNetwork](math.inf)
        self._wanted = trio.Semaphore(spare)
        self._all: dict[str, ActorNetwork] = {}
        self.active: ActorNetwork | None = None

    async def take(self) -> ActorNetwork:
        """A network nobody else has; from the spares, or made now."""
        try:
            network = self._ready_receive.receive_nowait()
        except trio.WouldBlock:
            return await self._make()
        self._wanted.release()
        return network

    def activate(self, network: ActorNetwork) -> None:
        """Joins the worker to this network: from now on the actor's address leads there. Takes microseconds."""
        if self.active is not None:
            raise Internal(f"network {self.active.link} is still active; release it before {network.link} is activated")
        kernel.set_up(network.link)
        kernel.set_address(network.link, names.GATEWAY_ADDRESS, _NETMASK)
        kernel.set_neighbour(network.link, names.ACTOR_ADDRESS, ACTOR_MAC)
        self.active = network

    def deactivate(self, network: ActorNetwork) -> None:
        """Cuts the worker off from this network at once, so that another may be activated."""
        if self.active is network:
            with contextlib.suppress(OSError):  # the link may have gone with its namespace
                kernel.set_down(network.link)
            self.active = None

    async def release(self, network: ActorNetwork) -> None:
        """Removes the network, its links included. A used one is never used again."""
        self.deactivate(network)
        self._all.pop(network.link, None)
        with trio.CancelScope(shield=True):
            # The pair goes at once with either end; a namespace a dying sandbox still holds would keep it for a while.
            done = await run(["ip", "link", "delete", network.link], check=False, timeout=10)
            if done.returncode != 0 and b"Cannot find device" not in done.stderr:
                _log.warning("veth not removed", link=network.link, stderr=done.stderr.decode("utf-8", "replace"))
            with contextlib.suppress(FileNotFoundError):
                with contextlib.suppress(OSError):
                    kernel.unmount(network.netns)
                network.netns.unlink()

    async def _make(self) -> ActorNetwork:
        self._number += 1
        # 15 characters at most: "at", 8 of the install id, 5 for a number (hexadecimal).
        link = f"at{self._install_id[:8]}{self._number:05x}"
        network = ActorNetwork(self._directory / link, link)
        with trio.CancelScope(shield=True):
            self._all[link] = network
            try:
                await trio.to_thread.run_sync(_create, network)
            except (OSError, subprocess.SubprocessError) as error:
                await self.release(network)
                raise Internal(f"no network for an actor could be made: {error}") from error
        return network

    async def _keep_ready(self) -> None:
        while True:
            await self._wanted.acquire()
            try:
                network = await self._make()
            except Internal as error:
                _log.error("network not prepared; trying again", exc=error)
                self._wanted.release()
                await trio.sleep(1)
                continue
            self._ready_send.send_nowait(network)

    async def _close(self) -> None:
        for network in list(self._all.values()):
            await self.release(network)


def _create(network: ActorNetwork) -> None:
    """Makes namespace and links in a thread of its own: unshare(2) is per thread, and the thread ends with it."""
    network.netns.parent.mkdir(parents=True, exist_ok=True)
    network.netns.touch(exist_ok=False)
    worker = os.getpid()
    script = f"""link set lo up
link add name eth0 address {ACTOR_MAC} mtu 1500 type veth peer name {network.link} address {GATEWAY_MAC} mtu 1500 netns {worker}
link set eth0 addrgenmode none
address add {names.ACTOR_ADDRESS}/{ACTOR_PREFIX} dev eth0
link set eth0 up
route add default via {names.GATEWAY_ADDRESS}
"""  # noqa: E501
    failure: list[BaseException] = []

    def inside() -> None:
        try:
            kernel.unshare(kernel.CLONE_NEWNET)
            kernel.mount("/proc/thread-self/ns/net", network.netns, flags=kernel.MS_BIND)
            done = subprocess.run(["ip", "-batch", "-"], input=script.encode(), capture_output=True, timeout=30)
            if done.returncode != 0:
                raise OSError(done.stderr.decode("utf-8", "replace").strip())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=inside, name="netns")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


@contextlib.asynccontextmanager
async def open_network_pool(
    directory: Path, install_id: str, *, spare: int = 1, own_namespace: bool = True
) -> AsyncIterator[NetworkPool]:
    """A pool whose namespaces are files in `directory`. `own_namespace`: this process has a network of its own.

    Only then is it closed to actors as a whole (nft rules, no forwarding); on leaving, every network is removed.
    """
    if own_namespace:
        await _close_to_actors()
    pool = NetworkPool(directory, install_id, spare)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool._keep_ready)
            try:
                yield pool
            finally:
                nursery.cancel_scope.cancel()
    finally:
        await pool._close()


async def _close_to_actors() -> None:
    kernel.set_up("lo")
    with contextlib.suppress(FileNotFoundError):  # hidden from runsc on some kernels; a new namespace forwards nothing
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
    try:
        done = await run(["nft", "-f", "-"], stdin=_REFUSE.encode(), check=False, timeout=10)
        refusal = done.stderr.decode("utf-8", "replace") if done.returncode != 0 else ""
    except FileNotFoundError as error:
        refusal = str(error)
    if refusal:
        _log.warning("actors' outgoing connections time out instead of being refused: no nft rules", reason=refusal)
