"""Promise: every RPC lets in exactly those whom table and policies name, whoever calls, and tells others nothing.

Each cell of RPC x caller is a call over the wire with the official C-core client. A request that got past the gate is
known by the error about a field that no server knows, so nothing is ever done.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ate import names
from ate.api.access.table import TABLE, Machine, Role, Rule
from ate.errors import Internal
from ate.identity import spiffe
from ate.identity.ca import CaPool, make_authority
from ate.identity.tls import Credentials
from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import (
    DOMAIN,
    METHODS,
    NODE,
    Api,
    Caller,
    account,
    identity_of,
    open_api,
    refused,
    request_of,
)
from tests.system.api_table.every_rpc import UNKNOWN

MINE, OTHER = "mine", "other"
GLOBAL = {"root": Role.OWNER, "ged": Role.EDITOR, "gil": Role.VIEWER}
"""People with a role everywhere."""
LOCAL = {"olga": Role.OWNER, "eddy": Role.EDITOR, "vera": Role.VIEWER}
"""People with a role in the atespace MINE only."""
NOBODY = "nora"
PEOPLE = (*GLOBAL, *LOCAL, NOBODY)
MACHINES = {machine: account(machine) for machine in Machine}
OUTSIDERS = {
    "an ateom": account("ateom"),
    "the api itself": account("api"),
    "the identity broker": account("identity-broker"),
    "an egress gateway": names.service_account_id(DOMAIN, "atenet-egress"),
    "a router of another namespace": names.service_account_id(DOMAIN, "atenet-router", "elsewhere"),
    "a user of another domain": names.user_id("else.where", "root"),
    "a user without a name": names.user_id(DOMAIN, ""),
    "an actor": f"spiffe://substrate-actor.local/atespace/{MINE}/actor/a",
    "a driver for an actor": f"spiffe://substrate-actor.local/ateom-for-actor/{MINE}/a",
}
SERVED = {path: METHODS[path.rpartition("/")[2]] for path in TABLE if path != "/ateapi.Debug/DebugClear"}


@dataclass
class Callers:
    """By name, each with a certificate of its own; made when first asked for."""

    api: Api
    port: int
    pool: CaPool

    def __post_init__(self) -> None:
        self._made: dict[str, Caller] = {}

    def of(self, spiffe_id: str, node: str = "") -> Caller:
        key = spiffe_id + node
        if key not in self._made:
            pod = spiffe.PodIdentity(names.SERVICE_ACCOUNTS["atelet"], node) if node else None
            credentials = identity_of(self.pool, spiffe_id, pod).credentials
            self._made[key] = Caller(self.port, credentials, self.pool.trust_bundle_pem)
        return self._made[key]

    def person(self, name: str) -> Caller:
        return self.of(names.user_id(DOMAIN, name))

    def machine(self, machine: Machine, node: str = NODE) -> Caller:
        return self.of(MACHINES[machine], node if machine is Machine.ATELET else "")


@pytest.fixture(scope="module")
def callers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    with open_api(tmp_path_factory.mktemp("access")) as api:
        user = api.user  # while there is no global policy, every person may do everything
        for space in (MINE, OTHER):
            user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name=space)))
        local = policy(MINE, LOCAL)
        user("CreateAtespaceAccessPolicy", atespace=pb.ObjectRef(name=MINE), access_policy=local)
        user("CreateGlobalAccessPolicy", access_policy=policy("", GLOBAL))
        made = Callers(api, api.port, api.pool)
        yield made
        for caller in made._made.values():
            caller.channel.close()


def policy(space: str, people: dict[str, Role]) -> pb.AccessPolicy:
    return pb.AccessPolicy(
        metadata=pb.ResourceMetadata(atespace=space, name="default"),
        bindings=[pb.Binding(role=role.name.lower(), members=[f"user:{name}"]) for name, role in people.items()],
    )


def request_in(path: str, space: str) -> object:
    """A request of the RPC that wants to be in the atespace, with a field that nobody knows."""
    request = request_of(path.rpartition("/")[2])
    where = TABLE[path].where
    if where:
        *parts, last = where.split(".")
        inner = request
        for part in parts:
            inner = getattr(inner, part)
        setattr(inner, last, space)
    request.MergeFromString(UNKNOWN)
    return request


def may(rule: Rule, person: str, space: str) -> bool:
    if rule.people is None:
        return False
    role = GLOBAL.get(person, Role.NONE)
    if rule.where and space == MINE:
        role = max(role, LOCAL.get(person, Role.NONE))
    return role >= rule.people


def expect(caller: Caller, path: str, space: str, *, allowed: bool, who: str) -> None:
    rpc = path.rpartition("/")[2]
    with pytest.raises(grpc.RpcError) as caught:
        caller.once(rpc, request_in(path, space))  # type: ignore[arg-type]
    code, told = caught.value.code().name, caught.value.details()
    if allowed:
        assert code == "INVALID_ARGUMENT" and "does not know" in told, f"{who} should get in: {code} {told}"
    else:
        assert code == "PERMISSION_DENIED", f"{who} got past the gate of {path} in {space or 'all'}: {code} {told}"


@pytest.mark.parametrize("path", SERVED)
def test_people_may_what_their_role_says_where_they_have_it(path: str, callers: Callers) -> None:
    rule = TABLE[path]
    for person in PEOPLE:
        for space in (MINE, OTHER, "nowhere", "") if rule.where else ("",):
            allowed = may(rule, person, space)
            expect(callers.person(person), path, space, allowed=allowed, who=f"{person} in {space or 'all'}")


@pytest.mark.parametrize("path", SERVED)
def test_machines_may_what_their_row_says_and_nobody_else_anything(path: str, callers: Callers) -> None:
    for machine in Machine:
        allowed = machine in TABLE[path].machines
        for node in (NODE, "n2") if machine is Machine.ATELET else ("",):
            expect(callers.machine(machine, node), path, MINE, allowed=allowed, who=machine)
    for who, spiffe_id in OUTSIDERS.items():
        expect(callers.of(spiffe_id), path, MINE, allowed=False, who=who)


@pytest.mark.parametrize("path", ["/ateapi.Control/GetActor", "/ateapi.WorkerService/SetWorkerCapacity"])
def test_without_a_certificate_of_ours_that_is_valid_now_there_is_no_connection(path: str, callers: Callers) -> None:
    now = datetime.now(UTC)
    foreign = CaPool((make_authority("foreign"),))
    key = ec.generate_private_key(ec.SECP256R1())
    root = names.user_id(DOMAIN, "root")

    def credentials(pool: CaPool, at: datetime) -> Credentials:
        chain = pool.issue(key.public_key(), root, lifetime=timedelta(hours=1), now=at)
        return Credentials(key, tuple(chain), callers.pool.trust_bundle_pem)

    for who, shown in {
        "nobody": None,
        "one whose hour is over by a second": credentials(callers.pool, now - timedelta(hours=1, seconds=1)),
        "one whose hour has not come": credentials(callers.pool, now + timedelta(minutes=10)),
        "one of another authority": credentials(foreign, now),
    }.items():
        caller = Caller(callers.port, shown, callers.pool.trust_bundle_pem)
        with pytest.raises(grpc.RpcError) as caught:
            caller.once(path.rpartition("/")[2], request_in(path, MINE))  # type: ignore[arg-type]
        assert caught.value.code().name == "UNAVAILABLE", f"{who}: {caught.value}"
        caller.channel.close()


def test_a_person_who_may_not_see_an_atespace_learns_nothing_of_it(callers: Callers) -> None:
    nora = callers.person(NOBODY)
    told = set()
    for space in (OTHER, "nowhere"):
        with refused("PERMISSION_DENIED") as caught:
            nora("GetActor", actor=pb.ObjectRef(atespace=space, name="a"))
        told.add(caught.value.details().replace(space, "X"))
    assert len(told) == 1, told


def test_a_role_that_is_taken_away_is_gone_with_the_next_call(callers: Callers) -> None:
    root, vera = callers.person("root"), callers.person("vera")
    assert vera("ListActors", atespace=MINE) is not None
    where = pb.ObjectRef(name=MINE)
    known = root("GetAtespaceAccessPolicy", atespace=where)
    less = pb.AccessPolicy()
    less.CopyFrom(known)
    del less.bindings[-1]
    changed = root("UpdateAtespaceAccessPolicy", atespace=where, access_policy=less)
    with refused("PERMISSION_DENIED", "user:vera is not viewer in atespace mine"):
        vera("ListActors", atespace=MINE)
    known.metadata.CopyFrom(changed.metadata)
    root("UpdateAtespaceAccessPolicy", atespace=where, access_policy=known)
    assert vera("ListActors", atespace=MINE) is not None


def test_a_watch_of_one_atespace_needs_a_role_there(callers: Callers) -> None:
    eddy = callers.person("eddy")
    with eddy.stream("WatchActors", pb.WatchActorsRequest(atespace=MINE)) as events:
        assert next(events).type == pb.WATCH_EVENT_TYPE_BOOKMARK
    for space in (OTHER, ""):
        with (
            refused("PERMISSION_DENIED", "user:eddy is not viewer"),
            eddy.stream("WatchActors", pb.WatchActorsRequest(atespace=space)) as events,
        ):
            next(events)


def test_the_table_gives_nobody_what_must_be_nobodys() -> None:
    for path, rule in TABLE.items():
        rpc = path.rpartition("/")[2]
        if rpc.startswith("Mint"):
            assert rule.people is None and rule.machines == {Machine.ATELET}, path
        if rpc.startswith(("Create", "Update", "Delete", "Drain", "Suspend", "Pause", "Revert", "Resume")):
            assert rule.people is None or rule.people > Role.VIEWER, f"{path} changes something"
        if "AccessPolicy" in rpc and not rpc.startswith("Get"):
            assert rule.people is Role.OWNER and not rule.machines, path
        if rule.where:
            fields, message = rule.where.split("."), METHODS[rpc].input_type
            for name in fields[:-1]:
                message = message.fields_by_name[name].message_type
            assert fields[-1] in message.fields_by_name, f"{path} has no field {rule.where}"


def test_a_service_with_an_rpc_that_has_no_row_does_not_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(TABLE, "/ateapi.Control/GetActor")
    with pytest.raises(BaseExceptionGroup) as caught, open_api(tmp_path):
        raise AssertionError("it started")
    assert caught.group_contains(Internal, match="who may call /ateapi.Control/GetActor")


@pytest.mark.parametrize("seed", range(3))
def test_fields_full_of_anything_never_widen_what_a_person_may(seed: int, callers: Callers) -> None:
    rng = random.Random(seed)
    eddy = callers.person("eddy")
    for _ in range(200):
        junk = "".join(rng.choice("mine/.\0 -_*%\u00e9\u202e") for _ in range(rng.randint(0, 12)))
        if junk == MINE:
            continue
        with refused("PERMISSION_DENIED"):
            eddy.once("SuspendActor", pb.SuspendActorRequest(actor=pb.ObjectRef(atespace=junk, name="a")))
