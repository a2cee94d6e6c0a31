"""SPIFFE ids and pod identities in X.509 certificates: writing them, reading them, and demanding one of a peer."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import ObjectIdentifier

from ate.errors import PermissionDenied, Unauthenticated

POD_IDENTITY_OID = ObjectIdentifier("1.3.6.1.4.1.11129.2.12.1")
"""Extension that pins a certificate to a pod and a node (reference, section 6)."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """Where a role's process runs. On one machine the pod uid of an ateom is its worker's uid."""

    service_account: str
    node_name: str
    pod_uid: str = ""
    namespace: str = "ate-system"

    def to_extension(self) -> x509.UnrecognizedExtension:
        fields = {
            "Namespace": self.namespace,
            "ServiceAccountName": self.service_account,
            "PodUID": self.pod_uid,
            "NodeName": self.node_name,
        }
        return x509.UnrecognizedExtension(POD_IDENTITY_OID, json.dumps(fields).encode())


@dataclass(frozen=True, slots=True)
class Caller:
    """What a verified certificate says of its holder."""

    spiffe_id: str
    pod: PodIdentity | None


@functools.lru_cache(maxsize=4096)  # asked for every call, and reading X.509 costs as much as the rest of a call's head
def read(certificate_der: bytes) -> Caller:
    """The SPIFFE id (exactly one URI name) and pod identity of a certificate; Unauthenticated when it has none."""
    certificate = x509.load_der_x509_certificate(certificate_der)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise Unauthenticated("the certificate carries no single SPIFFE id")
    try:
        extension = certificate.extensions.get_extension_for_oid(POD_IDENTITY_OID).value
    except x509.ExtensionNotFound:
        return Caller(uris[0], None)
    assert isinstance(extension, x509.UnrecognizedExtension)
    fields = json.loads(extension.value)
    pod = PodIdentity(
        service_account=fields.get("ServiceAccountName", ""),
        node_name=fields.get("NodeName", ""),
        pod_uid=fields.get("PodUID", ""),
        namespace=fields.get("Namespace", ""),
    )
    return Caller(uris[0], pod)


def caller_of(certificate_der: bytes | None) -> Caller:
    """The caller behind a connection; Unauthenticated when it showed no certificate."""
    if certificate_der is None:
        raise Unauthenticated("this call needs a client certificate")
    return read(certificate_der)


def demand(ids: Collection[str], *, pod_uid: str = "", node_name: str = "") -> Callable[[bytes | None], None]:
    """A check that a peer's certificate bears one of `ids` (and, where given, that pod uid and node)."""

    def check(certificate_der: bytes | None) -> None:
        caller = caller_of(certificate_der)
        if caller.spiffe_id not in ids:
            raise PermissionDenied(f"the peer is {caller.spiffe_id}, expected {' or '.join(sorted(ids))}")
        if pod_uid and (caller.pod is None or caller.pod.pod_uid != pod_uid):
            raise PermissionDenied(f"the peer is another worker than {pod_uid}")
        if node_name and (caller.pod is None or caller.pod.node_name != node_name):
            raise PermissionDenied(f"the peer is on another node than {node_name}")

    return check
