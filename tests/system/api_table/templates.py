"""Templates: every bound of the template as a whole, the defaults, the runtime it names, and its golden tag."""

from __future__ import annotations

from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.makers import IMAGE, MICROVM_CONFIG, limits, ref_of
from tests.system.api_table.rows import row
from tests.system.api_table.template_bounds import Bound, Build, declare, microvm, nothing

FULL, DATA = pb.SNAPSHOT_CONTENT_SCOPE_FULL, pb.SNAPSHOT_CONTENT_SCOPE_DATA


def _labels(*pairs: tuple[str, str]) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        template.worker_selector.match_labels.clear()
        template.worker_selector.match_labels.update(dict(pairs))

    return build


def _limits(*pairs: tuple[str, str]) -> Build:
    return lambda t: t.resources.limits.extend(pb.Limits(name=name, quantity=text) for name, text in pairs)


def _lifecycle(name: str, **seconds: int) -> Build:
    return lambda t: getattr(t.lifecycle, name).MergeFrom(type(getattr(t.lifecycle, name))(**seconds))


def _snapshots(**fields: Any) -> Build:
    return lambda t: t.snapshots_config.MergeFrom(pb.SnapshotsConfig(**fields))


def _location(length: int) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        location = template.snapshots_config.storage_location
        template.snapshots_config.storage_location = location + "/" + "x" * (length - len(location) - 1)

    return build


declare(
    (
        Bound("1 label of the selector", "worker_selector.match_labels", _labels(("a", "b")), _labels()),
        Bound(
            "10 labels of the selector",
            "worker_selector.match_labels",
            _labels(*((f"k{n}", "v") for n in range(10))),
            _labels(*((f"k{n}", "v") for n in range(11))),
        ),
        Bound(
            "63 characters of a label's key",
            "worker_selector.match_labels[" + "k" * 64 + "]",
            _labels(("k" * 63, "v")),
            _labels(("k" * 64, "v")),
        ),
        Bound(
            "63 characters of a label",
            "worker_selector.match_labels[k]",
            _labels(("k", "v" * 63)),
            _labels(("k", "v" * 64)),
        ),
        Bound(
            "a label's syntax", "worker_selector.match_labels[a/b]", _labels(("a/b", "V_.1")), _labels(("a/b", "-v"))
        ),
        Bound("1 container", "containers", nothing, lambda t: t.ClearField("containers")),
        Bound(
            "10 containers",
            "containers",
            lambda t: [t.containers.add(name=f"c{n}", image=IMAGE) for n in range(9)],
            lambda t: [t.containers.add(name=f"c{n}", image=IMAGE) for n in range(10)],
        ),
        Bound(
            "no container twice",
            "containers[1]",
            lambda t: t.containers.add(name="d", image=IMAGE),
            lambda t: t.containers.add(name="c", image=IMAGE),
        ),
        Bound("a snapshots_config", "snapshots_config", nothing, lambda t: t.ClearField("snapshots_config")),
        Bound(
            "a storage_location",
            "snapshots_config.storage_location",
            nothing,
            lambda t: t.snapshots_config.ClearField("storage_location"),
        ),
        Bound(
            "1024 characters of a storage_location",
            "snapshots_config.storage_location",
            _location(1024),
            _location(1025),
        ),
        Bound(
            "no NUL in a storage_location",
            "snapshots_config.storage_location",
            nothing,
            _snapshots(storage_location="file:///a\0b"),
        ),
        Bound(
            "a storage_location that is a URI",
            "snapshots_config.storage_location",
            nothing,
            _snapshots(storage_location="/tmp"),
        ),
        Bound(
            "on_commit no wider than on_pause",
            "snapshots_config.on_commit",
            _snapshots(on_pause=FULL, on_commit=DATA),
            _snapshots(on_pause=DATA, on_commit=FULL),
        ),
        Bound("a known on_pause", "snapshots_config.on_pause", _snapshots(on_pause=DATA), _snapshots(on_pause=9)),
        Bound(
            "a known from_data",
            "snapshots_config.on_resume.from_data",
            _snapshots(on_resume=pb.OnResumeConfig(from_data=2)),
            _snapshots(on_resume=pb.OnResumeConfig(from_data=3)),
        ),
        Bound(
            "a sandbox_class",
            "sandbox_config.sandbox_class",
            nothing,
            lambda t: t.sandbox_config.ClearField("sandbox_class"),
        ),
        Bound(
            "a known sandbox_class",
            "sandbox_config.sandbox_class",
            microvm,
            lambda t: setattr(t.sandbox_config, "sandbox_class", 3),
        ),
        Bound(
            "a config_name", "sandbox_config.config_name", nothing, lambda t: t.sandbox_config.ClearField("config_name")
        ),
        Bound(
            "a config_name that is long",
            "sandbox_config.config_name",
            nothing,
            lambda t: setattr(t.sandbox_config, "config_name", "A"),
        ),
        Bound(
            "cpu and memory once each",
            "resources.limits[1]",
            _limits(("cpu", "1"), ("memory", "1Gi")),
            _limits(("cpu", "1"), ("cpu", "1")),
        ),
        Bound(
            "2 limits",
            "resources.limits",
            _limits(("cpu", "1"), ("memory", "1Gi")),
            _limits(("cpu", "1"), ("memory", "1"), ("cpu", "2")),
        ),
        Bound(
            "limits of cpu and memory only",
            "resources.limits[0].name",
            _limits(("memory", "1")),
            _limits(("disk", "1")),
        ),
        Bound(
            "less than 1000 cores",
            "resources.limits[0].quantity",
            _limits(("cpu", "999999m")),
            _limits(("cpu", "1000")),
        ),
        Bound("limits above 0", "resources.limits[0].quantity", _limits(("cpu", "1m")), _limits(("cpu", "0"))),
        Bound(
            "32 characters of a quantity",
            "resources.limits[0].quantity",
            _limits(("cpu", "0." + "0" * 29 + "1")),
            _limits(("cpu", "0." + "0" * 30 + "1")),
        ),
        Bound(
            "a quantity's syntax",
            "resources.limits[0].quantity",
            _limits(("memory", "1.5Gi")),
            _limits(("memory", "1 Gi")),
        ),
        Bound(
            "a quantity the wire can hold",
            "resources.limits[0].quantity",
            _limits(("memory", "7E")),
            _limits(("memory", "1e999999999")),
        ),
        Bound(
            "1 second of idle_timeout",
            "lifecycle.idle_timeout",
            _lifecycle("idle_timeout", seconds=1),
            _lifecycle("idle_timeout", nanos=999_999_999),
        ),
        Bound(
            "600 seconds of drain_grace",
            "lifecycle.drain_grace",
            _lifecycle("drain_grace", seconds=600),
            _lifecycle("drain_grace", seconds=600, nanos=1),
        ),
        Bound(
            "no negative drain_grace",
            "lifecycle.drain_grace",
            _lifecycle("drain_grace"),
            _lifecycle("drain_grace", nanos=-1),
        ),
        Bound(
            "1 second of max_lifetime",
            "lifecycle.max_lifetime",
            _lifecycle("max_lifetime", seconds=10**6),
            _lifecycle("max_lifetime", nanos=999_999_999),
        ),
        Bound(
            "a duration",
            "lifecycle.idle_timeout",
            _lifecycle("idle_timeout", seconds=315_576_000_000),
            _lifecycle("idle_timeout", seconds=2**62),
        ),
        Bound(
            "a known on_crash",
            "lifecycle.on_crash",
            lambda t: setattr(t.lifecycle, "on_crash", 2),
            lambda t: setattr(t.lifecycle, "on_crash", 3),
        ),
    )
)


