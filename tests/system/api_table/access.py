"""Access policies as resources. What they make of calls is in tests/security."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, open_api, refused
from tests.system.api_table.makers import meta, ref
from tests.system.api_table.resources import BAD_SHORT, BAD_UUID
from tests.system.api_table.rows import add, row

OWNED = pb.Binding(role="owner", members=["user:ann"])


def policy(space: str, *bindings: pb.Binding, **fields: Any) -> pb.AccessPolicy:
    return pb.AccessPolicy(metadata=meta(space, "default"), bindings=bindings or [OWNED], **fields)


def add_policy(api: Api) -> tuple[str, pb.AccessPolicy]:
    """A new atespace and its policy."""
    space = api.atespace()
    return space, api.user("CreateAtespaceAccessPolicy", atespace=ref("", space), access_policy=policy(space))


@contextmanager
def fresh_install(api: Api) -> Iterator[Api]:
    """Another role with a store of its own: a global policy would be in the way of all other rows."""
    folder = api.folder / api.fresh("access")
    folder.mkdir()
    with open_api(folder) as other:
        yield other


def bad_bindings() -> dict[str, list[pb.Binding]]:
    """What is wrong with each, by the field that must be named."""
    return {
        "bindings[0].role": [pb.Binding(role="admin", members=["user:ann"])],
        "bindings[1].role": [OWNED, pb.Binding(members=["user:ann"])],
        "bindings[0].members[1]": [pb.Binding(role="owner", members=["user:ann", "user:ann"])],
        "bindings[0].members[0]": [pb.Binding(role="owner", members=["ann"])],
        "members[0]": [pb.Binding(role="viewer", members=["user:"]), OWNED],
        "members": [pb.Binding(role="viewer", members=[f"user:{n}" for n in range(1501)]), OWNED],
        "longer than 512": [pb.Binding(role="viewer", members=["user:" + "x" * 508]), OWNED],
        "access_policy.bindings": [OWNED] * 101,
    }


def breaches(rpc: str, api: Api) -> None:
    glob, create = "Global" in rpc, rpc.startswith("Create")
    space = "" if glob else api.atespace()
    where = {} if glob else {"atespace": ref("", space)}
    with refused("INVALID_ARGUMENT", "access_policy", *([] if glob else ["atespace"])):
        api.user(rpc)
    for word, bindings in bad_bindings().items():
        with refused("INVALID_ARGUMENT", word):
            api.user(rpc, **where, access_policy=policy(space, *bindings))
    for name in ("", "other"):
        with refused("INVALID_ARGUMENT", "access_policy.metadata.name"):
            api.user(rpc, **where, access_policy=pb.AccessPolicy(metadata=meta(space, name), bindings=[OWNED]))
    with refused("INVALID_ARGUMENT", "access_policy.metadata.atespace"):
        api.user(rpc, **where, access_policy=policy("elsewhere"))
    if glob:
        with refused("INVALID_ARGUMENT", "nobody is owner"):
            api.user(rpc, access_policy=policy("", pb.Binding(role="editor", members=["user:ann"])))
    else:
        for bad in BAD_SHORT:
            with refused("INVALID_ARGUMENT", "atespace.name"):
                api.user(rpc, atespace=ref("", bad), access_policy=policy(space))
    if not create:
        for bad in ("", *BAD_UUID):
            given = policy(space)
            given.metadata.uid, given.metadata.version = bad, 1
            with refused("INVALID_ARGUMENT", "uid"):
                api.user(rpc, **where, access_policy=given)
        with refused("INVALID_ARGUMENT", "version"):
            given = policy(space)
            given.metadata.uid = str(uuid.uuid4())
            api.user(rpc, **where, access_policy=given)


@row("CreateAtespaceAccessPolicy", "stores it with a uid and version 1; a second one is ALREADY_EXISTS")
def _create(api: Api) -> None:
    space, made = add_policy(api)
    assert made.metadata.version == 1 and made.metadata.uid and list(made.bindings) == [OWNED]
    with refused("ALREADY_EXISTS", space, "update it"):
        api.user("CreateAtespaceAccessPolicy", atespace=ref("", space), access_policy=policy(space))
    with refused("NOT_FOUND", "nowhere"):
        api.user("CreateAtespaceAccessPolicy", atespace=ref("", "nowhere"), access_policy=policy("nowhere"))


@row("GetAtespaceAccessPolicy", "gives what was stored; NOT_FOUND without one, and for an atespace that is not there")
def _get(api: Api) -> None:
    space, made = add_policy(api)
    assert api.user("GetAtespaceAccessPolicy", atespace=ref("", space)) == made
    for absent in (api.atespace(), "nowhere"):
        with refused("NOT_FOUND", absent):
            api.user("GetAtespaceAccessPolicy", atespace=ref("", absent))
    with refused("INVALID_ARGUMENT", "atespace"):
        api.user("GetAtespaceAccessPolicy")


@row("UpdateAtespaceAccessPolicy", "replaces the bindings; another uid or version is ABORTED, none is NOT_FOUND")
def _update(api: Api) -> None:
    space, made = add_policy(api)
    wanted = policy(space, pb.Binding(role="viewer", members=["user:bob"]))
    wanted.metadata.CopyFrom(made.metadata)
    after = api.user("UpdateAtespaceAccessPolicy", atespace=ref("", space), access_policy=wanted)
    assert after.metadata.version == 2 and after.bindings == wanted.bindings
    with refused("ABORTED", "version"):
        api.user("UpdateAtespaceAccessPolicy", atespace=ref("", space), access_policy=wanted)
    wanted.metadata.uid = str(uuid.uuid4())
    with refused("ABORTED", "uid"):
        api.user("UpdateAtespaceAccessPolicy", atespace=ref("", space), access_policy=wanted)
    empty = api.atespace()
    wanted.metadata.atespace = empty
    with refused("NOT_FOUND", empty):
        api.user("UpdateAtespaceAccessPolicy", atespace=ref("", empty), access_policy=wanted)


@row("DeleteAtespaceAccessPolicy", "removes it; guards that do not match are ABORTED; again is NOT_FOUND")
def _delete(api: Api) -> None:
    space, made = add_policy(api)
    for options, word in ((pb.DeleteOptions(uid=str(uuid.uuid4())), "uid"), (pb.DeleteOptions(version=9), "version")):
        with refused("ABORTED", word):
            api.user("DeleteAtespaceAccessPolicy", atespace=ref("", space), options=options)
    with refused("INVALID_ARGUMENT", "atespace", "options.uid"):
        api.user("DeleteAtespaceAccessPolicy", options=pb.DeleteOptions(uid="x"))
    options = pb.DeleteOptions(uid=made.metadata.uid, version=1)
    assert api.user("DeleteAtespaceAccessPolicy", atespace=ref("", space), options=options) == made
    with refused("NOT_FOUND", space):
        api.user("DeleteAtespaceAccessPolicy", atespace=ref("", space))


@row("DeleteAtespace", "takes its access policy along: a namesake starts without")
def _gone(api: Api) -> None:
    space, _ = add_policy(api)
    api.user("DeleteAtespace", atespace=ref("", space))
    api.user("CreateAtespace", atespace=pb.Atespace(metadata=meta("", space)))
    with refused("NOT_FOUND", space):
        api.user("GetAtespaceAccessPolicy", atespace=ref("", space))


@row("CreateGlobalAccessPolicy", "stores it once")
@row("GetGlobalAccessPolicy", "gives what was stored, NOT_FOUND before")
@row("UpdateGlobalAccessPolicy", "replaces the bindings; another uid or version is ABORTED, none is NOT_FOUND")
def _global(api: Api) -> None:
    with fresh_install(api) as other:
        with refused("NOT_FOUND", "every person may do everything"):
            other.user("GetGlobalAccessPolicy")
        absent = policy("")
        absent.metadata.uid, absent.metadata.version = str(uuid.uuid4()), 1
        with refused("NOT_FOUND", "global access policy"):
            other.user("UpdateGlobalAccessPolicy", access_policy=absent)
        made = other.user("CreateGlobalAccessPolicy", access_policy=policy(""))
        assert other.user("GetGlobalAccessPolicy") == made and made.metadata.version == 1
        with refused("ALREADY_EXISTS", "update it"):
            other.user("CreateGlobalAccessPolicy", access_policy=policy(""))
        wanted = policy("", OWNED, pb.Binding(role="viewer", members=["user:bob"]))
        wanted.metadata.CopyFrom(made.metadata)
        after = other.user("UpdateGlobalAccessPolicy", access_policy=wanted)
        assert after.metadata.version == 2 and after.bindings == wanted.bindings
        with refused("ABORTED", "version"):
            other.user("UpdateGlobalAccessPolicy", access_policy=wanted)


for name in (
    "CreateGlobalAccessPolicy",
    "UpdateGlobalAccessPolicy",
    "CreateAtespaceAccessPolicy",
    "UpdateAtespaceAccessPolicy",
):
    add(name, "what is missing or malformed is INVALID_ARGUMENT", partial(breaches, name))
