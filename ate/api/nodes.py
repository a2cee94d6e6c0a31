"""The node agents the control plane talks to: where they listen, and one channel to each.

Agents make themselves known by `NodeRegistry.RegisterNode`; the row survives a restart of this role, so that work can
go on before the next heartbeat. A channel demands the atelet's identity pinned to the node it claims to be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from ate import names
from ate.api.kinds import NODES
from ate.errors import NotFound, Unavailable
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.proto import node_pb2
from ate.proto.atelet_grpc import AteomHerderStub
from ate.proto.node_grpc import ActorLogsStub
from ate.rpc import Channel, ChannelPool, Peer, open_channel_pool
from ate.store import Key, Store

HEARTBEAT_SECONDS = 5
AWAY_SECONDS = 3 * HEARTBEAT_SECONDS
"""A node silent for so long counts as away."""


class Nodes:
    """Use `open_nodes`."""

    def __init__(self, store: Store, identity: Identity, trust_domain: str, channels: ChannelPool) -> None:
        self._store, self._identity, self._channels = store, identity, channels
        self._atelet_id = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["atelet"])

    async def register(self, node: node_pb2.Node) -> None:
        """Keeps what an agent told of itself."""
        key = Key("", node.node_name)
        row = await self._store.get(NODES, key)
        if row is None:
            await self._store.transact(lambda tx: tx.insert(NODES, key, node))
        else:
            await self._store.transact(lambda tx: tx.update(NODES, key, node, uid=row.uid, version=row.version))

    async def herder(self, node_name: str) -> AteomHerderStub:
        """The agent of a node. Unavailable when the node never registered."""
        return AteomHerderStub(await self._channel(node_name))

    async def logs(self, node_name: str) -> ActorLogsStub:
        return ActorLogsStub(await self._channel(node_name))

    async def all(self) -> Mapping[str, node_pb2.Node]:
        return {row.key.name: row.value for row in await self._store.scan(NODES)}

    async def _channel(self, node_name: str) -> Channel:
        row = await self._store.get(NODES, Key("", node_name))
        if row is None:
            raise Unavailable(f"no node agent has registered for node {node_name}: is its atelet running?")
        host, _, port = row.value.address.rpartition(":")
        if not port.isdigit():
            raise NotFound(f"node {node_name} registered the unusable address {row.value.address!r}")
        check = spiffe.demand({self._atelet_id}, node_name=node_name)

        def verify(peer: Peer) -> None:
            check(peer.certificate)

        def make() -> Channel:
            return Channel.tcp(host.strip("[]"), int(port), tls=self._identity, verify_peer=verify)

        return await self._channels.get(f"{node_name} {row.value.address}", make)


@asynccontextmanager
async def open_nodes(store: Store, identity: Identity, trust_domain: str) -> AsyncIterator[Nodes]:
    """Closes every channel at the end."""
    async with open_channel_pool() as channels:
        yield Nodes(store, identity, trust_domain, channels)
