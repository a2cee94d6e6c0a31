"""What every resource has in common: create, get, update and delete, by the same rules for each kind."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.makers import LABELS, ref, ref_of
from tests.system.api_table.rows import add

BAD_SHORT = ("", "Upper", "x" * 64, "-a", "a-", "a_b", "a.b", "é", "a b")
BAD_UUID = ("x", "00000000-0000-4000-8000-00000000000A", "0" * 36, str(uuid.uuid4()).replace("-", ""))
Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Resource:
    """One kind. `field` is its field in requests; changes are made to a message in place."""

    kind: str
    field: str
    scoped: bool
    sound: Callable[[Api, str, str], Any]
    """A valid one for (api, atespace, name)."""
    also_wrong: tuple[str, Change]
    """A breach besides a bad name: the path it is told with, and how to make it."""
    forge: Change
    """Sets what only the server sets."""
    untouched: Callable[[Any], bool]
    """Whether a forged one came back as the server makes it."""
    change: Change | None = None
    changed: Callable[[Any], bool] = lambda resource: True
    cleared: Callable[[Any], bool] | None = None
    """Whether a changed one that is replaced by one without the field has lost it."""
    fixed: Mapping[str, Change] = field(default_factory=dict)

    def place(self, api: Api) -> str:
        return api.atespace() if self.scoped else ""

    def new(self, api: Api) -> Any:
        return self.sound(api, self.place(api), api.fresh(self.field.replace("_", "-")))

    def call(self, api: Api, verb: str, value: Any, **fields: Any) -> Any:
        return api.user(f"{verb}{self.kind}", **{self.field: value}, **fields)

    def create(self, api: Api) -> Any:
        return self.call(api, "Create", self.new(api))


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


def _forge_actor(value: pb.Actor) -> None:
    value.status.state = pb.ACTOR_STATE_RUNNING
    value.status.worker_assignment.node_name = "forged"
    value.status.external_snapshot.snapshot_uri = "file:///forged"
    value.status.crash.message = "forged"


def _forge_tag(value: pb.Tag) -> None:
    value.status.state = pb.TAG_STATE_FAILED
    value.status.storage_location = "file:///forged"


def _forge_worker(value: pb.Worker) -> None:
    value.status.state = pb.WORKER_STATE_DRAINING
    value.status.capacity.actors = 9
    value.status.allocated.actors = 8
    value.status.observed_epoch = 77


def _tag(api: Api, space: str, name: str) -> pb.Tag:
    return makers.tag(space, name, ref_of(makers.add_suspended(api)))


def _set(path: str, value: Any) -> Change:
    """A change that sets one field by its dotted path."""

    def apply(message: Any) -> None:
        *inner, last = path.split(".")
        for name in inner:
            message = getattr(message, name)
        setattr(message, last, value)

    return apply


_WORKER_FIXED: dict[str, Change] = {
    f"worker.{name}": _set(name, f"another-{name.replace('_', '-')}")
    for name in ("worker_namespace", "worker_pool", "worker_pod", "worker_pod_uid", "node_name", "sandbox_class")
}

RESOURCES = (
    Resource(
        "Atespace",
        "atespace",
        False,
        lambda api, space, name: makers.atespace(name),
        ("atespace.metadata.atespace", _set("metadata.atespace", "a")),
        forge=lambda value: None,
        untouched=lambda value: True,
    ),
    Resource(
        "ActorTemplate",
        "actor_template",
        True,
        lambda api, space, name: makers.template(api.location, space, name),
        ("actor_template.containers", lambda value: value.ClearField("containers")),
        forge=_set("status.golden_snapshot_status.error_message", "forged"),
        untouched=lambda value: not value.status.golden_snapshot_status.error_message,
    ),
    Resource(
        "Actor",
        "actor",
        True,
        lambda api, space, name: makers.actor(space, name),
        ("actor.actor_template", lambda value: value.ClearField("actor_template")),
        forge=_forge_actor,
        untouched=lambda value: (
            value.status.state == pb.ACTOR_STATE_SUSPENDED
            and not value.status.HasField("worker_assignment")
            and not value.status.HasField("crash")
            and "forged" not in value.status.external_snapshot.snapshot_uri
        ),
        change=lambda value: value.worker_selector.match_labels.update(LABELS),
        changed=lambda value: dict(value.worker_selector.match_labels) == LABELS,
        cleared=lambda value: not value.HasField("worker_selector"),
        fixed={"actor.source_tag": lambda value: value.source_tag.CopyFrom(ref("a", "b"))},
    ),
    Resource(
        "Tag",
        "tag",
        True,
        _tag,
        ("tag.scope", _set("scope", pb.TAG_SCOPE_UNSPECIFIED)),
        forge=_forge_tag,
        untouched=lambda value: (
            value.status.state == pb.TAG_STATE_READY and "forged" not in value.status.storage_location
        ),
        change=_set("scope", pb.TAG_SCOPE_PUBLISHED),
        changed=lambda value: value.scope == pb.TAG_SCOPE_PUBLISHED,
        fixed={"tag.source_actor": _set("source_actor.name", "another")},
    ),
    Resource(
        "Worker",
        "worker",
        False,
        lambda api, space, name: makers.worker(name, labels={}),
        ("worker.ips", lambda value: value.ips.extend(["127.0.0.1", "127.0.0.2"])),
        forge=_forge_worker,
        untouched=lambda value: value.status == pb.WorkerStatus(state=pb.WORKER_STATE_ACTIVE, observed_epoch=1),
        change=lambda value: value.labels.update(LABELS),
        changed=lambda value: dict(value.labels) == LABELS,
        cleared=lambda value: not value.labels,
        fixed=_WORKER_FIXED | {"worker.ips": lambda value: value.ips.append("127.0.0.7")},
    ),
    Resource(
        "WorkerPool",
        "worker_pool",
        False,
        lambda api, space, name: makers.pool(name),
        ("worker_pool.spec.replicas", _set("spec.replicas", -1)),
        forge=_set("status.replicas", 7),
        untouched=lambda value: value.status.replicas == 0,
        change=lambda value: value.labels.update(LABELS),
        changed=lambda value: dict(value.labels) == LABELS,
        cleared=lambda value: not value.labels,
        fixed={
            "worker_pool.spec.deployment_namespace": _set("spec.deployment_namespace", "another"),
            "worker_pool.spec.sandbox_class": _set("spec.sandbox_class", pb.SANDBOX_CLASS_MICROVM),
        },
    ),
    Resource(
        "SandboxConfig",
        "sandbox_config",
        False,
        lambda api, space, name: makers.config(name),
        ("sandbox_config.spec.pause_image", _set("spec.pause_image", "busybox:latest")),
        forge=lambda value: None,
        untouched=lambda value: True,
        change=lambda value: (
            value.spec.assets["amd64"].files["runsc"].MergeFrom(pb.AssetFile(url="file:///runsc", sha256="a" * 64))
        ),
        changed=lambda value: value.spec.assets["amd64"].files["runsc"].url == "file:///runsc",
        cleared=lambda value: not value.spec.assets,
        fixed={"sandbox_config.spec.sandbox_class": _set("spec.sandbox_class", pb.SANDBOX_CLASS_MICROVM)},
    ),
)


# -- create and get -----------------------------------------------------------------------------------------------


def missing(kind: Resource, api: Api) -> None:
    with refused("INVALID_ARGUMENT", kind.field):
        api.user(f"Create{kind.kind}")


def names(kind: Resource, api: Api) -> None:
    sound = kind.new(api)
    for name in BAD_SHORT:
        with refused("INVALID_ARGUMENT", f"{kind.field}.metadata.name"):
            kind.call(api, "Create", change(sound, _set("metadata.name", name)))
    for space in BAD_SHORT if kind.scoped else ("any",):
        with refused("INVALID_ARGUMENT", f"{kind.field}.metadata.atespace"):
            kind.call(api, "Create", change(sound, _set("metadata.atespace", space)))
    longest = (api.fresh("n") + "-" + "n" * 63)[:63]
    assert kind.call(api, "Create", change(sound, _set("metadata.name", longest))).metadata.name == longest


def several(verb: str, kind: Resource, api: Api) -> None:
    path, breach = kind.also_wrong
    wrong = change(kind.new(api), _set("metadata.name", "Bad Name"), breach)
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
        kind.call(api, "Create", change(kind.new(api), _set("metadata.atespace", "no-such-atespace")))


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
            kind.call(api, "Update", change(made, _set("metadata.uid", wrong)))
    for number in (0, -1):
        with refused("INVALID_ARGUMENT", version):
            kind.call(api, "Update", change(made, _set("metadata.version", number)))
    with refused("INVALID_ARGUMENT", uid, version):
        kind.call(api, "Update", change(made, _set("metadata.uid", ""), _set("metadata.version", 0)))
    with refused("INVALID_ARGUMENT", kind.field):
        api.user(f"Update{kind.kind}")


def stale(kind: Resource, api: Api) -> None:
    assert kind.change is not None
    made = kind.create(api)
    kind.call(api, "Update", change(made, kind.change))
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", made)
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", change(made, _set("metadata.version", 99)))
    assert kind.changed(kind.call(api, "Get", ref_of(made)))


def other_uid(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("ABORTED", made.metadata.name):
        kind.call(api, "Update", change(made, _set("metadata.uid", str(uuid.uuid4()))))


def update_absent(kind: Resource, api: Api) -> None:
    made = kind.create(api)
    with refused("NOT_FOUND", "no-such-name"):
        kind.call(api, "Update", change(made, _set("metadata.name", "no-such-name")))


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
    without = change(plain, _set("metadata.version", with_it.metadata.version))
    assert kind.cleared(kind.call(api, "Update", without))


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
