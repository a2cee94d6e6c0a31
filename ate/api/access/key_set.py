"""A provider's public keys as tokens name them: a JWK Set, read into keys that verify signatures and do nothing else.

Symmetric keys, keys for encryption and forms we do not know are left out: a token that names one has an unknown key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

_MOST_KEYS: Final = 100
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS: Final = frozenset((*_RSA, *_CURVES.values(), "EdDSA"))
"""What a token may be signed with: asymmetric all, so that nobody who knows the public keys can sign."""

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """`algorithms`: what may be verified with it, by its type and by what its owner says of it."""

    key: PublicKey
    algorithms: tuple[str, ...]


def read(document: Any) -> dict[str, VerifyingKey]:
    """By key id (`kid`). ValueError when the document is no JWK Set or holds nothing that could verify a token."""
    entries = document.get("keys") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        raise ValueError("is no JWK Set: it has no list `keys`")
    if len(entries) > _MOST_KEYS:
        raise ValueError(f"has {len(entries)} keys, more than {_MOST_KEYS}")
    found: dict[str, VerifyingKey] = {}
    for entry in entries:
        kid = entry.get("kid") if isinstance(entry, Mapping) else None
        if isinstance(kid, str) and kid not in found and entry.get("use", "sig") == "sig":
            key = _key(entry)
            if key is not None:
                found[kid] = key
    if not found:
        raise ValueError("holds no key with an id (kid) that could verify a token")
    return found


def _key(entry: Mapping[str, Any]) -> VerifyingKey | None:
    if entry.get("kty") not in ("RSA", "EC", "OKP"):
        return None
    try:
        # An algorithm of the key's type, for PyJWT to read it by; what it may be used for is decided below.
        key = jwt.PyJWK(dict(entry), algorithm={"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}[entry["kty"]]).key
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, OverflowError):
        return None
    algorithms = _algorithms(key)
    said = entry.get("alg")
    if said is not None:
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm == said)
    return VerifyingKey(key, algorithms) if algorithms else None


def _algorithms(key: object) -> tuple[str, ...]:
    """Empty for a private key, one too short to be worth anything, or a curve we do not know."""
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= 2048 else ()
    if isinstance(key, ec.EllipticCurvePublicKey):
        algorithm = _CURVES.get(key.curve.name)
        return (algorithm,) if algorithm else ()
    return ("EdDSA",) if isinstance(key, ed25519.Ed25519PublicKey) else ()
