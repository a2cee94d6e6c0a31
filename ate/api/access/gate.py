"""Who is calling, by certificate or token, and whether the table lets them. The gate in front of every handler."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ate import names
from ate.api.access import members, policies
from ate.api.access.audit import AuditLog
from ate.api.access.table import OPEN, QUIET, TABLE, Machine, Role, Rule
from ate.errors import Internal, PermissionDenied, Unauthenticated
from ate.identity import spiffe
from ate.log import Logger
from ate.rpc import Call, IServable
from ate.store import Store
from ate.telemetry import trace

if TYPE_CHECKING:
    from ate.api.access.bearer import Tokens

log = Logger("ate.api")

ELAPSED_TRAILER: Final = "x-server-elapsed-us"
_MACHINE: Final = "machine"


class Gate:
    """An interceptor: authenticates, keeps the table, and reports the time spent.

    An ateom, which sits next to untrusted code, and an actor are no callers of the table: they may call nothing here.
    Without a certificate a call's token says who it is, where `tokens` can tell; a certificate counts first.
    """

    def __init__(
        self, trust_domain: str, store: Store, audit: AuditLog | None = None, tokens: Tokens | None = None
    ) -> None:
        self._store, self._audit, self._tokens = store, audit, tokens
        self._user_prefix = names.user_id(trust_domain, "")
        self._machines = {
            names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS[machine]): machine for machine in Machine
        }

    def covers(self, services: Iterable[IServable]) -> None:
        """Internal naming the RPCs that are served without a row of the table."""
        missing = [
            method
            for service in services
            for method in service.__mapping__()
            if method not in TABLE and not _open(method)
        ]
        if missing:
            raise Internal(
                f"nothing says who may call {', '.join(sorted(missing))}: ate/api/access/table.py has no row"
            )

    async def __call__(self, call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
        started = time.perf_counter()
        try:
            await self._admit(call)
            await proceed()
        finally:
            call.trailing_metadata[ELAPSED_TRAILER] = str(int((time.perf_counter() - started) * 1e6))

    async def _admit(self, call: Call) -> None:
        who, machine, person = await self._caller(call)
        call.attributes[_MACHINE] = machine
        if _open(call.method) and (machine or person):
            return
        rule = TABLE.get(call.method)
        if rule is None or not (machine in rule.machines or (person and rule.people is not None)):
            raise self._denied(who, call.method, "", f"may not call {call.method.strip('/')}")
        call.check_request = partial(self._look, call.method, rule, who, person)

    async def _caller(self, call: Call) -> tuple[str, Machine | None, bool]:
        """(the name it goes by, which of our machines it is, whether it is a person). Unauthenticated when unknown."""
        if call.peer.certificate is None and self._tokens is not None:
            try:
                return await self._tokens.member_of(call.metadata), None, True
            except Unauthenticated as error:
                log.info("a call without a certificate was refused", peer=call.peer.address, reason=error.message)
                raise
        caller = spiffe.caller_of(call.peer.certificate)
        user = caller.spiffe_id.removeprefix(self._user_prefix)
        person = user != caller.spiffe_id and user != ""
        return members.user(user) if person else caller.spiffe_id, self._machines.get(caller.spiffe_id), person

    async def _look(self, method: str, rule: Rule, who: str, person: bool, request: Any) -> None:
        """PermissionDenied unless a person's role suffices where the request wants to be."""
        rpc = method.rpartition("/")[2]
        if person:
            assert rule.people is not None
            atespace = _atespace(request, rule.where)
            if await policies.role_of(self._store, who, atespace) < rule.people:
                where = f"in atespace {atespace}" if atespace else "globally"
                needed = Role(rule.people).name.lower()
                raise self._denied(who, method, object_of(request), f"is not {needed} {where}, which {rpc} needs")
        if self._audit is not None and not rpc.startswith(QUIET):
            self._audit.write(caller=who, method=method, object=object_of(request), allowed=True, **_traced())

    def _denied(self, who: str, method: str, what: str, why: str) -> PermissionDenied:
        log.warning("a call was denied", caller=who, method=method, reason=why)
        if self._audit is not None:
            self._audit.write(caller=who, method=method, object=what, allowed=False, reason=why, **_traced())
        return PermissionDenied(f"{who} {why}")


def _traced() -> dict[str, str]:
    here = trace.current()
    return {"trace": here.trace_id} if here is not None else {}


def object_of(request: Any) -> str:
    """What a request is about: `actor demo/a`, `worker w`; empty where it names nothing."""
    flat = getattr(request, "actor_name", "")
    if flat:
        return f"actor {request.atespace}/{flat}"
    for name in _OBJECTS:
        value = getattr(request, name, None)
        if isinstance(value, str) and value:
            return f"{name} {value}"
        if value is None or isinstance(value, str):
            continue
        named = getattr(value, "metadata", value)
        if named.name:
            return f"{name} {named.atespace}/{named.name}" if named.atespace else f"{name} {named.name}"
    return ""


_OBJECTS: Final = ("actor", "actor_template", "tag", "atespace", "worker", "worker_pool", "sandbox_config", "node_name")
"""Fields of requests that name what they are about, the more telling first."""


def _atespace(request: Any, where: str) -> str:
    """The field `where` (dotted) of a request; empty for an empty one."""
    found = request
    for part in filter(None, where.split(".")):
        found = getattr(found, part)
    return found if isinstance(found, str) else ""


def _open(method: str) -> bool:
    return method.startswith(OPEN)


def node_of(call: Call) -> str:
    """The node the calling agent runs on, from its certificate."""
    caller = spiffe.caller_of(call.peer.certificate)
    if caller.pod is None or not caller.pod.node_name:
        raise PermissionDenied("the caller's certificate names no node")
    return caller.pod.node_name


def is_from(call: Call, machine: Machine) -> bool:
    """Whether that machine calls, as the gate found."""
    return call.attributes.get(_MACHINE) is machine