@row("CreateActorTemplate", "what is left out gets its default, what is given stays")
def _defaults(api: Api) -> None:
    space = api.atespace()
    made = api.user("CreateActorTemplate", actor_template=makers.template(api.location, space, "plain"))
    config = made.snapshots_config
    assert config.on_pause == config.on_commit == FULL
    assert config.on_resume.from_data == pb.RESUME_SOURCE_COLD_BOOT
    assert made.containers[0].readyz.http_get.path == "/readyz"
    given = makers.template(api.location, space, "given")
    given.containers[0].readyz.http_get.path = "/up"
    given.snapshots_config.on_commit = DATA
    given.resources.CopyFrom(limits(cpu="500m", memory="1Gi"))
    made = api.user("CreateActorTemplate", actor_template=given)
    for value in (made, given):
        value.ClearField("metadata")
        value.ClearField("status")
        value.snapshots_config.ClearField("on_resume")
    given.snapshots_config.on_pause = FULL
    assert made == given


@row("CreateActorTemplate", "a SandboxConfig that is not there, or of another class, is FAILED_PRECONDITION")
def _config(api: Api) -> None:
    space = api.atespace()
    missing = makers.template(api.location, space, "a")
    missing.sandbox_config.config_name = "no-such-config"
    with refused("FAILED_PRECONDITION", "actor_template.sandbox_config", "no-such-config"):
        api.user("CreateActorTemplate", actor_template=missing)
    other = makers.template(api.location, space, "a")
    other.sandbox_config.config_name = MICROVM_CONFIG
    with refused("FAILED_PRECONDITION", "actor_template.sandbox_config", MICROVM_CONFIG):
        api.user("CreateActorTemplate", actor_template=other)


@row("DeleteActorTemplate", "takes its golden tag along")
def _golden(api: Api) -> None:
    template = makers.template(api.location, api.atespace(), "t")
    template.worker_selector.match_labels.clear()
    template.worker_selector.match_labels["lab"] = "shared"
    made = api.user("CreateActorTemplate", actor_template=template)

    def golden_tag() -> pb.ObjectRef:
        found = api.user("GetActorTemplate", actor_template=ref_of(made))
        return found.status.golden_snapshot_status.golden_tag

    makers.eventually(lambda: golden_tag().name == made.metadata.uid)
    tag = golden_tag()
    assert api.user("GetTag", tag=tag).scope == pb.TAG_SCOPE_PUBLISHED
    api.user("DeleteActorTemplate", actor_template=ref_of(made))
    with refused("NOT_FOUND"):
        api.user("GetTag", tag=tag)


@row("DeleteActorTemplate", "actors of it are left, and say what is missing: FAILED_PRECONDITION")
def _orphans(api: Api) -> None:
    space = api.atespace()
    made = api.user("CreateActorTemplate", actor_template=makers.template(api.location, space, "t"))
    actor = makers.add_actor(api, space=space, actor_template=ref_of(made))
    api.user("DeleteActorTemplate", actor_template=ref_of(made))
    with refused("FAILED_PRECONDITION", "actor template not found"):
        api.user("ResumeActor", actor=ref_of(actor))
