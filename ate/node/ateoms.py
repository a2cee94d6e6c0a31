"""The ateoms of this node, as the atelet sees them: one unix socket a worker, and what their errors mean."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio
from google.rpc import error_details_pb2

from ate.errors import AteError, InvalidArgument, Unavailable
from ate.names import is_uuid
from ate.proto.ateom_grpc import AteomStub
from ate.rpc import Channel

NOT_STARTED = "NOT_STARTED"
STILL_RUNNING = "STILL_RUNNING"
PATIENCE = 10.0
"""Seconds to wait for a worker that is just starting (or starting again) to open its socket."""


class Ateoms:
    """Use `open_ateoms`."""

    def __init__(self, root: Path, stack: AsyncExitStack) -> None:
        self._root, self._stack = root, stack
        self._channels: dict[str, Channel] = {}

    async def stub(self, worker_uid: str) -> AteomStub:
        """The driver of a worker of this node. InvalidArgument for a uid that is none."""
        if not is_uuid(worker_uid):
            raise InvalidArgument(f"target_ateom_uid: {worker_uid!r} is not a UUID")
        if worker_uid not in self._channels:
            channel = Channel.unix(self.socket(worker_uid))
            self._channels[worker_uid] = await self._stack.enter_async_context(channel)
        return AteomStub(self._channels[worker_uid])

    def socket(self, worker_uid: str) -> Path:
        return self._root / "ateoms" / worker_uid / "ateom.sock"

    async def wait(self, worker_uid: str) -> None:
        """Returns once the worker's socket accepts; Unavailable (nothing started) when it does not within PATIENCE."""
        with trio.move_on_after(PATIENCE):
            while not await self.alive(worker_uid):
                await trio.sleep(0.02)
            return
        raise Unavailable(f"worker {worker_uid} does not answer on this node", details=[reason(NOT_STARTED)])

    async def alive(self, worker_uid: str) -> bool:
        """Whether a process listens on the worker's socket."""
        try:
            stream = await trio.open_unix_socket(str(self.socket(worker_uid)))
        except OSError:
            return False
        await stream.aclose()
        return True


def reason(text: str) -> error_details_pb2.ErrorInfo:
    """The detail by which the control plane knows what became of the actor."""
    return error_details_pb2.ErrorInfo(domain="ate.dev", reason=text)


def with_reason(error: AteError, text: str) -> AteError:
    """The same error with the reason added, unless it carries one."""
    if any(isinstance(detail, error_details_pb2.ErrorInfo) for detail in error.details):
        return error
    return type(error)(error.message, details=[*error.details, reason(text)])


@asynccontextmanager
async def open_ateoms(root: Path) -> AsyncIterator[Ateoms]:
    """Closes every channel at the end."""
    async with AsyncExitStack() as stack:
        yield Ateoms(root, stack)
