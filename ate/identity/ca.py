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
from typing import Final, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ate.errors import FailedPrecondition, InvalidArgument
from ate.files import write_whole
from ate.identity import keys
from ate.identity.pool_file import PoolFile
from ate.identity.rotation import Term, in_force, term_of

LEAF_LIFETIME = timedelta(hours=1)
"""Of a role's certificate, which is renewed at two thirds of it."""
BACKDATED = timedelta(minutes=2)
"""Tolerance for peers whose clocks run behind; the reference's figure."""
_ROOT_LIFETIME = timedelta(days=3650)
_MAX_CSR_BYTES = 16384


class Holder(Protocol):
    """Whom a certificate is for: a role's process (`spiffe.PodIdentity`) or an actor (`actors.ActorIdentity`)."""

    def to_extension(self) -> x509.UnrecognizedExtension: ...


@dataclass(frozen=True, slots=True)
class Authority:
    """One signing key with its self-signed root, and what lies between the root and that key, nearest first."""

    id: str
    key: keys.PrivateKey
    root: x509.Certificate
    intermediates: tuple[x509.Certificate, ...] = ()
    term: Term = Term()  # noqa: RUF009 - frozen

    @property
    def issuer(self) -> x509.Certificate:
        """The certificate of the signing key."""
        return self.intermediates[0] if self.intermediates else self.root


@dataclass(frozen=True, slots=True)
class CaPool:
    """All trusted authorities, the signing one first."""

    authorities: tuple[Authority, ...]

    def at(self, now: float) -> CaPool:
        """The pool as it is in force at `now` (Unix seconds). FailedPrecondition when nothing of it is."""
        found = in_force([(authority.term, authority) for authority in self.authorities], now)
        if not found:
            raise FailedPrecondition("no authority of the CA pool is trusted any more: make another pool")
        return CaPool(found)

    @property
    def trust_bundle_pem(self) -> str:
        return "".join(a.root.public_bytes(Encoding.PEM).decode() for a in self.authorities)

    def issue(
        self,
        public_key: keys.PublicKey,
        spiffe_id: str,
        *,
        holder: Holder | None = None,
        hosts: Sequence[str] = (),
        lifetime: timedelta = LEAF_LIFETIME,
        now: datetime | None = None,
    ) -> list[bytes]:
        """A leaf for `public_key` bearing `spiffe_id` (and host names or addresses), as DER, leaf first.

        `holder` says more of whom it is for, in an extension.
        """
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
            .issuer_name(signer.issuer.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATED)
            .not_valid_after(now + lifetime)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
        )
        if holder is not None:
            builder = builder.add_extension(holder.to_extension(), critical=False)
        leaf = builder.sign(signer.key, keys.hash_for(signer.key))
        return [certificate.public_bytes(Encoding.DER) for certificate in (leaf, *signer.intermediates)]


def _usage(*, digital_signature: bool = False, signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def public_key_of(csr_der: bytes) -> keys.PublicKey:
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
    if not isinstance(key, keys.PublicKey) or not keys.usable(key):
        raise InvalidArgument(
            "certificate_signing_request: the key must be Ed25519, ECDSA on a NIST curve, or RSA of 2048 bits or more"
        )
    return key


def make_authority(
    authority_id: str, *, common_name: str = "ate CA", key_type: str = "ECDSAP256", now: datetime | None = None
) -> Authority:
    """A new authority with a key of `key_type` (one of `keys.TYPES`) and a self-signed root."""
    now = now or datetime.now(UTC)
    key = keys.make(key_type)
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
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, keys.hash_for(key))
    )
    return Authority(authority_id, key, root)


def common_name(authority: Authority) -> str:
    """The name its root was made with, without the id."""
    names = authority.root.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value).removesuffix(f" {authority.id}") if names else "ate CA"


LIST: Final = "CAs"
"""Where a pool file keeps its entries."""


def to_json(pool: CaPool) -> str:
    return json.dumps({LIST: [to_entry(authority) for authority in pool.authorities]}, indent=1)


def to_entry(authority: Authority) -> dict[str, object]:
    """An authority as a pool file keeps it, its term aside."""
    made: dict[str, object] = {
        "ID": authority.id,
        "SigningKeyPKCS8": keys.to_entry(authority.key),
        "RootCertificateDER": _encode(authority.root),
    }
    if authority.intermediates:
        made["IntermediateCertificatesDER"] = [_encode(certificate) for certificate in authority.intermediates]
    return made


def _encode(certificate: x509.Certificate) -> str:
    return base64.b64encode(certificate.public_bytes(Encoding.DER)).decode()


def parse(text: str) -> CaPool:
    """Reads a pool file's text; ValueError, KeyError or TypeError when it is unusable."""
    authorities = []
    for entry in json.loads(text)[LIST]:
        key = keys.from_entry(entry)
        if entry.get("RootCertificateDER"):
            root = x509.load_der_x509_certificate(base64.b64decode(entry["RootCertificateDER"]))
        else:
            root = x509.load_pem_x509_certificate(entry["RootCertificatePEM"].encode())
        between = tuple(
            x509.load_der_x509_certificate(base64.b64decode(der))
            for der in entry.get("IntermediateCertificatesDER") or ()
        )
        authority = Authority(str(entry["ID"]), key, root, between, term_of(entry))
        if authority.issuer.public_key() != key.public_key():
            raise ValueError(f"the key of authority {authority.id!r} is not that of its certificate")
        authorities.append(authority)
    if not authorities:
        raise ValueError("it lists no authority")
    return CaPool(tuple(authorities))


def open_pool(path: Path) -> PoolFile[CaPool]:
    return PoolFile(path, parse, what="CA pool")


def load(path: Path) -> CaPool:
    """Reads a pool file; FailedPrecondition naming the file when it is unusable."""
    return open_pool(path).current()


def make_if_absent(path: Path, *, common_name: str = "ate CA") -> None:
    """Makes the pool at `path` (mode 0600, written whole or not at all) when there is none."""
    if not path.exists():
        write_whole(path, to_json(CaPool((make_authority("1", common_name=common_name),))))


def load_or_make(path: Path) -> CaPool:
    """The pool at `path`, made when there is none."""
    make_if_absent(path)
    return load(path)
