"""Credentials of actors: JWTs and certificates, made of a pool and the actor's name. Who may have one, others decide.

Names are those of contract.md: SPIFFE id `spiffe://<trust domain>/atespace/<atespace>/actor/<name>`, JWT subject
`atespaces:<atespace>:actors:<name>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from ate.identity import ca
from ate.identity.jwt_pool import JwtPool
from ate.names import Ref, new_uid

ACTOR_TRUST_DOMAIN: Final = "substrate-actor.local"
ACTOR_IDENTITY_OID: Final = ObjectIdentifier("1.3.6.1.4.1.11129.2.12.2")
"""Extension that names the actor with its uid (reference, section 6)."""
ATUNNEL: Final = "atunnel"
"""Purpose of a certificate that a sandbox driver shows on an actor's behalf."""
CERTIFICATE_LIFETIME: Final = timedelta(hours=1)
JWT_LIFETIME: Final = timedelta(minutes=15)
_NOT_BEFORE: Final = timedelta(minutes=5)
"""How far a token's nbf lies back: tolerance for clocks that run behind (reference)."""


@dataclass(frozen=True, slots=True)
class ActorIdentity:
    """An actor as its credentials name it. `purpose` is empty for what the actor holds itself."""

    ref: Ref
    uid: str
    purpose: str = ""

    @property
    def subject(self) -> str:
        return f"atespaces:{self.ref.atespace}:actors:{self.ref.name}"

    def spiffe_id(self, trust_domain: str) -> str:
        if self.purpose:
            return f"spiffe://{trust_domain}/ateom-for-actor/{self.ref.atespace}/{self.ref.name}"
        return f"spiffe://{trust_domain}/atespace/{self.ref.atespace}/actor/{self.ref.name}"

    def to_extension(self) -> x509.UnrecognizedExtension:
        fields = {"Atespace": self.ref.atespace, "ActorName": self.ref.name, "ActorUid": self.uid}
        if self.purpose:
            fields["Purpose"] = self.purpose
        return x509.UnrecognizedExtension(ACTOR_IDENTITY_OID, json.dumps(fields).encode())


def certificate(
    pool: ca.CaPool, actor: ActorIdentity, csr_der: bytes, trust_domain: str, *, now: datetime | None = None
) -> list[bytes]:
    """A certificate for the key of the request, DER, leaf first. InvalidArgument when the request is unusable."""
    return pool.issue(
        ca.public_key_of(csr_der),
        actor.spiffe_id(trust_domain),
        holder=actor,
        lifetime=CERTIFICATE_LIFETIME,
        now=now,
    )


def token(
    pool: JwtPool,
    actor: ActorIdentity,
    issuer: str,
    audience: Sequence[str],
    lifetime: timedelta = JWT_LIFETIME,
    *,
    subject: str = "",
    now: datetime | None = None,
) -> tuple[str, datetime]:
    """(a signed token, when it expires). `subject` is the actor's own unless given."""
    now = (now or datetime.now(UTC)).replace(microsecond=0)
    expires = now + lifetime
    claims = {
        "iss": issuer,
        "sub": subject or actor.subject,
        "aud": list(audience),
        "iat": int(now.timestamp()),
        "nbf": int((now - _NOT_BEFORE).timestamp()),
        "exp": int(expires.timestamp()),
        "jti": new_uid(),
        "ate.dev": {"atespace": actor.ref.atespace, "actorName": actor.ref.name, "actorUID": actor.uid},
    }
    return pool.sign(claims), expires
