"""How a role gets its certificate from the broker and keeps it fresh while it runs."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ate import names
from ate.errors import AteError, PermissionDenied, Unavailable
from ate.identity import spiffe
from ate.identity.tls import Credentials, Identity, trust_only_context
from ate.log import Logger
from ate.proto import broker_pb2 as pb
from ate.proto.broker_grpc import IdentityBrokerStub
from ate.rpc import Channel, Peer

log = Logger("ate.identity")

_TELL_AFTER = 2.0
"""Seconds of waiting for a broker, as at every start of all roles at once, that nobody needs to read about."""
_SHORT = 5.0
"""Up to this patience the error at the end says it soon enough."""
_LOOK = 2.0
"""Seconds between looks at the clock and at who is trusted: how long a machine that slept past its certificate's end
may go on with it, and what a new authority has to wait at least before it signs."""


@dataclass(frozen=True)
class Request:
    """Whose certificate is wanted. `subject` is a role's service account or `user:<name>`.

    `give_up`, once set, ends the wait for a broker that does not answer.
    """

    directory: Path
    subject: str
    node_name: str = ""
    pod_uid: str = ""
    hosts: Sequence[str] = ()
    trust_domain: str = "cluster.local"
    give_up: trio.Event | None = None


class _TrustOnly:
    def __init__(self, trust_bundle_pem: str) -> None:
        self._pem = trust_bundle_pem

    def client_context(self) -> ssl.SSLContext:
        return trust_only_context(self._pem)

    def server_context(self) -> ssl.SSLContext:
        raise NotImplementedError("a client of the broker serves nobody")


async def obtain(request: Request, *, patience: float = 30.0) -> Credentials:
    """One certificate from the broker; waits up to `patience` seconds for a broker that is still starting."""
    began = trio.current_time()
    told = began + (_TELL_AFTER if patience > _SHORT else math.inf)
    with trio.move_on_after(patience):
        while True:
            try:
                return await _ask(request)
            except (Unavailable, FileNotFoundError):
                if (
                    request.give_up is not None
                    and request.give_up.is_set()
                    and trio.current_time() > began + _TELL_AFTER
                ):
                    break
                if trio.current_time() >= told:
                    told += patience
                    log.warning("waiting for the identity broker", socket=str(request.directory / "broker.sock"))
                await trio.sleep(0.05)
    raise Unavailable(
        f"no identity broker answers at {request.directory / 'broker.sock'}: "
        "start it with `ate serve --role=identity-broker` and the same --root"
    )


async def _ask(request: Request) -> Credentials:
    bundle = (request.directory / "trust-bundle.pem").read_text()
    broker = names.service_account_id(request.trust_domain, names.SERVICE_ACCOUNTS["identity-broker"])

    def verify(peer: Peer) -> None:
        spiffe.demand({broker})(peer.certificate)

    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    async with Channel.unix(request.directory / "broker.sock", tls=_TrustOnly(bundle), verify_peer=verify) as channel:
        answer = await IdentityBrokerStub(channel).IssueCertificate(
            pb.IssueCertificateRequest(
                certificate_signing_request=csr.public_bytes(Encoding.DER),
                subject=request.subject,
                node_name=request.node_name,
                pod_uid=request.pod_uid,
                hosts=list(request.hosts),
            ),
            timeout=10,
        )
    return Credentials(key, tuple(answer.certificates), answer.trust_bundle_pem)


@asynccontextmanager
async def open_identity(request: Request) -> AsyncIterator[Identity]:
    """The identity of this process, renewed in the background for as long as the block runs."""
    identity = Identity(await obtain(request))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_keep_fresh, identity, request)
        yield identity
        nursery.cancel_scope.cancel()


async def _keep_fresh(identity: Identity, request: Request) -> None:
    """Looks often instead of sleeping until it is due: our sleep stands still with the machine, and clocks are set."""
    while True:
        pause = _LOOK
        _take_roots(identity, request)
        if identity.credentials.is_due(datetime.now(UTC)):
            try:
                identity.renew(await obtain(request, patience=5))
                log.info("certificate renewed", subject=request.subject)
            except PermissionDenied:
                raise
            except AteError as error:
                log.warning("certificate not renewed, trying again", subject=request.subject, error=str(error))
                pause = 5
        await trio.sleep(pause)


def _take_roots(identity: Identity, request: Request) -> None:
    """Trusts whom the broker trusts now: a new authority has to be known before it signs."""
    try:
        bundle = (request.directory / "trust-bundle.pem").read_text()
    except OSError:
        return  # the certificate's renewal says what is wrong
    held = identity.credentials
    if bundle and bundle != held.trust_bundle_pem:
        identity.renew(Credentials(held.key, held.chain, bundle))
        log.info("trusted authorities have changed", subject=request.subject)
