"""Credentials for actors, asked for by the agent of the node that runs them. One set of checks for all five RPCs.

Whoever fails one is told the same PERMISSION_DENIED, so that an agent learns nothing of actors it does not run; only an
actor that is there with that uid and does not run is FAILED_PRECONDITION (contract.md).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from ate.api.kinds import ACTORS, ASSIGNMENTS, WORKERS
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.errors import FailedPrecondition, PermissionDenied
from ate.identity import actors, ca, jwt_pool
from ate.log import Logger
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto import node_pb2
from ate.store import Key, Store, Tx

log = Logger("ate.api")

ISSUER: Final = "https://api.ate-system.svc"
_MOST_AUDIENCES: Final = 16
_LONGEST_AUDIENCE: Final = 512
_JWT_SECONDS: Final = (300, 3600)
_REMEMBERED: Final = 100_000
"""Signing requests kept to refuse their second use; a certificate's hour at 28 a second."""


@dataclass(frozen=True)
class MintingConfig:
    """Where the actors' pools lie, and what their credentials say of who made them."""

    ca_pool: Path = Path("actor-ca-pool.json")
    jwt_pool: Path = Path("actor-jwt-pool.json")
    issuer: str = ISSUER
    trust_domain: str = actors.ACTOR_TRUST_DOMAIN


_ByRef = pb.MintActorCertificateRequest | pb.MintAteomActorCertificateRequest


class Minter:
    """See the module."""

    def __init__(self, config: MintingConfig, store: Store, wall_clock: Callable[[], float]) -> None:
        self._config, self._store, self._wall_clock = config, store, wall_clock
        self._ca, self._jwt = ca.open_pool(config.ca_pool), jwt_pool.open_pool(config.jwt_pool)
        self._used: OrderedDict[bytes, None] = OrderedDict()

    async def actor_jwt(self, request: pb.MintActorJWTRequest, node: str) -> pb.MintActorJWTResponse:
        problems = Problems()
        rules.ref(problems, "actor", request.HasField("actor"), request.actor, scoped=True)
        _check_audience(problems, request.audience)
        seconds = request.expiration_seconds
        _check_seconds(problems, seconds)
        problems.uuid("actor_uid", request.actor_uid)
        problems.raise_if_any()
        ref = Ref(request.actor.atespace, request.actor.name)
        token, expires = await self._token(node, ref, request.actor_uid, request.audience, seconds)
        return pb.MintActorJWTResponse(actor_jwt=token, expires_at=expires)

    async def jwt_svid(self, request: node_pb2.MintActorTokenRequest, node: str) -> node_pb2.MintActorTokenResponse:
        problems = Problems()
        ref = _flat_ref(problems, request)
        _check_audience(problems, request.audience)
        _check_seconds(problems, request.expiration_seconds)
        problems.raise_if_any()
        token, expires = await self._token(
            node, ref, request.actor_uid, request.audience, request.expiration_seconds, spiffe=True
        )
        return node_pb2.MintActorTokenResponse(token=token, expires_at_unix=expires.seconds)

    async def jwt(self, request: pb.MintJWTRequest, node: str) -> pb.MintJWTResponse:
        problems = Problems()
        ref = _flat_ref(problems, request)
        _check_audience(problems, request.audience)
        problems.raise_if_any()
        token, expires = await self._token(node, ref, request.actor_uid, request.audience, 0)
        return pb.MintJWTResponse(actor_jwt=token, expires_at=expires)

    async def actor_certificate(self, request: _ByRef, node: str, purpose: str = "") -> list[bytes]:
        """DER, leaf first."""
        problems = Problems()
        rules.ref(problems, "actor", request.HasField("actor"), request.actor, scoped=True)
        problems.uuid("actor_uid", request.actor_uid)
        problems.raise_if_any()
        ref = Ref(request.actor.atespace, request.actor.name)
        return await self._certificate(node, ref, request.actor_uid, request.certificate_signing_request, purpose)

    async def certificate(self, request: pb.MintCertRequest, node: str) -> list[bytes]:
        """DER, leaf first."""
        problems = Problems()
        ref = _flat_ref(problems, request)
        problems.raise_if_any()
        return await self._certificate(node, ref, request.actor_uid, request.certificate_signing_request, "")

    async def _token(
        self, node: str, ref: Ref, uid: str, audience: Sequence[str], seconds: int, *, spiffe: bool = False
    ) -> tuple[str, Timestamp]:
        actor = await self._hosted(node, ref, uid)
        lifetime = timedelta(seconds=seconds) if seconds else actors.JWT_LIFETIME
        pool = self._jwt.current().at(self._wall_clock())
        subject = actor.spiffe_id(self._config.trust_domain) if spiffe else ""
        signed, end = actors.token(
            pool, actor, self._config.issuer, audience, lifetime, subject=subject, now=self._now()
        )
        log.info("actor token minted", actor=str(ref), actor_uid=uid, node=node, audience=list(audience))
        expires = Timestamp()
        expires.FromDatetime(end)
        return signed, expires

    async def _certificate(self, node: str, ref: Ref, uid: str, csr: bytes, purpose: str) -> list[bytes]:
        """A signing request serves once: a second use of it is denied like any other failed check."""
        ca.public_key_of(csr)  # InvalidArgument before anything is looked up
        actor = await self._hosted(node, ref, uid, purpose)
        digest = sha256(csr).digest()
        if digest in self._used:
            raise _denied("signing request used before", node, ref)
        pool = self._ca.current().at(self._wall_clock())
        chain = actors.certificate(pool, actor, csr, self._config.trust_domain, now=self._now())
        self._used[digest] = None
        if len(self._used) > _REMEMBERED:
            self._used.popitem(last=False)
        log.info("actor certificate minted", actor=str(ref), actor_uid=uid, node=node, purpose=purpose)
        return chain

    def trust(self) -> node_pb2.GetActorTrustResponse:
        """What those need who verify what is minted here."""
        now = self._wall_clock()
        return node_pb2.GetActorTrustResponse(
            trust_domain=self._config.trust_domain,
            trust_bundle_pem=self._ca.current().at(now).trust_bundle_pem,
            issuer=self._config.issuer,
            jwks=json.dumps(self._jwt.current().at(now).jwks()),
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._wall_clock(), UTC)

    async def _hosted(self, node: str, ref: Ref, uid: str, purpose: str = "") -> actors.ActorIdentity:
        """The actor, if it runs on the node as far as anybody can tell: status, worker, epoch and claim agree."""
        why = await self._store.transact(lambda tx: _why_not(tx, node, ref, uid))
        if isinstance(why, str):
            raise _denied(why, node, ref)
        if why is not None:
            raise why
        return actors.ActorIdentity(ref, uid, purpose)


