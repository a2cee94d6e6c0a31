import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotScope(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SNAPSHOT_SCOPE_UNSPECIFIED: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_FULL: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_DATA: _ClassVar[SnapshotScope]
    SNAPSHOT_SCOPE_DATA_ON_GOLDEN: _ClassVar[SnapshotScope]

class SandboxClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SANDBOX_CLASS_UNSPECIFIED: _ClassVar[SandboxClass]
    SANDBOX_CLASS_GVISOR: _ClassVar[SandboxClass]
    SANDBOX_CLASS_MICROVM: _ClassVar[SandboxClass]

class StatsSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATS_SOURCE_UNSPECIFIED: _ClassVar[StatsSource]
    STATS_SOURCE_CGROUP: _ClassVar[StatsSource]
    STATS_SOURCE_GUEST_AGENT: _ClassVar[StatsSource]
SNAPSHOT_SCOPE_UNSPECIFIED: SnapshotScope
SNAPSHOT_SCOPE_FULL: SnapshotScope
SNAPSHOT_SCOPE_DATA: SnapshotScope
SNAPSHOT_SCOPE_DATA_ON_GOLDEN: SnapshotScope
SANDBOX_CLASS_UNSPECIFIED: SandboxClass
SANDBOX_CLASS_GVISOR: SandboxClass
SANDBOX_CLASS_MICROVM: SandboxClass
STATS_SOURCE_UNSPECIFIED: StatsSource
STATS_SOURCE_CGROUP: StatsSource
STATS_SOURCE_GUEST_AGENT: StatsSource

class RunWorkloadRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "runsc_path", "spec", "runtime_asset_paths", "egress_gateway", "cpu_milli", "memory_bytes", "actor_dirs", "idle_timeout")
    class RuntimeAssetPathsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNSC_PATH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ASSET_PATHS_FIELD_NUMBER: _ClassVar[int]
    EGRESS_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTOR_DIRS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    runsc_path: str
    spec: WorkloadSpec
    runtime_asset_paths: _containers.ScalarMap[str, str]
    egress_gateway: EgressGateway
    cpu_milli: int
    memory_bytes: int
    actor_dirs: ActorDirs
    idle_timeout: _duration_pb2.Duration
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., runsc_path: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., runtime_asset_paths: _Optional[_Mapping[str, str]] = ..., egress_gateway: _Optional[_Union[EgressGateway, _Mapping]] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., actor_dirs: _Optional[_Union[ActorDirs, _Mapping]] = ..., idle_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RunWorkloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointWorkloadRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "runsc_path", "spec", "snapshot_uri", "runtime_asset_paths", "scope", "actor_dirs")
    class RuntimeAssetPathsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNSC_PATH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ASSET_PATHS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_DIRS_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    runsc_path: str
    spec: WorkloadSpec
    snapshot_uri: str
    runtime_asset_paths: _containers.ScalarMap[str, str]
    scope: SnapshotScope
    actor_dirs: ActorDirs
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., runsc_path: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., snapshot_uri: _Optional[str] = ..., runtime_asset_paths: _Optional[_Mapping[str, str]] = ..., scope: _Optional[_Union[SnapshotScope, str]] = ..., actor_dirs: _Optional[_Union[ActorDirs, _Mapping]] = ...) -> None: ...

class CheckpointWorkloadResponse(_message.Message):
    __slots__ = ("snapshot_files", "data_snapshot_files")
    SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    DATA_SNAPSHOT_FILES_FIELD_NUMBER: _ClassVar[int]
    snapshot_files: _containers.RepeatedScalarFieldContainer[str]
    data_snapshot_files: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, snapshot_files: _Optional[_Iterable[str]] = ..., data_snapshot_files: _Optional[_Iterable[str]] = ...) -> None: ...

class RestoreWorkloadRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "runsc_path", "spec", "snapshot_uri", "runtime_asset_paths", "scope", "egress_gateway", "golden_snapshot_uri", "cpu_milli", "memory_bytes", "actor_dirs", "idle_timeout")
    class RuntimeAssetPathsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNSC_PATH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_ASSET_PATHS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    EGRESS_GATEWAY_FIELD_NUMBER: _ClassVar[int]
    GOLDEN_SNAPSHOT_URI_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACTOR_DIRS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    runsc_path: str
    spec: WorkloadSpec
    snapshot_uri: str
    runtime_asset_paths: _containers.ScalarMap[str, str]
    scope: SnapshotScope
    egress_gateway: EgressGateway
    golden_snapshot_uri: str
    cpu_milli: int
    memory_bytes: int
    actor_dirs: ActorDirs
    idle_timeout: _duration_pb2.Duration
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., runsc_path: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., snapshot_uri: _Optional[str] = ..., runtime_asset_paths: _Optional[_Mapping[str, str]] = ..., scope: _Optional[_Union[SnapshotScope, str]] = ..., egress_gateway: _Optional[_Union[EgressGateway, _Mapping]] = ..., golden_snapshot_uri: _Optional[str] = ..., cpu_milli: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., actor_dirs: _Optional[_Union[ActorDirs, _Mapping]] = ..., idle_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RestoreWorkloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TerminateWorkloadRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "runsc_path", "spec", "actor_dirs")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    RUNSC_PATH_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    ACTOR_DIRS_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    runsc_path: str
    spec: WorkloadSpec
    actor_dirs: ActorDirs
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., runsc_path: _Optional[str] = ..., spec: _Optional[_Union[WorkloadSpec, _Mapping]] = ..., actor_dirs: _Optional[_Union[ActorDirs, _Mapping]] = ...) -> None: ...

class TerminateWorkloadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EgressGateway(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class ActorDirs(_message.Message):
    __slots__ = ("root_dir", "oci_bundle_dir", "checkpoint_dir", "restore_dir", "durable_dir_volume_mounts_dir", "system_info_volume_roots_dir", "volumes_dir")
    ROOT_DIR_FIELD_NUMBER: _ClassVar[int]
    OCI_BUNDLE_DIR_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    RESTORE_DIR_FIELD_NUMBER: _ClassVar[int]
    DURABLE_DIR_VOLUME_MOUNTS_DIR_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_INFO_VOLUME_ROOTS_DIR_FIELD_NUMBER: _ClassVar[int]
    VOLUMES_DIR_FIELD_NUMBER: _ClassVar[int]
    root_dir: str
    oci_bundle_dir: str
    checkpoint_dir: str
    restore_dir: str
    durable_dir_volume_mounts_dir: str
    system_info_volume_roots_dir: str
    volumes_dir: str
    def __init__(self, root_dir: _Optional[str] = ..., oci_bundle_dir: _Optional[str] = ..., checkpoint_dir: _Optional[str] = ..., restore_dir: _Optional[str] = ..., durable_dir_volume_mounts_dir: _Optional[str] = ..., system_info_volume_roots_dir: _Optional[str] = ..., volumes_dir: _Optional[str] = ...) -> None: ...

class WorkloadSpec(_message.Message):
    __slots__ = ("containers",)
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[Container]
    def __init__(self, containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("name", "readyz", "durable_dir_volume_mounts", "csi_volume_mounts", "system_info_volume_mounts", "image_volume_mounts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    READYZ_FIELD_NUMBER: _ClassVar[int]
    DURABLE_DIR_VOLUME_MOUNTS_FIELD_NUMBER: _ClassVar[int]
    CSI_VOLUME_MOUNTS_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_INFO_VOLUME_MOUNTS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_VOLUME_MOUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    readyz: Readyz
    durable_dir_volume_mounts: _containers.RepeatedCompositeFieldContainer[DurableDirVolumeMount]
    csi_volume_mounts: _containers.RepeatedCompositeFieldContainer[VolumeMount]
    system_info_volume_mounts: _containers.RepeatedCompositeFieldContainer[SystemInfoVolumeMount]
    image_volume_mounts: _containers.RepeatedCompositeFieldContainer[ImageVolumeMount]
    def __init__(self, name: _Optional[str] = ..., readyz: _Optional[_Union[Readyz, _Mapping]] = ..., durable_dir_volume_mounts: _Optional[_Iterable[_Union[DurableDirVolumeMount, _Mapping]]] = ..., csi_volume_mounts: _Optional[_Iterable[_Union[VolumeMount, _Mapping]]] = ..., system_info_volume_mounts: _Optional[_Iterable[_Union[SystemInfoVolumeMount, _Mapping]]] = ..., image_volume_mounts: _Optional[_Iterable[_Union[ImageVolumeMount, _Mapping]]] = ...) -> None: ...

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

class DurableDirVolumeMount(_message.Message):
    __slots__ = ("volume_name", "mount_path")
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_PATH_FIELD_NUMBER: _ClassVar[int]
    volume_name: str
    mount_path: str
    def __init__(self, volume_name: _Optional[str] = ..., mount_path: _Optional[str] = ...) -> None: ...

class VolumeMount(_message.Message):
    __slots__ = ("volume_name", "mount_path")
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_PATH_FIELD_NUMBER: _ClassVar[int]
    volume_name: str
    mount_path: str
    def __init__(self, volume_name: _Optional[str] = ..., mount_path: _Optional[str] = ...) -> None: ...

class SystemInfoVolumeMount(_message.Message):
    __slots__ = ("volume_name", "mount_path")
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_PATH_FIELD_NUMBER: _ClassVar[int]
    volume_name: str
    mount_path: str
    def __init__(self, volume_name: _Optional[str] = ..., mount_path: _Optional[str] = ...) -> None: ...

class ImageVolumeMount(_message.Message):
    __slots__ = ("volume_name", "mount_path")
    VOLUME_NAME_FIELD_NUMBER: _ClassVar[int]
    MOUNT_PATH_FIELD_NUMBER: _ClassVar[int]
    volume_name: str
    mount_path: str
    def __init__(self, volume_name: _Optional[str] = ..., mount_path: _Optional[str] = ...) -> None: ...

class GetWorkloadStatsRequest(_message.Message):
    __slots__ = ("actor_uid",)
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    actor_uid: str
    def __init__(self, actor_uid: _Optional[str] = ...) -> None: ...

class GetWorkloadStatsResponse(_message.Message):
    __slots__ = ("sample",)
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    sample: WorkloadStatsSample
    def __init__(self, sample: _Optional[_Union[WorkloadStatsSample, _Mapping]] = ...) -> None: ...

class GetActiveWorkloadStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetActiveWorkloadStatsResponse(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[WorkloadStatsSample]
    def __init__(self, samples: _Optional[_Iterable[_Union[WorkloadStatsSample, _Mapping]]] = ...) -> None: ...

class WorkloadStatsSample(_message.Message):
    __slots__ = ("atespace", "actor_name", "actor_uid", "actor_template_atespace", "actor_template_name", "sandbox_class", "source", "memory_current_bytes", "memory_peak_bytes", "memory_working_set_bytes", "cpu_usage_usec", "observed_at_unix_nano", "epoch_unix_nano")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_TEMPLATE_NAME_FIELD_NUMBER: _ClassVar[int]
    SANDBOX_CLASS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_CURRENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_WORKING_SET_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_USAGE_USEC_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AT_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    EPOCH_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    actor_uid: str
    actor_template_atespace: str
    actor_template_name: str
    sandbox_class: SandboxClass
    source: StatsSource
    memory_current_bytes: int
    memory_peak_bytes: int
    memory_working_set_bytes: int
    cpu_usage_usec: int
    observed_at_unix_nano: int
    epoch_unix_nano: int
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., actor_uid: _Optional[str] = ..., actor_template_atespace: _Optional[str] = ..., actor_template_name: _Optional[str] = ..., sandbox_class: _Optional[_Union[SandboxClass, str]] = ..., source: _Optional[_Union[StatsSource, str]] = ..., memory_current_bytes: _Optional[int] = ..., memory_peak_bytes: _Optional[int] = ..., memory_working_set_bytes: _Optional[int] = ..., cpu_usage_usec: _Optional[int] = ..., observed_at_unix_nano: _Optional[int] = ..., epoch_unix_nano: _Optional[int] = ...) -> None: ...
