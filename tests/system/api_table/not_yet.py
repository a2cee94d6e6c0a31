"""What is part of the API and not there yet says so: UNIMPLEMENTED, to those who may call it."""

from __future__ import annotations

from functools import partial

from tests.system.api_peer import Api, refused
from tests.system.api_table.every_rpc import caller
from tests.system.api_table.rows import add

NOT_YET = (
    "CreateGlobalAccessPolicy",
    "GetGlobalAccessPolicy",
    "UpdateGlobalAccessPolicy",
    "CreateAtespaceAccessPolicy",
    "GetAtespaceAccessPolicy",
    "UpdateAtespaceAccessPolicy",
    "DeleteAtespaceAccessPolicy",
)


def not_yet(rpc: str, api: Api) -> None:
    with refused("UNIMPLEMENTED", rpc):
        caller(api, rpc)(rpc)


for name in NOT_YET:
    add(name, "is UNIMPLEMENTED for now", partial(not_yet, name))
