"""The one tree of errors, each with its gRPC status, and the one place where a status becomes an HTTP code.

Every role raises these; `ate.rpc` turns them into gRPC errors on the way out and back into the same classes on the
way in, so that an `except Aborted` means the same on both sides of a wire. A message says what happened, to what, and
what to do next where that is not plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from google.rpc import error_details_pb2
from grpclib.const import Status
from grpclib.exceptions import GRPCError


class AteError(Exception):
    """Base of all our errors: `message` for people, `details` as google.rpc protobuf messages for programs."""

    code: ClassVar[Status] = Status.UNKNOWN

    def __init__(self, message: str, *, details: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.details = tuple(details)


class Cancelled(AteError):
    code = Status.CANCELLED


class Unknown(AteError):
    code = Status.UNKNOWN


class InvalidArgument(AteError):
    code = Status.INVALID_ARGUMENT


class DeadlineExceeded(AteError):
    code = Status.DEADLINE_EXCEEDED


class NotFound(AteError):
    code = Status.NOT_FOUND


class AlreadyExists(AteError):
    code = Status.ALREADY_EXISTS


class PermissionDenied(AteError):
    code = Status.PERMISSION_DENIED


class ResourceExhausted(AteError):
    code = Status.RESOURCE_EXHAUSTED


class FailedPrecondition(AteError):
    code = Status.FAILED_PRECONDITION


class Aborted(AteError):
    code = Status.ABORTED


class OutOfRange(AteError):
    code = Status.OUT_OF_RANGE


class Unimplemented(AteError):
    code = Status.UNIMPLEMENTED


class Internal(AteError):
    code = Status.INTERNAL


class Unavailable(AteError):
    code = Status.UNAVAILABLE


class DataLoss(AteError):
    """Stored bytes do not match their digest."""

    code = Status.DATA_LOSS


class Unauthenticated(AteError):
    code = Status.UNAUTHENTICATED


REASON_DOMAIN = "ate.dev"
NOT_STARTED = "NOT_STARTED"
"""Reason of a node: the actor was not started, and nothing of it is left there."""
NOT_READY = "NOT_READY"
"""Reason of a node: the actor ran but its probe did not answer in its time; nothing of it is left there."""
STILL_RUNNING = "STILL_RUNNING"
"""Reason of a node: the checkpoint failed, and the actor runs on unharmed."""
ACTOR_CRASHED = "ACTOR_CRASHED"
"""Reason of the control plane: the actor has to be reverted or deleted; waiting does not help."""


def with_reason(error: AteError, text: str) -> AteError:
    """The same error with a reason for programs (google.rpc.ErrorInfo), unless it carries one."""
    if reason_of(error):
        return error
    detail = error_details_pb2.ErrorInfo(domain=REASON_DOMAIN, reason=text)
    return type(error)(error.message, details=[*error.details, detail])


def reason_of(error: AteError) -> str:
    """The reason an error of ours carries, or empty."""
    for detail in error.details:
        if isinstance(detail, error_details_pb2.ErrorInfo) and detail.domain == REASON_DOMAIN:
            return str(detail.reason)
    return ""


BY_STATUS: dict[Status, type[AteError]] = {cls.code: cls for cls in AteError.__subclasses__()}

_HTTP: dict[Status, int] = {
    Status.OK: 200,
    Status.CANCELLED: 408,
    Status.INVALID_ARGUMENT: 400,
    Status.NOT_FOUND: 404,
    Status.PERMISSION_DENIED: 403,
    Status.UNAUTHENTICATED: 401,
    Status.FAILED_PRECONDITION: 503,
    Status.ABORTED: 503,
    Status.RESOURCE_EXHAUSTED: 503,
    Status.UNAVAILABLE: 503,
    Status.DEADLINE_EXCEEDED: 504,
}


def http_status(code: Status) -> int:
    """HTTP status of a gRPC one, after the router's error table in the reference (section 5); others are 500."""
    return _HTTP.get(code, 500)


def error_for(code: Status, message: str, details: Iterable[Any] = ()) -> AteError:
    """The error of the tree that stands for a gRPC status received from a peer."""
    return BY_STATUS.get(code, Unknown)(message, details=tuple(details))


def to_grpc(error: BaseException) -> GRPCError:
    """A GRPCError for any exception; one that carries no status becomes INTERNAL, its text kept."""
    if isinstance(error, AteError):
        return GRPCError(error.code, error.message, list(error.details) or None)
    if isinstance(error, GRPCError):
        return error
    return GRPCError(Status.INTERNAL, f"{type(error).__name__}: {error}")
