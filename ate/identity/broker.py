"""The identity-broker role: issues certificates to the other roles of this machine over a unix socket.

A caller is known by the uid of its process (SO_PEERCRED); root and the broker's own user may ask for any identity,
other users only for what `grants` lists. The socket speaks TLS with the broker's own certificate, which callers verify
by the trust bundle file beside it.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio
from cryptography.hazmat.primitives.asymmetric import ec

from ate import names
from ate.errors import AteError, InvalidArgument, PermissionDenied
from ate.files import write_whole
from ate.identity import ca, jwt_pool
from ate.identity.openid import OpenIdConfig, given_context, serve_openid
from ate.identity.pool_file import LOOK_SECONDS
from ate.identity.spiffe import PodIdentity
from ate.identity.tls import Credentials, make_context
from ate.log import Logger
from ate.proto import broker_pb2 as pb
from ate.proto.broker_grpc import IdentityBrokerBase
from ate.rpc import Call, Server, open_unix_listener, unary

log = Logger("ate.identity")
ACTOR_CA_POOL = "actor-ca-pool.json"
ACTOR_JWT_POOL = "actor-jwt-pool.json"
"""The pools the api role signs actors' credentials with, in the broker's folder, which makes them when absent."""
_ACCOUNTS = frozenset(names.SERVICE_ACCOUNTS.values())


@dataclass(frozen=True)
class BrokerConfig:
    """`directory` holds ca-pool.json (made when absent), trust-bundle.pem and broker.sock."""

    directory: Path
    trust_domain: str = "cluster.local"
    grants: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """uid -> subjects that user may ask for, besides root and the broker's own user, who may ask for all."""
    openid: OpenIdConfig | None = None
    """Where the actors' published keys are served; None: nowhere."""

    @property
    def socket(self) -> Path:
        return self.directory / "broker.sock"

    @property
    def trust_bundle(self) -> Path:
        return self.directory / "trust-bundle.pem"


class IdentityBroker(IdentityBrokerBase):
    """See the module; one instance a process."""

    def __init__(self, config: BrokerConfig, pool: Callable[[], ca.CaPool]) -> None:
        """`pool` gives what is in force now."""
        self._config, self._pool = config, pool

    @unary
    async def IssueCertificate(self, request: pb.IssueCertificateRequest, call: Call) -> pb.IssueCertificateResponse:
        self._authorise(call.peer.uid, request.subject)
        key = ca.public_key_of(request.certificate_signing_request)
        if len(request.hosts) > 16:
            raise InvalidArgument("hosts: more than 16")
        spiffe_id, pod = self._identity(request)
        pool = self._pool()
        chain = pool.issue(key, spiffe_id, holder=pod, hosts=request.hosts)
        log.info("certificate issued", spiffe_id=spiffe_id, node=request.node_name, uid=call.peer.uid)
        return pb.IssueCertificateResponse(certificates=chain, trust_bundle_pem=pool.trust_bundle_pem)

    @unary
    async def GetTrustBundle(self, request: pb.GetTrustBundleRequest, call: Call) -> pb.GetTrustBundleResponse:
        return pb.GetTrustBundleResponse(trust_bundle_pem=self._pool().trust_bundle_pem)

    def _authorise(self, uid: int | None, subject: str) -> None:
        if uid is None:
            raise PermissionDenied("the broker only serves unix sockets, where the caller's uid is known")
        if uid in (0, os.geteuid()) or subject in self._config.grants.get(uid, ()):
            return
        raise PermissionDenied(f"uid {uid} may not have a certificate for {subject!r}: see --grant of the broker")

    def _identity(self, request: pb.IssueCertificateRequest) -> tuple[str, PodIdentity | None]:
        domain = self._config.trust_domain
        if request.subject.startswith("user:"):
            user = request.subject.removeprefix("user:")
            if not names.is_long(user):
                raise InvalidArgument(f"subject: {user!r} is not a user name (lower-case letters, digits, '-', '.')")
            return names.user_id(domain, user), None
        if request.subject not in _ACCOUNTS:
            raise InvalidArgument(f"subject: unknown role account {request.subject!r}, expected {sorted(_ACCOUNTS)}")
        if not names.is_long(request.node_name):
            raise InvalidArgument(f"node_name: {request.node_name!r} is not a node name")
        pod = PodIdentity(request.subject, request.node_name, request.pod_uid)
        return names.service_account_id(domain, request.subject), pod


