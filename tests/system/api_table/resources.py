"""What every resource has in common: create, get, update and delete, by the same rules for each kind."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused, request_of
from tests.system.api_table.kinds import RESOURCES, Change, Resource, set_field
from tests.system.api_table.makers import ref, ref_of
from tests.system.api_table.rows import add

BAD_SHORT = ("", "Upper", "x" * 64, "-a", "a-", "a_b", "a.b", "é", "a b")
BAD_UUID = ("x", "00000000-0000-4000-8000-00000000000A", "0" * 36, str(uuid.uuid4()).replace("-", ""))


def change(value: Any, *changes: Change) -> Any:
    copy = type(value)()
    copy.CopyFrom(value)
    for one in changes:
        one(copy)
    return copy


def forge_metadata(value: Any) -> None:
    value.metadata.uid = "11111111-1111-4111-8111-111111111111"
    value.metadata.version = 7
    value.metadata.create_time.seconds = 1
    value.metadata.update_time.seconds = 2


# -- create and get -----------------------------------------------------------------------------------------------


def missing(kind: Resource, api: Api) -> None:
    with refused("INVALID_ARGUMENT", kind.field):
        api.user(f"Create{kind.kind}")


def names(kind: Resource, api: Api) -> None:
    sound = kind.new(api)
    for name in BAD_SHORT:
        with refused("INVALID_ARGUMENT", f"{kind.field}.metadata.name"):
            kind.call(api, "Create", change(sound, set_field("metadata.name", name)))
    for space in BAD_SHORT if kind.scoped else ("any",):
        with refused("INVALID_ARGUMENT", f"{kind.field}.metadata.atespace"):
            kind.call(api, "Create", change(sound, set_field("metadata.atespace", space)))
    longest = (api.fresh("n") + "-" + "n" * 63)[:63]
    assert kind.call(api, "Create", change(sound, set_field("metadata.name", longest))).metadata.name == longest


def several(verb: str, kind: Resource, api: Api) -> None:
    path, breach = kind.also_wrong
    wrong = change(kind.new(api), set_field("metadata.name", "Bad Name"), breach)
    words = [f"{kind.field}.metadata.name", path]
    if verb == "Update":
        words += [f"{kind.field}.metadata.uid", f"{kind.field}.metadata.version"]
    with refused("INVALID_ARGUMENT", *words):
        kind.call(api, verb, wrong)


def server_set(kind: Resource, api: Api) -> None:
    forged = change(kind.new(api), kind.forge, forge_metadata)
    made = kind.call(api, "Create", forged)
    metadata = made.metadata
    assert (metadata.atespace, metadata.name) == (forged.metadata.atespace, forged.metadata.name)
    assert metadata.uid != forged.metadata.uid and str(uuid.UUID(metadata.uid)) == metadata.uid
    assert uuid.UUID(metadata.uid).version == 4
    assert metadata.version == (2 if kind.kind == "Tag" else 1), "a tag is written again when its copy is complete"
    assert metadata.create_time.seconds > 1_000_000_000
    assert metadata.update_time.ToNanoseconds() >= metadata.create_time.ToNanoseconds()
    assert kind.untouched(made), made


def taken(kind: Resource, api: Api) -> None:
    sound = kind.new(api)
    first = kind.call(api, "Create", sound)
    with refused("ALREADY_EXISTS", sound.metadata.name):
        kind.call(api, "Create", sound)
    assert kind.call(api, "Get", ref_of(first)).metadata.uid == first.metadata.uid


def no_atespace(kind: Resource, api: Api) -> None:
    with refused("FAILED_PRECONDITION", "no-such-atespace"):
        kind.call(api, "Create", change(kind.new(api), set_field("metadata.atespace", "no-such-atespace")))


def references(verb: str, kind: Resource, api: Api) -> None:
    with refused("INVALID_ARGUMENT", kind.field):
        api.user(f"{verb}{kind.kind}")
    space = "any" if kind.scoped else ""
    for name in BAD_SHORT:
        with refused("INVALID_ARGUMENT", f"{kind.field}.name"):
            kind.call(api, verb, ref(space, name))
    for wrong in BAD_SHORT if kind.scoped else ("any",):
        with refused("INVALID_ARGUMENT", f"{kind.field}.atespace"):
            kind.call(api, verb, ref(wrong, "a"))
    with refused("INVALID_ARGUMENT", f"{kind.field}.name", f"{kind.field}.atespace"):
        kind.call(api, verb, ref("" if kind.scoped else "any", ""))
    with refused("NOT_FOUND", "no-such-name"):
        kind.call(api, verb, ref(kind.place(api), "no-such-name"))


def get_what_was_created(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    found = kind.call(api, "Get", ref_of(made))
    if kind.kind == "ActorTemplate":  # its golden snapshot is on the way
        for value in (made, found):
            value.ClearField("status")
            value.metadata.ClearField("version")
            value.metadata.ClearField("update_time")
    assert found == made


# -- update -------------------------------------------------------------------------------------------------------


def update_guards(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    uid, version = f"{kind.field}.metadata.uid", f"{kind.field}.metadata.version"
    for wrong in ("", *BAD_UUID):
        with refused("INVALID_ARGUMENT", uid):
            kind.call(api, "Update", change(made, set_field("metadata.uid", wrong)))
    for number in (0, -1):
        with refused("INVALID_ARGUMENT", version):
            kind.call(api, "Update", change(made, set_field("metadata.version", number)))
    with refused("INVALID_ARGUMENT", uid, version):
        kind.call(api, "Update", change(made, set_field("metadata.uid", ""), set_field("metadata.version", 0)))
    with refused("INVALID_ARGUMENT", kind.field):
        api.user(f"Update{kind.kind}")


def stale(kind: Resource, api: Api) -> None:
    assert kind.change is not None
    made = kind.create(api)
    kind.call(api, "Update", change(made, kind.change))
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", made)
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", change(made, set_field("metadata.version", 99)))
    assert kind.changed(kind.call(api, "Get", ref_of(made)))


def other_uid(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", change(made, set_field("metadata.uid", str(uuid.uuid4()))))


def update_absent(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("NOT_FOUND", "no-such-name"):
        kind.call(api, "Update", change(made, set_field("metadata.name", "no-such-name")))


def version_rises(kind: Resource, api: Api) -> None:
    assert kind.change is not None
    made = kind.create(api)
    after = kind.call(api, "Update", change(made, kind.change))
    assert kind.changed(after) and after == kind.call(api, "Get", ref_of(made))
    assert after.metadata.version == made.metadata.version + 1
    assert (after.metadata.uid, after.metadata.create_time) == (made.metadata.uid, made.metadata.create_time)
    assert after.metadata.update_time.ToNanoseconds() >= made.metadata.update_time.ToNanoseconds()
    again = kind.call(api, "Update", after)
    assert again.metadata.version == after.metadata.version + 1


def update_server_set(kind: Resource, api: Api) -> None:
    made = kind.create(api)

    def times(value: Any) -> None:
        value.metadata.create_time.seconds = 1
        value.metadata.update_time.seconds = 2

    after = kind.call(api, "Update", change(made, kind.forge, times))
    assert kind.untouched(after), after
    assert after.metadata.create_time == made.metadata.create_time
    assert after.metadata.update_time.seconds > 2


def fixed(path: str, kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("INVALID_ARGUMENT", path):
        kind.call(api, "Update", change(made, kind.fixed[path]))
    assert kind.call(api, "Get", ref_of(made)).metadata.version == made.metadata.version


def all_fixed(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("INVALID_ARGUMENT", *kind.fixed):
        kind.call(api, "Update", change(made, *kind.fixed.values()))


def clears(kind: Resource, api: Api) -> None:
    assert kind.change is not None and kind.cleared is not None
    plain = kind.create(api)
    with_it = kind.call(api, "Update", change(plain, kind.change))
    assert not kind.cleared(with_it)
    without = change(plain, set_field("metadata.version", with_it.metadata.version))
    assert kind.cleared(kind.call(api, "Update", without))


# -- many at once -------------------------------------------------------------------------------------------------


def one_wins(verb: str, kind: Resource, api: Api) -> None:
    value = kind.new(api) if verb == "Create" else kind.create(api)
    rpc = f"{verb}{kind.kind}"
    codes = api.user.codes_at_once(rpc, [request_of(rpc, **{kind.field: value})] * 8)
    assert sorted(codes) == sorted(["OK", *["ALREADY_EXISTS" if verb == "Create" else "ABORTED"] * 7])


# -- delete -------------------------------------------------------------------------------------------------------


def delete_guards(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    if kind.kind == "ActorTemplate":
        made = kind.call(api, "Get", ref_of(made))
    for options in (
        pb.DeleteOptions(version=made.metadata.version + 1),
        pb.DeleteOptions(uid=str(uuid.uuid4())),
        pb.DeleteOptions(uid=str(uuid.uuid4()), version=made.metadata.version),
    ):
        with refused("ABORTED", made.metadata.name):
            kind.call(api, "Delete", ref_of(made), options=options)
    for wrong in BAD_UUID:
        with refused("INVALID_ARGUMENT", "options.uid"):
            kind.call(api, "Delete", ref_of(made), options=pb.DeleteOptions(uid=wrong))
    with refused("INVALID_ARGUMENT", "options.version", "options.uid", f"{kind.field}.name"):
        kind.call(api, "Delete", ref(made.metadata.atespace, ""), options=pb.DeleteOptions(uid="x", version=-1))
    assert kind.call(api, "Get", ref_of(made)).metadata.uid == made.metadata.uid


def deletes(kind: Resource, api: Api) -> None:
    sound = kind.new(api)
    made = kind.call(api, "Create", sound)
    guards = pb.DeleteOptions(uid=made.metadata.uid, version=made.metadata.version)
    gone = kind.call(api, "Delete", ref_of(made), options=guards)
    assert ref_of(gone) == ref_of(made) and gone.metadata.uid == made.metadata.uid
    for verb in ("Get", "Delete"):
        with refused("NOT_FOUND", made.metadata.name):
            kind.call(api, verb, ref_of(made))
    again = kind.call(api, "Create", sound)
    assert again.metadata.uid != made.metadata.uid and again.metadata.version == made.metadata.version


for one in RESOURCES:
    create, get, update, delete = (f"{verb}{one.kind}" for verb in ("Create", "Get", "Update", "Delete"))
    add(create, "a missing resource is INVALID_ARGUMENT", partial(missing, one))
    add(create, "names that are not short are INVALID_ARGUMENT, 63 characters are fine", partial(names, one))
    add(create, "several breaches come in one error", partial(several, "Create", one))
    add(create, "what the server sets is ignored; uid is a new UUID, version 1", partial(server_set, one))
    add(create, "a taken name is ALREADY_EXISTS", partial(taken, one))
    if one.kind != "Tag":  # made by an operation on its source, which takes one at a time
        add(create, "of many at once one wins, the others are ALREADY_EXISTS", partial(one_wins, "Create", one))
    if one.scoped:
        add(create, "a missing atespace is FAILED_PRECONDITION", partial(no_atespace, one))
    add(
        get,
        "a missing or bad reference is INVALID_ARGUMENT, an unknown name NOT_FOUND",
        partial(references, "Get", one),
    )
    add(get, "answers what Create answered", partial(get_what_was_created, one))
    if one.change is not None:
        add(update, "uid and version are required", partial(update_guards, one))
        add(update, "a stale version is ABORTED", partial(stale, one))
        add(update, "of many at once one wins, the others are ABORTED", partial(one_wins, "Update", one))
        add(update, "another uid is ABORTED", partial(other_uid, one))
        add(update, "an unknown name is NOT_FOUND", partial(update_absent, one))
        add(update, "the version rises by one, uid and create_time stay", partial(version_rises, one))
        add(update, "what the server sets is ignored", partial(update_server_set, one))
        add(update, "several breaches come in one error", partial(several, "Update", one))
        for where in one.fixed:
            add(update, f"{where.partition('.')[2]} is fixed: INVALID_ARGUMENT", partial(fixed, where, one))
        if len(one.fixed) > 1:
            add(update, "several changes of fixed fields come in one error", partial(all_fixed, one))
    if one.cleared is not None:
        add(update, "an absent changeable field is cleared", partial(clears, one))
    add(
        delete,
        "a missing or bad reference is INVALID_ARGUMENT, an unknown name NOT_FOUND",
        partial(references, "Delete", one),
    )
    add(delete, "guards that do not match are ABORTED, malformed ones INVALID_ARGUMENT", partial(delete_guards, one))
    add(delete, "answers the resource; its name can be used again, with another uid", partial(deletes, one))
