"""Operations on a worker that outlive their callers: one at a time, joined when asked for again, results remembered.

A lost reply or a killed caller must never cause a second sandbox: the caller repeats the same request (same operation
id) and gets the result of the first. Used by ateom; trio only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from ate import log
from ate.errors import NOT_STARTED, Aborted, AteError, FailedPrecondition, Internal, Unavailable, with_reason

_log = log.Logger(__name__)
_REMEMBERED: Final = 32


@dataclass(eq=False)
class Operation:
    """`kind` is the RPC's name, `identity` tells equal requests from different ones."""

    kind: str
    actor_uid: str
    identity: bytes
    id: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: BaseException | None = None

    def outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Operations:
    """Runs operations in `nursery`, one after another in order of arrival."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._turn = trio.Lock()
        self._finished: OrderedDict[str, Operation] = OrderedDict()
        self._open: list[Operation] = []

    @property
    def current(self) -> Operation | None:
        """The one at work or next in turn."""
        return self._open[0] if self._open else None

    def cancel(self, kinds: frozenset[str], actor_uid: str | None = None) -> None:
        """Asks open operations of these kinds (of that actor) to stop; they clean up after themselves."""
        for operation in self._open:
            if operation.kind in kinds and actor_uid in (None, operation.actor_uid):
                operation.scope.cancel()

    def undo(self, kinds: frozenset[str], actor_uid: str) -> None:
        """What finished operations of these kinds brought about is no more: asked for again, they say so."""
        for operation in self._finished.values():
            if operation.kind in kinds and operation.actor_uid == actor_uid and operation.error is None:
                taken_back = Unavailable(f"this {operation.kind} of actor {actor_uid} was done, and taken back since")
                operation.error = with_reason(taken_back, NOT_STARTED)

    async def run(
        self, kind: str, actor_uid: str, identity: bytes, operation_id: str, work: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Runs `work`, or joins the same operation. The caller's cancellation does not touch it."""
        operation = self._find(kind, actor_uid, identity, operation_id)
        if operation is None:
            operation = Operation(kind, actor_uid, identity, operation_id)
            self._open.append(operation)
            self._nursery.start_soon(self._work, operation, work)
        await operation.done.wait()
        return operation.outcome()

    def _find(self, kind: str, actor_uid: str, identity: bytes, operation_id: str) -> Operation | None:
        if operation_id:
            known = self._finished.get(operation_id) or next((o for o in self._open if o.id == operation_id), None)
            if known is not None:
                if (known.kind, known.actor_uid) != (kind, actor_uid):
                    raise FailedPrecondition(
                        f"operation {operation_id} is {known.kind} of {known.actor_uid}, not {kind} of {actor_uid}"
                    )
                return known
        for known in self._open:
            if (known.kind, known.actor_uid, known.identity) == (kind, actor_uid, identity):
                return known
        return None

    async def _work(self, operation: Operation, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            with operation.scope, log.bind(operation=operation.kind, actor_uid=operation.actor_uid):
                async with self._turn:
                    try:
                        operation.result = await work()
                    except Exception as error:
                        surprise = Internal(f"{operation.kind}: {type(error).__name__}: {error}")
                        operation.error = error if isinstance(error, AteError) else surprise
                        _log.warning(f"{operation.kind} failed", exc=error)
            if operation.scope.cancelled_caught:
                operation.error = Aborted(f"{operation.kind} of actor {operation.actor_uid} was stopped")
        except BaseException:
            operation.error = Aborted(f"the worker ended during {operation.kind} of actor {operation.actor_uid}")
            raise
        finally:
            self._open.remove(operation)
            if operation.id and operation.error is None:  # what failed left nothing and may be tried again
                self._finished[operation.id] = operation
                while len(self._finished) > _REMEMBERED:
                    self._finished.popitem(last=False)
            operation.done.set()
