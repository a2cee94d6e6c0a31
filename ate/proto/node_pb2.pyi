from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class RegisterNodeRequest(_message.Message):
    __slots__ = ("node_name", "address", "boot_id", "local_snapshot_actor_uids")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LOCAL_SNAPSHOT_ACTOR_UIDS_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    address: str
    boot_id: str
    local_snapshot_actor_uids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_name: _Optional[str] = ..., address: _Optional[str] = ..., boot_id: _Optional[str] = ..., local_snapshot_actor_uids: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterNodeResponse(_message.Message):
    __slots__ = ("heartbeat_seconds",)
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    heartbeat_seconds: int
    def __init__(self, heartbeat_seconds: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node_name", "address", "boot_id", "last_seen_unix_nano")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    address: str
    boot_id: str
    last_seen_unix_nano: int
    def __init__(self, node_name: _Optional[str] = ..., address: _Optional[str] = ..., boot_id: _Optional[str] = ..., last_seen_unix_nano: _Optional[int] = ...) -> None: ...

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
