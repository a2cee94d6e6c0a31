import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECKPOINT_TYPE_UNSPECIFIED: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_LOCAL: _ClassVar[CheckpointType]
    CHECKPOINT_TYPE_EXTERNAL: _ClassVar[CheckpointType]

class SnapshotScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_SCOPE_UNSPECIFIED: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_FULL: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_DATA: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_DATA_ON_GOLDEN: _ClassVar[SnapshotScope]

class ActorMetadataField(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTOR_METADATA_FIELD_UNSPECIFIED: _ClassVar[ActorMetadataField]
    ACTOR_METADATA_FIELD_NAME: _ClassVar[ActorMetadataField]
    ACTOR_METADATA_FIELD_ATESPACE: _ClassVar[ActorMetadataField]
    ACTOR_METADATA_FIELD_UID: _ClassVar[ActorMetadataField]
CHECKPOINT_TYPE_UNSPECIFIED: CheckpointType
CHECKPOINT_TYPE_LOCAL: CheckpointType
CHECKPOINT_TYPE_EXTERNAL: CheckpointType
SNAPSHOT_SCOPE_UNSPECIFIED: SnapshotScope
SNAPSHOT_SCOPE_FULL: SnapshotScope
SNAPSHOT_SCOPE_DATA: SnapshotScope
SNAPSHOT_SCOPE_DATA_ON_GOLDEN: SnapshotScope
ACTOR_METADATA_FIELD_UNSPECIFIED: ActorMetadataField
ACTOR_METADATA_FIELD_NAME: ActorMetadataField
ACTOR_METADATA_FIELD_ATESPACE: ActorMetadataField
ACTOR_METADATA_FIELD_UID: ActorMetadataField

class MintActorCertificateRequest(_message.Message):
    __slots__ = ("certificate_signing_request", "actor_atespace", "actor_name", "actor_uid")
    CERTIFICATE_SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACTOR_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    certificate_signing_request: bytes
    actor_atespace: str
    actor_name: str
    actor_uid: str
    def __init__(self, certificate_signing_request: _Optional[bytes] = ..., actor_atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ...) -> None: ...

class MintActorCertificateResponse(_message.Message):
    __slots__ = ("actor_certificates",)
    ACTOR_CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    actor_certificates: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, actor_certificates: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SetWorkerCapacityRequest(_message.Message):
    __slots__ = ("capacity",)
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    capacity: WorkerResources
    def __init__(self, capacity: _Optional[_Union[WorkerResources, _Mapping]] = ...) -> None: ...

class SetWorkerCapacityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerResources(_message.Message):
    __slots__ = ("resources", "actors")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    ACTORS_FIELD_NUMBER: _ClassVar[int]
    resources: Resources
    actors: int
    def __init__(self, resources: _Optional[_Union[Resources, _Mapping]] = ..., actors: _Optional[int] = ...) -> None: ...

class Resources(_message.Message):
    __slots__ = ("limits",)
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.RepeatedCompositeFieldContainer[Limits]
    def __init__(self, limits: _Optional[_Iterable[_Union[Limits, _Mapping]]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("name", "quantity")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUANTITY_FIELD_NUMBER: _ClassVar[int]
    name: str
    quantity: str
    def __init__(self, name: _Optional[str] = ..., quantity: _Optional[str] = ...) -> None: ...

class RequestActorSuspendRequest(_message.Message):
    __slots__ = ("actor_atespace", "actor_name", "actor_uid")
    ACTOR_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    actor_atespace: str
    actor_name: str
    actor_uid: str
    def __init__(self, actor_atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ...) -> None: ...

class RequestActorSuspendResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ("target_ateom_uid", "atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "spec", "sandbox_assets", "egress_gateway", "cpu_milli", "memory_bytes", "idle_timeout")
    TARGET_ATEOM_UID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_ASSETS_FIELD_NUMBER: _ClassVar[int]
    EGRESS_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    target_ateom_uid: str
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    spec: WorkloadSpec
    sandbox_assets: SandboxAssets
    egress_gateway: EgressGateway
    cpu_milli: int
    memory_bytes: int
    idle_timeout: _duration_pb2.Duration
    def __init__(self, target_ateom_uid: _Optional[str] = ..., atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., sandbox_assets: _Optional[_Union[SandboxAssets, _Mapping]] = ..., egress_gateway: _Optional[_Union[EgressGateway, _Mapping]] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., idle_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("target_ateom_uid", "atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "spec", "type", "local_config", "external_config", "scope")
    TARGET_ATEOM_UID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    target_ateom_uid: str
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    spec: WorkloadSpec
    type: CheckpointType
    local_config: LocalCheckpointConfiguration
    external_config: ExternalCheckpointConfiguration
    scope: SnapshotScope
    def __init__(self, target_ateom_uid: _Optional[str] = ..., atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., type: _Optional[_Union[CheckpointType, str]] = ..., local_config: _Optional[_Union[LocalCheckpointConfiguration, _Mapping]] = ..., external_config: _Optional[_Union[ExternalCheckpointConfiguration, _Mapping]] = ..., scope: _Optional[_Union[SnapshotScope, str]] = ...) -> None: ...

class CheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("target_ateom_uid", "atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "spec", "type", "local_config", "external_config", "scope", "golden_snapshot_uri", "egress_gateway", "cpu_milli", "memory_bytes", "sandbox_assets", "idle_timeout")
    TARGET_ATEOM_UID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    EGRESS_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_ASSETS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    target_ateom_uid: str
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    spec: WorkloadSpec
    type: CheckpointType
    local_config: LocalCheckpointConfiguration
    external_config: ExternalCheckpointConfiguration
    scope: SnapshotScope
    golden_snapshot_uri: str
    egress_gateway: EgressGateway
    cpu_milli: int
    memory_bytes: int
    sandbox_assets: SandboxAssets
    idle_timeout: _duration_pb2.Duration
    def __init__(self, target_ateom_uid: _Optional[str] = ..., atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., type: _Optional[_Union[CheckpointType, str]] = ..., local_config: _Optional[_Union[LocalCheckpointConfiguration, _Mapping]] = ..., external_config: _Optional[_Union[ExternalCheckpointConfiguration, _Mapping]] = ..., scope: _Optional[_Union[SnapshotScope, str]] = ..., golden_snapshot_uri: _Optional[str] = ..., egress_gateway: _Optional[_Union[EgressGateway, _Mapping]] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., sandbox_assets: _Optional[_Union[SandboxAssets, _Mapping]] = ..., idle_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UploadPausedCheckpointRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "local_snapshot_name", "destination_snapshot_uri", "desired_scope")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SNAPSHOT_NAME_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    DESIRED_SCOPE_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    local_snapshot_name: str
    destination_snapshot_uri: str
    desired_scope: SnapshotScope
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., local_snapshot_name: _Optional[str] = ..., destination_snapshot_uri: _Optional[str] = ..., desired_scope: _Optional[_Union[SnapshotScope, str]] = ...) -> None: ...

class UploadPausedCheckpointResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TerminateRequest(_message.Message):
    __slots__ = ("target_ateom_uid", "atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "spec", "keep_paused")
    TARGET_ATEOM_UID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    KEEP_PAUSED_FIELD_NUMBER: _ClassVar[int]
    target_ateom_uid: str
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    spec: WorkloadSpec
    keep_paused: bool
    def __init__(self, target_ateom_uid: _Optional[str] = ..., atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., keep_paused: _Optional[bool] = ...) -> None: ...

class TerminateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LocalCheckpointConfiguration(_message.Message):
    __slots__ = ("snapshot_name",)
    SNAPSHOT_NAME_FIELD_NUMBER: _ClassVar[int]
    snapshot_name: str
    def __init__(self, snapshot_name: _Optional[str] = ...) -> None: ...

class ExternalCheckpointConfiguration(_message.Message):
    __slots__ = ("snapshot_uri",)
    SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    snapshot_uri: str
    def __init__(self, snapshot_uri: _Optional[str] = ...) -> None: ...

class EgressGateway(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class SandboxAssets(_message.Message):
    __slots__ = ("sandbox_class", "assets", "pause_image")
    class AssetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ArchAssets
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ArchAssets, _Mapping]] = ...) -> None: ...
    SANDBOX_CLASS_FIELD_NUMBER: _ClassVar[int]
    ASSETS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_IMAGE_FIELD_NUMBER: _ClassVar[int]
    sandbox_class: str
    assets: _containers.MessageMap[str, ArchAssets]
    pause_image: str
    def __init__(self, sandbox_class: _Optional[str] = ..., assets: _Optional[_Mapping[str, ArchAssets]] = ..., pause_image: _Optional[str] = ...) -> None: ...

class ArchAssets(_message.Message):
    __slots__ = ("files",)
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: AssetFile
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AssetFile, _Mapping]] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.MessageMap[str, AssetFile]
    def __init__(self, files: _Optional[_Mapping[str, AssetFile]] = ...) -> None: ...

class AssetFile(_message.Message):
    __slots__ = ("url", "sha256")
    URL_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    url: str
    sha256: str
    def __init__(self, url: _Optional[str] = ..., sha256: _Optional[str] = ...) -> None: ...

class WorkloadSpec(_message.Message):
    __slots__ = ("containers", "volumes")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[Container]
    volumes: _containers.RepeatedCompositeFieldContainer[Volume]
    def __init__(self, containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ..., volumes: _Optional[_Iterable[_Union[Volume, _Mapping]]] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("name", "image", "command", "env", "readyz", "volume_mounts", "args", "security_context", "resources")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    READYZ_FIELD_NUMBER: _ClassVar[int]
    VOLUME_MOUNTS_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    SECURITY_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    image: str
    command: _containers.RepeatedScalarFieldContainer[str]
    env: _containers.RepeatedCompositeFieldContainer[EnvEntry]
    readyz: Readyz
    volume_mounts: _containers.RepeatedCompositeFieldContainer[VolumeMount]
    args: _containers.RepeatedScalarFieldContainer[str]
    security_context: SecurityContext
    resources: ContainerResources
    def __init__(self, name: _Optional[str] = ..., image: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., env: _Optional[_Iterable[_Union[EnvEntry, _Mapping]]] = ..., readyz: _Optional[_Union[Readyz, _Mapping]] = ..., volume_mounts: _Optional[_Iterable[_Union[VolumeMount, _Mapping]]] = ..., args: _Optional[_Iterable[str]] = ..., security_context: _Optional[_Union[SecurityContext, _Mapping]] = ..., resources: _Optional[_Union[ContainerResources, _Mapping]] = ...) -> None: ...

class EnvEntry(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Readyz(_message.Message):
    __slots__ = ("http_get", "timeout_seconds")
    HTTP_GET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    http_get: HTTPGetAction
    timeout_seconds: int
    def __init__(self, http_get: _Optional[_Union[HTTPGetAction, _Mapping]] = ..., timeout_seconds: _Optional[int] = ...) -> None: ...

class HTTPGetAction(_message.Message):
    __slots__ = ("path", "port")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    path: str
    port: int
    def __init__(self, path: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class VolumeMount(_message.Message):
    __slots__ = ("name", "mount_path")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_PATH_FIELD_NUMBER: _ClassVar[int]
    name: str
    mount_path: str
    def __init__(self, name: _Optional[str] = ..., mount_path: _Optional[str] = ...) -> None: ...

class SecurityContext(_message.Message):
    __slots__ = ("capabilities",)
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    capabilities: Capabilities
    def __init__(self, capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class Capabilities(_message.Message):
    __slots__ = ("add", "drop")
    ADD_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    add: _containers.RepeatedScalarFieldContainer[str]
    drop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, add: _Optional[_Iterable[str]] = ..., drop: _Optional[_Iterable[str]] = ...) -> None: ...

class ContainerResources(_message.Message):
    __slots__ = ("memory_bytes", "cpu_millis")
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLIS_FIELD_NUMBER: _ClassVar[int]
    memory_bytes: int
    cpu_millis: int
    def __init__(self, memory_bytes: _Optional[int] = ..., cpu_millis: _Optional[int] = ...) -> None: ...

class Volume(_message.Message):
    __slots__ = ("name", "durable_dir", "external", "system_info", "image")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DURABLE_DIR_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_INFO_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    durable_dir: DurableDirVolume
    external: ExternalVolumeSource
    system_info: SystemInfoVolume
    image: ImageVolume
    def __init__(self, name: _Optional[str] = ..., durable_dir: _Optional[_Union[DurableDirVolume, _Mapping]] = ..., external: _Optional[_Union[ExternalVolumeSource, _Mapping]] = ..., system_info: _Optional[_Union[SystemInfoVolume, _Mapping]] = ..., image: _Optional[_Union[ImageVolume, _Mapping]] = ...) -> None: ...

class DurableDirVolume(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExternalVolumeSource(_message.Message):
    __slots__ = ("storage_volume_id", "volume_type", "volume_context")
    class VolumeContextEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STORAGE_VOLUME_ID_FIELD_NUMBER: _ClassVar[int]
    VOLUME_TYPE_FIELD_NUMBER: _ClassVar[int]
    VOLUME_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    storage_volume_id: str
    volume_type: str
    volume_context: _containers.ScalarMap[str, str]
    def __init__(self, storage_volume_id: _Optional[str] = ..., volume_type: _Optional[str] = ..., volume_context: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SystemInfoVolume(_message.Message):
    __slots__ = ("data_sources",)
    DATA_SOURCES_FIELD_NUMBER: _ClassVar[int]
    data_sources: _containers.RepeatedCompositeFieldContainer[SystemInfoDataSource]
    def __init__(self, data_sources: _Optional[_Iterable[_Union[SystemInfoDataSource, _Mapping]]] = ...) -> None: ...

class SystemInfoDataSource(_message.Message):
    __slots__ = ("actor_metadata", "trust_bundle")
    ACTOR_METADATA_FIELD_NUMBER: _ClassVar[int]
    TRUST_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    actor_metadata: ActorMetadataSource
    trust_bundle: TrustBundleSource
    def __init__(self, actor_metadata: _Optional[_Union[ActorMetadataSource, _Mapping]] = ..., trust_bundle: _Optional[_Union[TrustBundleSource, _Mapping]] = ...) -> None: ...

class ActorMetadataSource(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[ActorMetadataItem]
    def __init__(self, items: _Optional[_Iterable[_Union[ActorMetadataItem, _Mapping]]] = ...) -> None: ...

class ActorMetadataItem(_message.Message):
    __slots__ = ("field", "path")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    field: ActorMetadataField
    path: str
    def __init__(self, field: _Optional[_Union[ActorMetadataField, str]] = ..., path: _Optional[str] = ...) -> None: ...

class TrustBundleSource(_message.Message):
    __slots__ = ("path", "names")
    PATH_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    path: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, path: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class ImageVolume(_message.Message):
    __slots__ = ("reference",)
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    reference: str
    def __init__(self, reference: _Optional[str] = ...) -> None: ...
