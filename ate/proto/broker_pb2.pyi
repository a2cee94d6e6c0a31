from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class IssueCertificateRequest(_message.Message):
    __slots__ = ("certificate_signing_request", "subject", "node_name", "pod_uid", "hosts")
    CERTIFICATE_SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    certificate_signing_request: bytes
    subject: str
    node_name: str
    pod_uid: str
    hosts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, certificate_signing_request: _Optional[bytes] = ..., subject: _Optional[str] = ..., node_name: _Optional[str] = ..., pod_uid: _Optional[str] = ..., hosts: _Optional[_Iterable[str]] = ...) -> None: ...

class IssueCertificateResponse(_message.Message):
    __slots__ = ("certificates", "trust_bundle_pem")
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    TRUST_BUNDLE_PEM_FIELD_NUMBER: _ClassVar[int]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    trust_bundle_pem: str
    def __init__(self, certificates: _Optional[_Iterable[bytes]] = ..., trust_bundle_pem: _Optional[str] = ...) -> None: ...

class GetTrustBundleRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTrustBundleResponse(_message.Message):
    __slots__ = ("trust_bundle_pem",)
    TRUST_BUNDLE_PEM_FIELD_NUMBER: _ClassVar[int]
    trust_bundle_pem: str
    def __init__(self, trust_bundle_pem: _Optional[str] = ...) -> None: ...
