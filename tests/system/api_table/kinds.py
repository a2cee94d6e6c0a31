"""The kinds of resources: a sound one of each, what the server sets of it, what may change and what is fixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api
from tests.system.api_table import makers
from tests.system.api_table.makers import LABELS, ref, ref_of

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


def set_field(path: str, value: Any) -> Change:
    """A change that sets one field by its dotted path."""

    def apply(message: Any) -> None:
        *inner, last = path.split(".")
        for name in inner:
            message = getattr(message, name)
        setattr(message, last, value)

    return apply


_WORKER_FIXED: dict[str, Change] = {
    f"worker.{name}": set_field(name, f"another-{name.replace('_', '-')}")
    for name in ("worker_namespace", "worker_pool", "worker_pod", "worker_pod_uid", "node_name", "sandbox_class")
}

RESOURCES = (
    Resource(
        "Atespace",
        "atespace",
        False,
        lambda api, space, name: makers.atespace(name),
        ("atespace.metadata.atespace", set_field("metadata.atespace", "a")),
        forge=lambda value: None,
        untouched=lambda value: True,
    ),
    Resource(
        "ActorTemplate",
        "actor_template",
        True,
        lambda api, space, name: makers.template(api.location, space, name),
        ("actor_template.containers", lambda value: value.ClearField("containers")),
        forge=set_field("status.golden_snapshot_status.error_message", "forged"),
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
        ("tag.scope", set_field("scope", pb.TAG_SCOPE_UNSPECIFIED)),
        forge=_forge_tag,
        untouched=lambda value: (
            value.status.state == pb.TAG_STATE_READY and "forged" not in value.status.storage_location
        ),
        change=set_field("scope", pb.TAG_SCOPE_PUBLISHED),
        changed=lambda value: value.scope == pb.TAG_SCOPE_PUBLISHED,
        fixed={"tag.source_actor": set_field("source_actor.name", "another")},
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
        ("worker_pool.spec.replicas", set_field("spec.replicas", -1)),
        forge=set_field("status.replicas", 7),
        untouched=lambda value: value.status.replicas == 0,
        change=lambda value: value.labels.update(LABELS),
        changed=lambda value: dict(value.labels) == LABELS,
        cleared=lambda value: not value.labels,
        fixed={
            "worker_pool.spec.deployment_namespace": set_field("spec.deployment_namespace", "another"),
            "worker_pool.spec.sandbox_class": set_field("spec.sandbox_class", pb.SANDBOX_CLASS_MICROVM),
        },
    ),
    Resource(
        "SandboxConfig",
        "sandbox_config",
        False,
        lambda api, space, name: makers.config(name),
        ("sandbox_config.spec.pause_image", set_field("spec.pause_image", "busybox:latest")),
        forge=lambda value: None,
        untouched=lambda value: True,
        change=lambda value: (
            value.spec.assets["amd64"].files["runsc"].MergeFrom(pb.AssetFile(url="file:///runsc", sha256="a" * 64))
        ),
        changed=lambda value: value.spec.assets["amd64"].files["runsc"].url == "file:///runsc",
        cleared=lambda value: not value.spec.assets,
        fixed={"sandbox_config.spec.sandbox_class": set_field("spec.sandbox_class", pb.SANDBOX_CLASS_MICROVM)},
    ),
)
