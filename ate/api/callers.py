"""Who is calling, by certificate, and which callers a service takes. The gate in front of every handler."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from ate import names
from ate.errors import PermissionDenied
from ate.identity import spiffe
from ate.rpc import Call

ELAPSED_TRAILER = "x-server-elapsed-us"


class Gate:
    """An interceptor: authenticates, keeps each service to its callers, and reports the time spent.

    Control and Provider take people, the router and the controller; WorkerService, ActorIdentity, NodeRegistry and the
    minting of actors' credentials take node agents only. An ateom, which sits next to untrusted code, may call nothing.
    """

    def __init__(self, trust_domain: str) -> None:
        def account(role: str) -> str:
            return names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS[role])

        self._user_prefix = names.user_id(trust_domain, "")
        self._atelet, self.router, self.controller = account("atelet"), account("router"), account("controller")
        self._node_services = {
            "ateapi.WorkerService",
            "ateapi.ActorIdentity",
            "ate.node.v1.NodeRegistry",
            "ate.node.v1.ActorCrashes",
        }
        self._node_methods = {"/ateapi.Control/MintActorJWT", "/ateapi.Control/MintActorCertificate"}

    async def __call__(self, call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
        started = time.perf_counter()
        try:
            self._admit(call)
            await proceed()
        finally:
            call.trailing_metadata[ELAPSED_TRAILER] = str(int((time.perf_counter() - started) * 1e6))

    def _admit(self, call: Call) -> None:
        caller = spiffe.caller_of(call.peer.certificate)
        service = call.method.strip("/").partition("/")[0]
        if service in self._node_services or call.method in self._node_methods:
            allowed = caller.spiffe_id == self._atelet
        else:
            allowed = caller.spiffe_id.startswith(self._user_prefix) or caller.spiffe_id in (
                self.router,
                self.controller,
            )
        if not allowed and not service.startswith("grpc."):
            raise PermissionDenied(f"{caller.spiffe_id} may not call {service}")


def node_of(call: Call) -> str:
    """The node the calling agent runs on, from its certificate."""
    caller = spiffe.caller_of(call.peer.certificate)
    if caller.pod is None or not caller.pod.node_name:
        raise PermissionDenied("the caller's certificate names no node")
    return caller.pod.node_name
