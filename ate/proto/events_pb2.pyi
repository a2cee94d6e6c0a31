import datetime

from ate.proto import ateapi_pb2 as _ateapi_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListActorEventsRequest(_message.Message):
    __slots__ = ("atespace", "actor_name", "page_size", "page_token")
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    atespace: str
    actor_name: str
    page_size: int
    page_token: str
    def __init__(self, atespace: _Optional[str] = ..., actor_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListActorEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ActorEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[ActorEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ActorEvent(_message.Message):
    __slots__ = ("sequence", "time", "from_state", "to_state", "worker", "node", "operation", "message", "trace_id", "atespace", "actor_name")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    TO_STATE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    ATESPACE_FIELD_NUMBER: _ClassVar[int]
    ACTOR_NAME_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    time: _timestamp_pb2.Timestamp
    from_state: _ateapi_pb2.ActorState
    to_state: _ateapi_pb2.ActorState
    worker: str
    node: str
    operation: str
    message: str
    trace_id: str
    atespace: str
    actor_name: str
    def __init__(self, sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., from_state: _Optional[_Union[_ateapi_pb2.ActorState, str]] = ..., to_state: _Optional[_Union[_ateapi_pb2.ActorState, str]] = ..., worker: _Optional[str] = ..., node: _Optional[str] = ..., operation: _Optional[str] = ..., message: _Optional[str] = ..., trace_id: _Optional[str] = ..., atespace: _Optional[str] = ..., actor_name: _Optional[str] = ...) -> None: ...

class ActorHistory(_message.Message):
    __slots__ = ("actor_uid", "first", "entries")
    class Entry(_message.Message):
        __slots__ = ("unix_nano", "from_state", "to_state", "worker", "node", "operation", "message", "trace_id", "worker_name")
        UNIX_NANO_FIELD_NUMBER: _ClassVar[int]
        FROM_STATE_FIELD_NUMBER: _ClassVar[int]
        TO_STATE_FIELD_NUMBER: _ClassVar[int]
        WORKER_FIELD_NUMBER: _ClassVar[int]
        NODE_FIELD_NUMBER: _ClassVar[int]
        OPERATION_FIELD_NUMBER: _ClassVar[int]
        MESSAGE_FIELD_NUMBER: _ClassVar[int]
        TRACE_ID_FIELD_NUMBER: _ClassVar[int]
        WORKER_NAME_FIELD_NUMBER: _ClassVar[int]
        unix_nano: int
        from_state: _ateapi_pb2.ActorState
        to_state: _ateapi_pb2.ActorState
        worker: bytes
        node: str
        operation: str
        message: str
        trace_id: bytes
        worker_name: str
        def __init__(self, unix_nano: _Optional[int] = ..., from_state: _Optional[_Union[_ateapi_pb2.ActorState, str]] = ..., to_state: _Optional[_Union[_ateapi_pb2.ActorState, str]] = ..., worker: _Optional[bytes] = ..., node: _Optional[str] = ..., operation: _Optional[str] = ..., message: _Optional[str] = ..., trace_id: _Optional[bytes] = ..., worker_name: _Optional[str] = ...) -> None: ...
    ACTOR_UID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    actor_uid: str
    first: int
    entries: _containers.RepeatedCompositeFieldContainer[ActorHistory.Entry]
    def __init__(self, actor_uid: _Optional[str] = ..., first: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[ActorHistory.Entry, _Mapping]]] = ...) -> None: ...
