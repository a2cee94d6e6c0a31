"""The CA pool: the first authority signs, all of them are trusted, so that a rotation never breaks a handshake.

The file is the reference's CA pool JSON (section 6), readable by root only. The pool is made on first use.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ate.errors import FailedPrecondition, InvalidArgument
from ate.files import write_whole
from ate.identity.spiffe import PodIdentity

LEAF_LIFETIME = timedelta(hours=24)
"""As the reference's pod certificates."""
BACKDATED = timedelta(minutes=2)
"""Tolerance for peers whose clocks run behind; the reference's figure."""
_ROOT_LIFETIME = timedelta(days=3650)
_MAX_CSR_BYTES = 16384


@dataclass(frozen=True, slots=True)
class Authority:
    """One signing key with its self-signed root."""

    id: str
    key: ec.EllipticCurvePrivateKey
    root: x509.Certificate


@dataclass(frozen=True, slots=True)
class CaPool:
    """All trusted authorities, the signing one first."""

    authorities: tuple[Authority, ...]

    @property
    def trust_bundle_pem(self) -> str:
        return "".join(a.root.public_bytes(Encoding.PEM).decode() for a in self.authorities)

    def issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        spiffe_id: str,
        *,
        pod: PodIdentity | None = None,
        hosts: Sequence[str] = (),
        lifetime: timedelta = LEAF_LIFETIME,
        now: datetime | None = None,
    ) -> list[bytes]:
        """A leaf for `public_key` bearing `spiffe_id` (and host names or addresses), as DER, leaf first."""
        now = now or datetime.now(UTC)
        signer = self.authorities[0]
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(spiffe_id)]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(signer.root.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + lifetime)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        if pod is not None:
            builder = builder.add_extension(pod.to_extension(), critical=False)
        return [builder.sign(signer.key, hashes.SHA256()).public_bytes(Encoding.DER)]


def public_key_of(csr_der: bytes) -> ec.EllipticCurvePublicKey:
    """The public key of a PKCS#10 request whose own signature holds; InvalidArgument otherwise."""
    if len(csr_der) > _MAX_CSR_BYTES:
        raise InvalidArgument(f"certificate_signing_request: longer than {_MAX_CSR_BYTES} bytes")
    try:
        request = x509.load_der_x509_csr(csr_der)
    except ValueError as error:
        raise InvalidArgument(f"certificate_signing_request: not PKCS#10 in DER ({error})")
    if not request.is_signature_valid:
        raise InvalidArgument("certificate_signing_request: its signature does not match its key")
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgument("certificate_signing_request: the key must be an elliptic-curve key")
    return key


def make_authority(authority_id: str, *, common_name: str = "ate CA", now: datetime | None = None) -> Authority:
    """A new authority with a P-256 key and a self-signed root."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{common_name} {authority_id}")])
    root = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _ROOT_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(authority_id, key, root)


def _to_json(pool: CaPool) -> str:
    def entry(authority: Authority) -> dict[str, object]:
        pkcs8 = authority.key.private_bytes(
            Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "ID": authority.id,
            "SigningKeyPKCS8": base64.b64encode(pkcs8).decode(),
            "RootCertificateDER": base64.b64encode(authority.root.public_bytes(Encoding.DER)).decode(),
        }

    return json.dumps({"CAs": [entry(a) for a in pool.authorities]}, indent=1)


def load(path: Path) -> CaPool:
    """Reads a pool file; FailedPrecondition naming the file when it is unusable."""
    try:
        authorities = []
        for entry in json.loads(path.read_text())["CAs"]:
            if "SigningKeyPKCS8" in entry:
                key = serialization.load_der_private_key(base64.b64decode(entry["SigningKeyPKCS8"]), None)
            else:
                key = serialization.load_pem_private_key(entry["SigningKeyPEM"].encode(), None)
            if "RootCertificateDER" in entry:
                root = x509.load_der_x509_certificate(base64.b64decode(entry["RootCertificateDER"]))
            else:
                root = x509.load_pem_x509_certificate(entry["RootCertificatePEM"].encode())
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                raise ValueError(f"authority {entry['ID']} has no elliptic-curve key")
            authorities.append(Authority(entry["ID"], key, root))
        if not authorities:
            raise ValueError("it lists no authority")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FailedPrecondition(f"the CA pool {path} cannot be used: {error}")
    return CaPool(tuple(authorities))


def load_or_make(path: Path) -> CaPool:
    """The pool at `path`, made (mode 0600, written whole or not at all) when there is none."""
    if path.exists():
        return load(path)
    pool = CaPool((make_authority("1"),))
    write_whole(path, _to_json(pool))
    return pool
