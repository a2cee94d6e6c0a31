"""Who may call what, made from the descriptors and the access table: each RPC keeps to its callers."""

from __future__ import annotations

from functools import partial

import grpc
import pytest

from ate.api.access.table import TABLE, Machine
from tests.system.api_peer import METHODS, Api, Caller, refused, request_of
from tests.system.api_table.every_rpc import UNKNOWN
from tests.system.api_table.rows import add


def friends(api: Api, rpc: str) -> list[Caller]:
    """Who may call the RPC while no access policy says otherwise."""
    rule = TABLE[path_of(rpc)]
    machines = {
        Machine.ATELET: [api.atelet, api.far_atelet],
        Machine.ROUTER: [api.router],
        Machine.CONTROLLER: [api.controller],
    }
    found = [caller for machine in sorted(rule.machines) for caller in machines[machine]]
    return [*found, api.user] if rule.people is not None else found


def strangers(api: Api, rpc: str) -> dict[str, Caller]:
    """Every caller that may not call the RPC."""
    known = {"an atelet": api.atelet, "a user": api.user, "the router": api.router, "the controller": api.controller}
    allowed = friends(api, rpc)
    return api.outsiders | {who: caller for who, caller in known.items() if caller not in allowed}


def path_of(rpc: str) -> str:
    return f"/{METHODS[rpc].containing_service.full_name}/{rpc}"


def denied(rpc: str, api: Api) -> None:
    for who, stranger in strangers(api, rpc).items():
        with refused("PERMISSION_DENIED", METHODS[rpc].containing_service.full_name):
            stranger(rpc)
            raise AssertionError(f"{who} was let in")


def let_in(rpc: str, api: Api) -> None:
    """They get as far as the check of the request."""
    for friend in friends(api, rpc):
        request = request_of(rpc)
        request.MergeFromString(UNKNOWN)
        with refused("INVALID_ARGUMENT", "does not know"):
            friend.send(rpc, request)


def nameless(rpc: str, api: Api) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        api.nameless(rpc)
    assert caught.value.code().name in ("UNAVAILABLE", "UNAUTHENTICATED"), caught.value


for name in METHODS:
    if name == "DebugClear":  # not served here; see debug.py
        continue
    add(name, "who has no right to call it is PERMISSION_DENIED", partial(denied, name))
    add(name, "who has the right gets in", partial(let_in, name))
add("GetActor", "without a client certificate there is no connection", partial(nameless, "GetActor"))
