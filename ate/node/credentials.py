"""Credentials of the actor that is active in a worker, kept while they are fresh and no longer than it is awake.

What was minted is handed out again for half its life by the wall clock. Another actor, or the same one after a sleep,
starts with nothing. Behind both doors of the gateway: the metadata endpoint and the SPIFFE Workload API.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ate.errors import FailedPrecondition
from ate.node.worker import Active
from ate.proto import node_pb2
from ate.proto.node_grpc import ActorCredentialsStub

T = TypeVar("T")

PATIENCE: Final = 30.0
_FRESH: Final = 0.5
_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Token:
    """`expires_at` in Unix seconds."""

    text: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Certificate:
    """`chain` leaf first; `bundle` is what the actors' certificates are trusted by."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[x509.Certificate, ...]
    bundle: tuple[x509.Certificate, ...]
    expires_at: int

    @property
    def spiffe_id(self) -> str:
        names = self.chain[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.UniformResourceIdentifier)[0]


@dataclass
class _Life:
    """One waking life of an actor: question -> (answer, Unix seconds until it is handed out)."""

    active: Active
    answers: dict[tuple[Any, ...], tuple[Any, float]] = field(default_factory=dict)


class Credentials:
    """`active` gives the actor that runs here, `mint` is the node's agent."""

    def __init__(
        self,
        active: Callable[[], Active | None],
        mint: ActorCredentialsStub,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.active, self.wall_clock = active, wall_clock
        self._mint = mint
        self._life: _Life | None = None

    async def token(self, active: Active, audience: Sequence[str], seconds: int = 0, *, spiffe: bool = False) -> Token:
        """`spiffe`: a JWT-SVID. Raises what the control plane says."""

        async def ask() -> Token:
            answer = await self._mint.MintActorToken(
                node_pb2.MintActorTokenRequest(
                    atespace=active.ref.atespace,
                    actor_name=active.ref.name,
                    actor_uid=active.uid,
                    audience=audience,
                    expiration_seconds=seconds,
                    spiffe=spiffe,
                ),
                timeout=PATIENCE,
            )
            return Token(answer.token, answer.expires_at_unix)

        return await self._kept_or(active, ("token", tuple(audience), seconds, spiffe), ask)

    async def certificate(self, active: Active) -> Certificate:
        """For a key made here. Raises what the control plane says."""

        async def ask() -> Certificate:
            key = ec.generate_private_key(ec.SECP256R1())
            csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
            answer = await self._mint.MintActorOwnCertificate(
                node_pb2.MintActorOwnCertificateRequest(
                    atespace=active.ref.atespace,
                    actor_name=active.ref.name,
                    actor_uid=active.uid,
                    certificate_signing_request=csr.public_bytes(Encoding.DER),
                ),
                timeout=PATIENCE,
            )
            chain = tuple(x509.load_der_x509_certificate(der) for der in answer.certificates)
            bundle = tuple(x509.load_pem_x509_certificates(answer.trust_bundle_pem.encode()))
            return Certificate(key, chain, bundle, int(chain[0].not_valid_after_utc.timestamp()))

        return await self._kept_or(active, ("certificate",), ask)

    async def trust(self) -> node_pb2.GetActorTrustResponse:
        """What verifies actors' credentials, as of now."""
        return await self._mint.GetTrust(node_pb2.GetActorTrustRequest(), timeout=PATIENCE)

    async def _kept_or(self, active: Active, question: tuple[Any, ...], ask: Callable[[], Awaitable[T]]) -> T:
        if self._life is None or self._life.active is not active:
            self._life = _Life(active)
        answers = self._life.answers
        now = self.wall_clock()
        found, until = answers.get(question, (None, 0.0))
        if found is not None and now < until:
            return found  # type: ignore[no-any-return]
        answer: Any = await ask()
        if self.active() is not active:
            raise FailedPrecondition("the actor has left this worker")
        answers.pop(question, None)
        if len(answers) >= _KEPT:
            del answers[next(iter(answers))]
        answers[question] = (answer, now + (answer.expires_at - now) * _FRESH)
        return answer  # type: ignore[no-any-return]
