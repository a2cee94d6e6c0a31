"""Who may call what, made from the descriptors: each service keeps to its callers."""

from __future__ import annotations

from functools import partial

import grpc
import pytest

from tests.system.api_peer import METHODS, Api, Caller, refused, request_of
from tests.system.api_table.every_rpc import UNKNOWN, of_nodes
from tests.system.api_table.rows import add


def strangers(api: Api, rpc: str) -> dict[str, Caller]:
    """Every caller that may not call the RPC."""
    if of_nodes(rpc):
        return api.outsiders | {"a user": api.user, "the router": api.router, "the controller": api.controller}
    return api.outsiders | {"an atelet": api.atelet}


def denied(rpc: str, api: Api) -> None:
    for who, stranger in strangers(api, rpc).items():
        with refused("PERMISSION_DENIED", METHODS[rpc].containing_service.full_name):
            stranger(rpc)
            raise AssertionError(f"{who} was let in")


def let_in(rpc: str, api: Api) -> None:
    """They get as far as the check of the request."""
    friends = [api.atelet, api.far_atelet] if of_nodes(rpc) else [api.user, api.router, api.controller]
    for friend in friends:
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
    who = "node agents" if of_nodes(name) else "users, router and controller"
    add(name, f"only {who} may call it, others are PERMISSION_DENIED", partial(denied, name))
    add(name, f"{who} may call it", partial(let_in, name))
add("GetActor", "without a client certificate there is no connection", partial(nameless, "GetActor"))