def _why_not(tx: Tx, node: str, ref: Ref, uid: str) -> str | FailedPrecondition | None:
    actor = tx.get(ACTORS, Key(ref.atespace, ref.name))
    if actor is None or actor.uid != uid:
        return "no such actor"
    if actor.value.status.state != pb.ACTOR_STATE_RUNNING:
        return FailedPrecondition(f"actor {ref} is not running")
    assigned = actor.value.status.worker_assignment
    if not node or assigned.node_name != node:
        return "the actor runs on another node"
    worker = tx.get(WORKERS, Key("", assigned.worker.name))
    if worker is None or worker.value.node_name != node or worker.value.epoch != assigned.worker_epoch:
        return "its worker was lost or is another one"
    claim = tx.get(ASSIGNMENTS, Key(assigned.worker.name, uid))
    if claim is None or claim.value.actor_uid != uid or claim.value.worker_epoch != assigned.worker_epoch:
        return "its worker does not hold it"
    return None


def _denied(why: str, node: str, ref: Ref) -> PermissionDenied:
    log.warning("an actor's credential was denied", reason=why, node=node, actor=str(ref))
    return PermissionDenied("permission denied")


_Flat = pb.MintJWTRequest | pb.MintCertRequest | node_pb2.MintActorTokenRequest


def _flat_ref(problems: Problems, request: _Flat) -> Ref:
    problems.short("atespace", request.atespace)
    problems.short("actor_name", request.actor_name)
    problems.uuid("actor_uid", request.actor_uid)
    return Ref(request.atespace, request.actor_name)


def _check_seconds(problems: Problems, seconds: int) -> None:
    least, most = _JWT_SECONDS
    problems.check("expiration_seconds", seconds == 0 or least <= seconds <= most, f"must be {least}..{most}")


def _check_audience(problems: Problems, audience: Sequence[str]) -> None:
    problems.check("audience", len(audience) > 0, "is required")
    problems.at_most("audience", audience, _MOST_AUDIENCES)
    for number, name in enumerate(audience):
        problems.length(f"audience[{number}]", name, _LONGEST_AUDIENCE, required=True)