class _BrokerTls:
    """The broker's own certificate, signed by its own pool; made anew well before it expires by the wall clock."""

    def __init__(
        self,
        config: BrokerConfig,
        pool: Callable[[], ca.CaPool],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config, self._pool, self._now = config, pool, now
        self._hosts: Sequence[str] = ()
        self._alpn: tuple[str, ...] = ("h2",)
        self._made: tuple[Credentials, ssl.SSLContext] | None = None

    def for_https(self, host: str) -> _BrokerTls:
        """The same for a web server of that name."""
        other = _BrokerTls(self._config, self._pool, self._now)
        other._hosts, other._alpn = (host,), ("http/1.1",)
        return other

    def server_context(self) -> ssl.SSLContext:
        now = self._now()
        pool = self._pool()
        made = self._made
        if made is None or made[0].is_due(now) or made[0].trust_bundle_pem != pool.trust_bundle_pem:
            key = ec.generate_private_key(ec.SECP256R1())
            spiffe_id = names.service_account_id(self._config.trust_domain, names.SERVICE_ACCOUNTS["identity-broker"])
            chain = pool.issue(key.public_key(), spiffe_id, hosts=self._hosts, now=now)
            credentials = Credentials(key, tuple(chain), pool.trust_bundle_pem)
            context = make_context(credentials, server=True, alpn=self._alpn)
            context.verify_mode = ssl.CERT_NONE  # callers come here to get their first certificate
            made = self._made = credentials, context
        return made[1]

    def client_context(self) -> ssl.SSLContext:
        raise NotImplementedError("the broker calls nobody")


async def run_broker(
    config: BrokerConfig, stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serves until `stop` is set. Raises FailedPrecondition when the CA pool is unusable or the socket is in use."""
    config.directory.mkdir(parents=True, exist_ok=True, mode=0o755)
    ca.make_if_absent(config.directory / "ca-pool.json")
    file = ca.open_pool(config.directory / "ca-pool.json")

    def pool() -> ca.CaPool:
        return file.current().at(time.time())

    ca.make_if_absent(config.directory / ACTOR_CA_POOL, common_name="ate actor CA")
    jwt_pool.make_if_absent(config.directory / ACTOR_JWT_POOL)
    tokens = jwt_pool.open_pool(config.directory / ACTOR_JWT_POOL)
    write_whole(config.trust_bundle, pool().trust_bundle_pem, mode=0o644)
    mode = 0o666 if config.grants else 0o600
    tls = _BrokerTls(config, pool)
    listener = await open_unix_listener(config.socket, mode=mode, tls=tls)
    server = Server([IdentityBroker(config, pool)])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, [listener])
        nursery.start_soon(_keep_bundle, config.trust_bundle, pool)
        if config.openid is not None:
            host = urlsplit(config.openid.issuer).hostname or config.openid.listen_host
            context = tls.for_https(host).server_context
            if config.openid.certificate is not None:
                given_context(config.openid.certificate)
                context = partial(given_context, config.openid.certificate)  # read anew: it is renewed, too
            port = await nursery.start(serve_openid, config.openid, lambda: tokens.current().at(time.time()), context)
            log.info("OpenID keys are served", issuer=config.openid.issuer, port=port)
        task_status.started()
        await stop.wait()
        await server.drain(1.0)
        nursery.cancel_scope.cancel()


async def _keep_bundle(path: Path, pool: Callable[[], ca.CaPool]) -> None:
    """Brings the trust bundle's file in line with the pool, whose authorities come and go while this runs."""
    while True:
        await trio.sleep(LOOK_SECONDS)
        try:
            bundle = pool().trust_bundle_pem
            if path.read_text() != bundle:
                write_whole(path, bundle, mode=0o644)
                log.info("the trust bundle has changed", path=str(path))
        except (AteError, OSError) as error:
            log.warning("the trust bundle cannot be kept", path=str(path), error=str(error))
