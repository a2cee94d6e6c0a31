"""TLS to a worker's tunnel: the worker must prove that it is an ateom, and that very worker, before a byte is sent.

asyncio makes its SSL objects through `SSLContext.sslobject_class`; ours checks the peer right after the handshake. The
worker's uid travels as the TLS server name, which also keeps pooled connections of different workers apart.
"""

from __future__ import annotations

import ssl
from typing import Any

from ate import names
from ate.errors import AteError
from ate.identity import spiffe
from ate.identity.tls import Identity


class UpstreamTls:
    """Client contexts for tunnels, made anew when the router's certificate was renewed."""

    def __init__(self, identity: Identity, trust_domain: str) -> None:
        self._identity = identity
        ateom = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["ateom"])

        class Verified(ssl.SSLObject):
            def do_handshake(self) -> None:
                super().do_handshake()
                try:
                    spiffe.demand({ateom}, pod_uid=self.server_hostname or "-")(self.getpeercert(binary_form=True))
                except AteError as error:
                    raise ssl.SSLError(f"the worker is not who it should be: {error.message}") from error

        self._verified = Verified

    def context(self) -> ssl.SSLContext:
        context: Any = self._identity.http_client_context()
        context.sslobject_class = self._verified
        return context  # type: ignore[no-any-return]
