"""The JWT pool: the first authority signs, all are published, so that a token outlives a rotation.

The file is the reference's JWT pool JSON (section 6). Signing and the JWK form are PyJWT's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from ate.errors import FailedPrecondition
from ate.files import write_whole
from ate.identity import keys
from ate.identity.pool_file import PoolFile
from ate.identity.rotation import Term, in_force, term_of

ALGORITHMS: Final = {"ES256": "ECDSAP256", "RS256": "RSA2048", "RS384": "RSA3072", "RS512": "RSA4096"}
"""Algorithm -> type of the key made for it."""


@dataclass(frozen=True, slots=True)
class JwtAuthority:
    """One signing key; `id` is the `kid` of its tokens."""

    id: str
    algorithm: str
    key: keys.PrivateKey
    term: Term = Term()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class JwtPool:
    """All published authorities, the signing one first."""

    authorities: tuple[JwtAuthority, ...]

    def at(self, now: float) -> JwtPool:
        """The pool as it is in force at `now` (Unix seconds). FailedPrecondition when nothing of it is."""
        found = in_force([(authority.term, authority) for authority in self.authorities], now)
        if not found:
            raise FailedPrecondition("no authority of the JWT pool is published any more: make another pool")
        return JwtPool(found)

    def sign(self, claims: Mapping[str, Any]) -> str:
        """A compact token (JWS)."""
        import jwt

        signer = self.authorities[0]
        return jwt.encode(dict(claims), signer.key, signer.algorithm, headers={"kid": signer.id})

    def jwks(self) -> dict[str, Any]:
        """The public keys as a JWK Set."""
        from jwt import algorithms

        found = []
        for authority in self.authorities:
            form: Any = algorithms.RSAAlgorithm if authority.algorithm[0] == "R" else algorithms.ECAlgorithm
            public = form.to_jwk(authority.key.public_key(), as_dict=True)
            public.pop("key_ops", None)
            found.append({**public, "kid": authority.id, "alg": authority.algorithm, "use": "sig"})
        return {"keys": found}


def make_authority(authority_id: str, algorithm: str = "ES256") -> JwtAuthority:
    """A new authority; `algorithm` is one of `ALGORITHMS`."""
    return JwtAuthority(authority_id, algorithm, keys.make(ALGORITHMS[algorithm]))


LIST: Final = "Authorities"
"""Where a pool file keeps its entries."""


def to_json(pool: JwtPool) -> str:
    return json.dumps({LIST: [to_entry(authority) for authority in pool.authorities]}, indent=1)


def to_entry(authority: JwtAuthority) -> dict[str, str]:
    """An authority as a pool file keeps it, its term aside."""
    return {
        "ID": authority.id,
        "Algorithm": authority.algorithm,
        "SigningKeyPKCS8": keys.to_entry(authority.key),
    }


def parse(text: str) -> JwtPool:
    """Reads a pool file's text; ValueError, KeyError or TypeError when it is unusable."""
    authorities = []
    for entry in json.loads(text)[LIST]:
        key, algorithm = keys.from_entry(entry), entry["Algorithm"]
        if algorithm not in ALGORITHMS:
            raise ValueError(f"authority {entry['ID']!r} has algorithm {algorithm!r}, expected {sorted(ALGORITHMS)}")
        fits = isinstance(key, rsa.RSAPrivateKey) if algorithm[0] == "R" else _is_p256(key)
        if not fits:
            raise ValueError(f"the key of authority {entry['ID']!r} cannot sign {algorithm}")
        authorities.append(JwtAuthority(str(entry["ID"]), algorithm, key, term_of(entry)))
    if not authorities:
        raise ValueError("it lists no authority")
    if len({authority.id for authority in authorities}) < len(authorities):
        raise ValueError("two authorities have the same ID")
    return JwtPool(tuple(authorities))


def _is_p256(key: object) -> bool:
    return isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)


def open_pool(path: Path) -> PoolFile[JwtPool]:
    return PoolFile(path, parse, what="JWT pool")


def make_if_absent(path: Path) -> None:
    """Makes the pool at `path` (mode 0600, written whole or not at all) when there is none."""
    if not path.exists():
        write_whole(path, to_json(JwtPool((make_authority("1"),))))
