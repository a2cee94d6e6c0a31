"""TLS contexts from an identity, made anew whenever the identity was renewed, so that nothing restarts for it.

Peers are verified against the trust bundle only; who they are is decided by their SPIFFE id (`ate.identity.spiffe`),
so host names are not checked. TLS 1.3, client certificates required but where callers may show a token instead.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from ate.errors import FailedPrecondition

RENEW_AT = 2 / 3
"""Share of a certificate's life after which it is renewed, leaving a third to ride out a broker that is away."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A private key with its certificate chain (DER, leaf first) and the roots it trusts (PEM)."""

    key: ec.EllipticCurvePrivateKey
    chain: tuple[bytes, ...]
    trust_bundle_pem: str

    def is_due(self, now: datetime) -> bool:
        """Whether to renew at `now`, by the wall clock, which is what peers check by and what goes on in a sleep.

        That is after `RENEW_AT` of its life, and also before it has begun: the clock was set back since it was issued;
        and once another authority signs, which stands first among the trusted ones: its own may be on its way out.
        """
        leaf = x509.load_der_x509_certificate(self.chain[0])
        begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        if not begin <= now < begin + (end - begin) * RENEW_AT:
            return True
        signing = x509.load_pem_x509_certificates(self.trust_bundle_pem.encode())[0]
        return x509.load_der_x509_certificate(self.chain[-1]).issuer != signing.subject

    def bundle_pem(self) -> bytes:
        """Key and chain in one PEM, as the reference's credential-bundle.pem."""
        key = self.key.private_bytes(Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        certificates = [x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in self.chain]
        return key + b"".join(certificates)


@dataclass
class Identity:
    """The current credentials of a process, and TLS contexts for them. A `TlsProvider` of `ate.rpc`."""

    credentials: Credentials
    _contexts: dict[tuple[str, int], ssl.SSLContext] = field(default_factory=dict)

    def renew(self, credentials: Credentials) -> None:
        """Replaces the credentials; connections made from now on use the new ones."""
        self.credentials = credentials
        self._contexts.clear()

    def server_context(self) -> ssl.SSLContext:
        """For gRPC servers: ALPN h2, client certificate required."""
        return self._context("server", ("h2",))

    def optional_server_context(self) -> ssl.SSLContext:
        """For gRPC servers: ALPN h2; a client may come without a certificate, a bad one is refused all the same."""
        return self._context("optional-server", ("h2",))

    def client_context(self) -> ssl.SSLContext:
        """For gRPC clients: ALPN h2."""
        return self._context("client", ("h2",))

    def http_server_context(self) -> ssl.SSLContext:
        """For the tunnel: HTTP/1.1, client certificate required."""
        return self._context("server", ("http/1.1",))

    def http_client_context(self) -> ssl.SSLContext:
        """For the router's upstream connections."""
        return self._context("client", ("http/1.1",))

    def _context(self, side: str, alpn: tuple[str, ...]) -> ssl.SSLContext:
        key = (side + alpn[0], id(self.credentials))
        if key not in self._contexts:
            context = make_context(self.credentials, server=side != "client", alpn=alpn)
            if side == "optional-server":
                context.verify_mode = ssl.CERT_OPTIONAL
            self._contexts[key] = context
        return self._contexts[key]


@dataclass(frozen=True)
class CertificateOptional:
    """A `TlsProvider` of `ate.rpc` for servers that also know callers by what their calls say."""

    identity: Identity

    def server_context(self) -> ssl.SSLContext:
        return self.identity.optional_server_context()

    def client_context(self) -> ssl.SSLContext:
        return self.identity.client_context()


def make_context(credentials: Credentials, *, server: bool, alpn: tuple[str, ...]) -> ssl.SSLContext:
    """A TLS 1.3 context that presents `credentials` and demands a certificate of one of its roots from the peer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(list(alpn))
    try:
        context.load_verify_locations(cadata=credentials.trust_bundle_pem)
        # The ssl module only reads keys from files; an anonymous memory file never touches a disk.
        handle = os.memfd_create("ate-credentials", os.MFD_CLOEXEC)
        try:
            os.write(handle, credentials.bundle_pem())
            context.load_cert_chain(f"/proc/self/fd/{handle}")
        finally:
            os.close(handle)
    except (ssl.SSLError, ValueError) as error:
        raise FailedPrecondition(f"the certificate or trust bundle cannot be used: {error}")
    return context


def trust_only_context(trust_bundle_pem: str) -> ssl.SSLContext:
    """A client context without a certificate: for the broker, which knows its callers by their uid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=trust_bundle_pem)
    return context
