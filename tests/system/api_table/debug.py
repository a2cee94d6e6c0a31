"""Debug: there only where it was asked for. And what a fault of ours looks like from outside."""

from __future__ import annotations

from unittest import mock

from ate.api.access.gate import ELAPSED_TRAILER
from ate.names import GOLDEN_ATESPACE
from tests.system.api_peer import TIMEOUT, Api, open_api, refused, request_of
from tests.system.api_table.callers import strangers
from tests.system.api_table.every_rpc import UNKNOWN
from tests.system.api_table.makers import atespace, config, pool, ref, worker
from tests.system.api_table.rows import row


@row("DebugClear", "is UNIMPLEMENTED unless the server was started with it")
def _off(api: Api) -> None:
    with refused("UNIMPLEMENTED"):
        api.user("DebugClear")


@row("DebugClear", "empties the store, for users only")
def _on(api: Api) -> None:
    folder = api.folder / api.fresh("debug")
    folder.mkdir()
    with open_api(folder, debug=True) as other:
        other.user("CreateAtespace", atespace=atespace("x"))
        other.user("CreateWorkerPool", worker_pool=pool("x"))
        other.user("CreateSandboxConfig", sandbox_config=config("x"))
        for who, stranger in strangers(other, "DebugClear").items():
            with refused("PERMISSION_DENIED", "ateapi.Debug"):
                stranger("DebugClear")
                raise AssertionError(f"{who} was let in")
        request = request_of("DebugClear")
        request.MergeFromString(UNKNOWN)
        with refused("INVALID_ARGUMENT", "does not know"):
            other.user.send("DebugClear", request)
        assert other.user("GetAtespace", atespace=ref("", "x")).metadata.name == "x"
        other.user("DebugClear")
        left = [item.metadata.name for item in other.user("ListAtespaces").atespaces]
        assert left in ([], [GOLDEN_ATESPACE])
        assert not other.user("ListWorkerPools").worker_pools
        assert not other.user("ListSandboxConfigs").sandbox_configs
        other.user("CreateWorker", worker=worker("x"))


@row("ListAtespaces", "a fault of the server's own is INTERNAL, and the server lives on")
def _fault(api: Api) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    with mock.patch("ate.api.atespaces.list_", broken), refused("INTERNAL", "a fault of ours"):
        api.user("ListAtespaces")
    assert api.user("ListAtespaces").atespaces


@row("ListAtespaces", "an answer tells in its trailers how long the server took")
def _elapsed(api: Api) -> None:
    method = api.user.channel.unary_unary("/ateapi.Control/ListAtespaces")
    _, call = method.with_call(b"", timeout=TIMEOUT)
    assert call.code().name == "OK" and dict(call.trailing_metadata())[ELAPSED_TRAILER].isdigit()
