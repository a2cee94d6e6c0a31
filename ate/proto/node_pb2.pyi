from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterNodeRequest(_message.Message):
    __slots__ = ("node_name", "address", "boot_id", "actors", "cpu_features")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    CPU_FEATURES_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    address: str
    boot_id: str
    actors: _containers.RepeatedCompositeFieldContainer[LocalActorRef]
    cpu_features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_name: _Optional[str] = ..., address: _Optional[str] = ..., boot_id: _Optional[str] = ..., actors: _Optional[_Iterable[_Union[LocalActorRef, _Mapping]]] = ..., cpu_features: _Optional[_Iterable[str]] = ...) -> None: ...

class LocalActorRef(_message.Message):
    __slots__ = ("atespace", "name", "uid")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    name: str
    uid: str
    def __init__(self, atespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class RegisterNodeResponse(_message.Message):
    __slots__ = ("heartbeat_seconds", "deleted_actor_uids", "departed_actor_uids")
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DELETED_ACTOR_UIDS_FIELD_NUMBER: _ClassVar[int]
    DEPARTED_ACTOR_UIDS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_seconds: int
    deleted_actor_uids: _containers.RepeatedScalarFieldContainer[str]
    departed_actor_uids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, heartbeat_seconds: _Optional[int] = ..., deleted_actor_uids: _Optional[_Iterable[str]] = ..., departed_actor_uids: _Optional[_Iterable[str]] = ...) -> None: ...

class MintActorTokenRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "audience", "expiration_seconds", "spiffe")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPIFFE_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    audience: _containers.RepeatedScalarFieldContainer[str]
    expiration_seconds: int
    spiffe: bool
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., audience: _Optional[_Iterable[str]] = ..., expiration_seconds: _Optional[int] = ..., spiffe: _Optional[bool] = ...) -> None: ...

class MintActorTokenResponse(_message.Message):
    __slots__ = ("token", "expires_at_unix")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_UNIX_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at_unix: int
    def __init__(self, token: _Optional[str] = ..., expires_at_unix: _Optional[int] = ...) -> None: ...

class MintActorOwnCertificateRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "certificate_signing_request")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    certificate_signing_request: bytes
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., certificate_signing_request: _Optional[bytes] = ...) -> None: ...

class MintActorOwnCertificateResponse(_message.Message):
    __slots__ = ("certificates", "trust_bundle_pem")
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    TRUST_BUNDLE_PEM_FIELD_NUMBER: _ClassVar[int]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    trust_bundle_pem: str
    def __init__(self, certificates: _Optional[_Iterable[bytes]] = ..., trust_bundle_pem: _Optional[str] = ...) -> None: ...

class GetActorTrustRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetActorTrustResponse(_message.Message):
    __slots__ = ("trust_domain", "trust_bundle_pem", "issuer", "jwks")
    TRUST_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TRUST_BUNDLE_PEM_FIELD_NUMBER: _ClassVar[int]
    ISSUER_FIELD_NUMBER: _ClassVar[int]
    JWKS_FIELD_NUMBER: _ClassVar[int]
    trust_domain: str
    trust_bundle_pem: str
    issuer: str
    jwks: str
    def __init__(self, trust_domain: _Optional[str] = ..., trust_bundle_pem: _Optional[str] = ..., issuer: _Optional[str] = ..., jwks: _Optional[str] = ...) -> None: ...

class ReportActorCrashRequest(_message.Message):
    __slots__ = ("actor_uid", "reason")
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    actor_uid: str
    reason: str
    def __init__(self, actor_uid: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ReportActorCrashResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_name", "address", "boot_id", "last_seen_unix_nano", "cpu_features_id")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    CPU_FEATURES_ID_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    address: str
    boot_id: str
    last_seen_unix_nano: int
    cpu_features_id: str
    def __init__(self, node_name: _Optional[str] = ..., address: _Optional[str] = ..., boot_id: _Optional[str] = ..., last_seen_unix_nano: _Optional[int] = ..., cpu_features_id: _Optional[str] = ...) -> None: ...

class CpuFeatures(_message.Message):
    __slots__ = ("id", "features")
    ID_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    id: str
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadActorLogsRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "container", "follow")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    container: str
    follow: bool
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., container: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class ReadActorLogsResponse(_message.Message):
    __slots__ = ("container", "line")
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    container: str
    line: str
    def __init__(self, container: _Optional[str] = ..., line: _Optional[str] = ...) -> None: ...

class LocalActor(_message.Message):
    __slots__ = ("actor_uid", "atespace", "name", "worker_uid", "operation_id", "phase", "snapshot_files", "data_snapshot_files", "runtime_json", "template_atespace", "template_name", "images", "fence", "boot_id")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[LocalActor.Phase]
        PHASE_STARTING: _ClassVar[LocalActor.Phase]
        PHASE_RUNNING: _ClassVar[LocalActor.Phase]
        PHASE_CHECKPOINTED: _ClassVar[LocalActor.Phase]
        PHASE_IDLE: _ClassVar[LocalActor.Phase]
        PHASE_SAVING: _ClassVar[LocalActor.Phase]
    PHASE_UNSPECIFIED: LocalActor.Phase
    PHASE_STARTING: LocalActor.Phase
    PHASE_RUNNING: LocalActor.Phase
    PHASE_CHECKPOINTED: LocalActor.Phase
    PHASE_IDLE: LocalActor.Phase
    PHASE_SAVING: LocalActor.Phase
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    WORKER_UID_FIELD_NUMBER: _ClassVar[int]
    OPERATION_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    DATA_SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_JSON_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    actor_uid: str
    atespace: str
    name: str
    worker_uid: str
    operation_id: str
    phase: LocalActor.Phase
    snapshot_files: _containers.RepeatedScalarFieldContainer[str]
    data_snapshot_files: _containers.RepeatedScalarFieldContainer[str]
    runtime_json: str
    template_atespace: str
    template_name: str
    images: _containers.RepeatedScalarFieldContainer[str]
    fence: int
    boot_id: str
    def __init__(self, actor_uid: _Optional[str] = ..., atespace: _Optional[str] = ..., name: _Optional[str] = ..., worker_uid: _Optional[str] = ..., operation_id: _Optional[str] = ..., phase: _Optional[_Union[LocalActor.Phase, str]] = ..., snapshot_files: _Optional[_Iterable[str]] = ..., data_snapshot_files: _Optional[_Iterable[str]] = ..., runtime_json: _Optional[str] = ..., template_atespace: _Optional[str] = ..., template_name: _Optional[str] = ..., images: _Optional[_Iterable[str]] = ..., fence: _Optional[int] = ..., boot_id: _Optional[str] = ...) -> None: ...
