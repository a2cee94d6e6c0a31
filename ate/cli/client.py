"""The command line's connection to the api role: over mutual TLS, as the person who runs it."""

from __future__ import annotations

import getpass
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ate import install, names
from ate.config import API_PORT, host_port
from ate.errors import FailedPrecondition, PermissionDenied, Unavailable
from ate.identity import client as identity_client
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.proto.ateapi_grpc import ControlStub, ProviderStub
from ate.proto.events_grpc import EventLogStub
from ate.proto.node_grpc import ActorLogsStub
from ate.rpc import Channel, Peer


@dataclass(frozen=True)
class Api:
    """Stubs of the api role's services over one channel."""

    control: ControlStub
    provider: ProviderStub
    logs: ActorLogsStub
    events: EventLogStub


@asynccontextmanager
async def connect(root: Path, endpoint: str, trust_domain: str) -> AsyncIterator[Api]:
    """Asks the broker of `root` for a user certificate, then opens the channel. `endpoint` empty: from the root."""
    address = endpoint or install.endpoints(root).get("api", "")
    if not address:
        raise FailedPrecondition(
            f"no running install found at {root}: start one with `ate dev --root {root}`, or give --endpoint HOST:PORT"
        )
    request = identity_client.Request(root / "identity", f"user:{getpass.getuser().lower()}", trust_domain=trust_domain)
    try:
        identity = Identity(await identity_client.obtain(request, patience=3))
    except Unavailable:
        raise Unavailable(
            f"the install at {root} does not answer: start it with `ate dev --root {root}`, or, where roles run alone, "
            "see whether its identity broker runs"
        )
    except PermissionError:
        raise PermissionDenied(
            f"{root / 'identity'} is not yours to use: run as root, or ask for a --grant of the broker"
        )
    check = spiffe.demand({names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["api"])})

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    host, port = host_port(address, API_PORT)
    async with Channel.tcp(host, port, tls=identity, verify_peer=verify) as channel:
        yield Api(ControlStub(channel), ProviderStub(channel), ActorLogsStub(channel), EventLogStub(channel))
