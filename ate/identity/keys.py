"""Signing keys: making them, and the two forms they have in pool files (reference, section 6)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

PrivateKey = ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey

TYPES: Final = ("ED25519", "ECDSAP256", "RSA2048", "RSA3072", "RSA4096")
_LEAST_RSA_BITS: Final = 2048


def make(kind: str) -> PrivateKey:
    """A fresh key; `kind` is one of `TYPES`."""
    if kind == "ED25519":
        return ed25519.Ed25519PrivateKey.generate()
    if kind == "ECDSAP256":
        return ec.generate_private_key(ec.SECP256R1())
    return rsa.generate_private_key(public_exponent=65537, key_size=int(kind.removeprefix("RSA")))


def type_of(key: PrivateKey) -> str:
    """The one of `TYPES` that makes a key like this one; of a curve or size that is none, the next best."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return "ED25519"
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return "ECDSAP256"
    return "RSA2048" if key.key_size < 3072 else "RSA3072" if key.key_size < 4096 else "RSA4096"


def usable(key: object) -> bool:
    """Whether a public or private key is of a kind and strength that may stand behind an identity."""
    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        return key.key_size >= _LEAST_RSA_BITS
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        return isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1)
    return isinstance(key, ed25519.Ed25519PublicKey | ed25519.Ed25519PrivateKey)


def hash_for(key: PrivateKey) -> hashes.SHA256 | None:
    """The hash a certificate is signed with; an Ed25519 key brings its own."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()


def to_entry(key: PrivateKey) -> str:
    """The key as a pool's `SigningKeyPKCS8`: base64 of PKCS#8 in DER."""
    return base64.b64encode(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())).decode()


def from_entry(entry: Mapping[str, Any]) -> PrivateKey:
    """The key of a pool's entry, by `SigningKeyPKCS8` or `SigningKeyPEM`. ValueError or KeyError when unusable."""
    if entry.get("SigningKeyPKCS8"):
        key = serialization.load_der_private_key(base64.b64decode(entry["SigningKeyPKCS8"]), None)
    else:
        key = serialization.load_pem_private_key(entry["SigningKeyPEM"].encode(), None)
    if not isinstance(key, PrivateKey) or not usable(key):
        raise ValueError(f"the key of {entry.get('ID')!r} is neither Ed25519, a NIST curve, nor RSA of 2048 bits")
    return key
