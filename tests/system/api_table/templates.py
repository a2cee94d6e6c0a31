"""Templates: every bound of the proto at its edge and one beyond, the defaults, and the runtime they name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.makers import DIGEST, IMAGE, MICROVM_CONFIG, limits, ref_of
from tests.system.api_table.rows import add, row

Build = Callable[[pb.ActorTemplate], Any]
FULL, DATA = pb.SNAPSHOT_CONTENT_SCOPE_FULL, pb.SNAPSHOT_CONTENT_SCOPE_DATA


@dataclass(frozen=True)
class Bound:
    """What makes a sound template reach a bound, what goes beyond, and the path the breach is told with."""

    title: str
    path: str
    within: Build
    beyond: Build


def _container(change: Callable[[pb.Container], Any]) -> Build:
    return lambda template: change(template.containers[0])


def _long_image(length: int) -> str:
    return "i" * (length - len(DIGEST)) + DIGEST


def _get(**fields: Any) -> Build:
    return lambda t: t.containers[0].readyz.http_get.MergeFrom(pb.HTTPGetAction(**fields))


def _mount(template: pb.ActorTemplate, *paths: str, name: str = "v") -> None:
    """A volume of one file, mounted at every path."""
    source = pb.SystemInfoDataSource(
        actor_metadata=pb.ActorMetadataSource(items=[pb.ActorMetadataItem(field=1, path="f")])
    )
    template.volumes.add(name=name, system_info=pb.SystemInfoVolume(data_sources=[source]))
    for path in paths:
        template.containers[0].volume_mounts.add(name=name, mount_path=path)


def _mounts(*paths: str) -> Build:
    return lambda template: _mount(template, *paths)


def _volumes(count: int) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        template.containers.add(name="d", image=IMAGE)
        for number in range(count):
            template.volumes.add(name=f"v{number}", image=pb.ImageVolume(reference=IMAGE))
            mounts = template.containers[number // 32].volume_mounts
            mounts.add(name=f"v{number}", mount_path=f"/v{number}")

    return build


def _volume(**kind: Any) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        template.volumes.add(name="v", **kind)
        template.containers[0].volume_mounts.add(name="v", mount_path="/v")

    return build


def _sources(*sources: pb.SystemInfoDataSource) -> Build:
    return _volume(system_info=pb.SystemInfoVolume(data_sources=sources))


def _item(path: str, field: int = 1) -> pb.ActorMetadataItem:
    return pb.ActorMetadataItem(field=field, path=path)  # type: ignore[arg-type]


def _items(*items: pb.ActorMetadataItem) -> Build:
    return _sources(pb.SystemInfoDataSource(actor_metadata=pb.ActorMetadataSource(items=items)))


def _bundle(path: str, **name: Any) -> pb.SystemInfoDataSource:
    return pb.SystemInfoDataSource(trust_bundle=pb.TrustBundleSource(path=path, **(name or {"name": BUNDLE})))


BUNDLE = "egress-mitm.ate.dev"


def _external(capacity: str = "1Gi", name: str = "fast") -> Build:
    return _volume(external_volume_template=pb.ExternalVolumeTemplate(capacity=capacity, storage_class_name=name))


def _durable(count: int) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        for number in range(count):
            template.volumes.add(name=f"v{number}").durable_dir.SetInParent()
            template.containers[0].volume_mounts.add(name=f"v{number}", mount_path=f"/v{number}")

    return build


def _microvm(template: pb.ActorTemplate) -> None:
    template.sandbox_config.CopyFrom(
        pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_MICROVM, config_name=MICROVM_CONFIG)
    )


def _both(*builds: Build) -> Build:
    return lambda template: [build(template) for build in builds]


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


def _env(*entries: tuple[str, str]) -> Build:
    return _container(lambda c: c.env.extend(pb.EnvVar(name=name, value=value) for name, value in entries))


def _capabilities(**names: list[str]) -> Build:
    return _container(lambda c: c.security_context.capabilities.MergeFrom(pb.Capabilities(**names)))


def nothing(template: pb.ActorTemplate) -> None:
    """The sound template itself."""


_CAPS = [f"CAP{number}" for number in range(65)]
_C = "containers[0]"
_V = "volumes[0]"
_S = f"{_V}.system_info.data_sources"
_LONG = ".".join(["x" * 63] * 3 + ["x" * 61])
"""A DNS subdomain of 253 characters."""

BOUNDS = (
    # the template
    Bound("1 label of the selector", "worker_selector.match_labels", _labels(("a", "b")), _labels()),
    Bound(
        "10 labels of the selector",
        "worker_selector.match_labels",
        _labels(*((f"k{n}", "v") for n in range(10))),
        _labels(*((f"k{n}", "v") for n in range(11))),
    ),
    Bound(
        "63 characters of a label's key",
        "worker_selector.match_labels[",
        _labels(("k" * 63, "v")),
        _labels(("k" * 64, "v")),
    ),
    Bound(
        "63 characters of a label",
        "worker_selector.match_labels[k]",
        _labels(("k", "v" * 63)),
        _labels(("k", "v" * 64)),
    ),
    Bound("a label's syntax", "worker_selector.match_labels[a/b]", _labels(("a/b", "V_.1")), _labels(("a/b", "-v"))),
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
        "1024 characters of a storage_location", "snapshots_config.storage_location", _location(1024), _location(1025)
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
        _microvm,
        lambda t: setattr(t.sandbox_config, "sandbox_class", 3),
    ),
    Bound("a config_name", "sandbox_config.config_name", nothing, lambda t: t.sandbox_config.ClearField("config_name")),
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
        "limits of cpu and memory only", "resources.limits[0].name", _limits(("memory", "1")), _limits(("disk", "1"))
    ),
    Bound(
        "less than 1000 cores", "resources.limits[0].quantity", _limits(("cpu", "999999m")), _limits(("cpu", "1000"))
    ),
    Bound("limits above 0", "resources.limits[0].quantity", _limits(("cpu", "1m")), _limits(("cpu", "0"))),
    Bound(
        "32 characters of a quantity",
        "resources.limits[0].quantity",
        _limits(("cpu", "0." + "0" * 29 + "1")),
        _limits(("cpu", "0." + "0" * 30 + "1")),
    ),
    Bound(
        "a quantity's syntax", "resources.limits[0].quantity", _limits(("memory", "1.5Gi")), _limits(("memory", "1 Gi"))
    ),
    Bound(
        "a quantity the wire can hold",
        "resources.limits[0].quantity",
        _limits(("memory", "7E")),
        _limits(("memory", "1e999999999")),
    ),
    # lifecycle
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
    # containers
    Bound(
        "63 characters of a container's name",
        f"{_C}.name",
        _container(lambda c: setattr(c, "name", "c" * 63)),
        _container(lambda c: setattr(c, "name", "c" * 64)),
    ),
    Bound("a container's name", f"{_C}.name", nothing, _container(lambda c: setattr(c, "name", ""))),
    Bound(
        "a container not called pause",
        f"{_C}.name",
        _container(lambda c: setattr(c, "name", "pause1")),
        _container(lambda c: setattr(c, "name", "pause")),
    ),
    Bound("an image", f"{_C}.image", nothing, _container(lambda c: setattr(c, "image", ""))),
    Bound(
        "512 characters of an image",
        f"{_C}.image",
        _container(lambda c: setattr(c, "image", _long_image(512))),
        _container(lambda c: setattr(c, "image", _long_image(513))),
    ),
    Bound(
        "an image with its digest", f"{_C}.image", nothing, _container(lambda c: setattr(c, "image", "busybox:latest"))
    ),
    Bound(
        "64 words of command",
        f"{_C}.command",
        _container(lambda c: c.command.extend(["x"] * 64)),
        _container(lambda c: c.command.extend(["x"] * 65)),
    ),
    Bound(
        "4096 characters of a word of command",
        f"{_C}.command[0]",
        _container(lambda c: c.command.append("x" * 4096)),
        _container(lambda c: c.command.append("x" * 4097)),
    ),
    Bound(
        "64 args",
        f"{_C}.args",
        _container(lambda c: c.args.extend(["x"] * 64)),
        _container(lambda c: c.args.extend(["x"] * 65)),
    ),
    Bound(
        "4096 characters of an arg",
        f"{_C}.args[0]",
        _container(lambda c: c.args.append("x" * 4096)),
        _container(lambda c: c.args.append("x" * 4097)),
    ),
    Bound(
        "32 variables",
        f"{_C}.env",
        _env(*((f"E{n}", "") for n in range(32))),
        _env(*((f"E{n}", "") for n in range(33))),
    ),
    Bound("no variable twice", f"{_C}.env[1]", _env(("A", ""), ("B", "")), _env(("A", ""), ("A", ""))),
    Bound("256 characters of a variable's name", f"{_C}.env[0].name", _env(("A" * 256, "")), _env(("A" * 257, ""))),
    Bound("a variable's name", f"{_C}.env[0].name", _env(("a", "")), _env(("", ""))),
    Bound("no = in a variable's name", f"{_C}.env[0].name", _env(("A!", "=")), _env(("A=", ""))),
    Bound("printable ASCII in a variable's name", f"{_C}.env[0].name", _env(("A~", "é")), _env(("é", ""))),
    Bound("32768 characters of a variable", f"{_C}.env[0].value", _env(("A", "x" * 32768)), _env(("A", "x" * 32769))),
    Bound(
        "an http_get of readyz", f"{_C}.readyz.http_get", nothing, _container(lambda c: c.readyz.ClearField("http_get"))
    ),
    Bound(
        "3600 seconds of readyz",
        f"{_C}.readyz.timeout_seconds",
        _container(lambda c: setattr(c.readyz, "timeout_seconds", 3600)),
        _container(lambda c: setattr(c.readyz, "timeout_seconds", 3601)),
    ),
    Bound(
        "no negative timeout of readyz",
        f"{_C}.readyz.timeout_seconds",
        _container(lambda c: setattr(c.readyz, "timeout_seconds", 0)),
        _container(lambda c: setattr(c.readyz, "timeout_seconds", -1)),
    ),
    Bound(
        "1024 characters of readyz's path", f"{_C}.readyz.http_get.path", _get(path="/" * 1024), _get(path="/" * 1025)
    ),
    Bound("a / before readyz's path", f"{_C}.readyz.http_get.path", _get(path="/x"), _get(path="x")),
    Bound("no ? in readyz's path", f"{_C}.readyz.http_get.path", _get(path="/x"), _get(path="/?")),
    Bound("no # in readyz's path", f"{_C}.readyz.http_get.path", _get(path="/x"), _get(path="/#")),
    Bound("readyz's port up to 65535", f"{_C}.readyz.http_get.port", _get(port=65535), _get(port=65536)),
    Bound(
        "readyz's port above 0",
        f"{_C}.readyz.http_get.port",
        _get(port=1),
        _container(lambda c: c.readyz.http_get.ClearField("port")),
    ),
    Bound(
        "32 mounts",
        f"{_C}.volume_mounts",
        _mounts(*(f"/m{n}" for n in range(32))),
        _mounts(*(f"/m{n}" for n in range(33))),
    ),
    Bound("no mount_path twice", f"{_C}.volume_mounts[1]", _mounts("/a", "/b"), _mounts("/a", "/a")),
    Bound("no mount inside another", f"{_C}.volume_mounts[1].mount_path", _mounts("/a", "/ab"), _mounts("/a", "/a/b")),
    Bound(
        "4096 characters of a mount_path",
        f"{_C}.volume_mounts[0].mount_path",
        _mounts("/" + "x" * 4095),
        _mounts("/" + "x" * 4096),
    ),
    Bound("a clean mount_path", f"{_C}.volume_mounts[0].mount_path", _mounts("/a/b"), _mounts("/a/../b")),
    Bound("an absolute mount_path", f"{_C}.volume_mounts[0].mount_path", _mounts("/a"), _mounts("a")),
    Bound(
        "a mount of a volume that exists",
        f"{_C}.volume_mounts[0].name",
        _mounts("/a"),
        _container(lambda c: c.volume_mounts.add(name="no", mount_path="/a")),
    ),
    Bound(
        "64 added capabilities",
        f"{_C}.security_context.capabilities.add",
        _capabilities(add=_CAPS[:64]),
        _capabilities(add=_CAPS),
    ),
    Bound(
        "64 dropped capabilities",
        f"{_C}.security_context.capabilities.drop",
        _capabilities(drop=_CAPS[:64]),
        _capabilities(drop=_CAPS),
    ),
    Bound(
        "no CAP_ before an added capability",
        f"{_C}.security_context.capabilities.add[0]",
        _capabilities(add=["KILL"]),
        _capabilities(add=["CAP_KILL"]),
    ),
    Bound(
        "no CAP_ before a dropped capability",
        f"{_C}.security_context.capabilities.drop[0]",
        _capabilities(drop=["KILL"]),
        _capabilities(drop=["CAP_KILL"]),
    ),
    Bound(
        "ALL can be dropped, not added",
        f"{_C}.security_context.capabilities.add[0]",
        _capabilities(drop=["ALL"]),
        _capabilities(add=["ALL"]),
    ),
    Bound(
        "sizes of containers in micro-VMs only",
        f"{_C}.resources",
        _both(_microvm, _container(lambda c: c.resources.CopyFrom(limits(cpu="1")))),
        _container(lambda c: c.resources.CopyFrom(limits(cpu="1"))),
    ),
    # volumes
    Bound("32 volumes", "volumes", _volumes(32), _volumes(33)),
    Bound(
        "no volume twice",
        "volumes[1]",
        lambda t: (_mount(t, "/a"), _mount(t, "/b", name="w")),
        lambda t: (_mount(t, "/a"), _mount(t, "/b")),
    ),
    Bound("a volume's name", f"{_V}.name", _mounts("/a"), lambda t: _mount(t, "/a", name="")),
    Bound(
        "63 characters of a volume's name",
        f"{_V}.name",
        lambda t: _mount(t, "/a", name="v" * 63),
        lambda t: _mount(t, "/a", name="v" * 64),
    ),
    Bound("volumes that are mounted", _V, _mounts("/a"), _mounts()),
    Bound("a kind of volume", _V, _volume(durable_dir=pb.DurableDirVolume()), _volume()),
    Bound(
        "one kind of volume",
        _V,
        _volume(image=pb.ImageVolume(reference=IMAGE)),
        _volume(image=pb.ImageVolume(reference=IMAGE), durable_dir=pb.DurableDirVolume()),
    ),
    Bound("1 durable_dir of gVisor", "volumes", _durable(1), _durable(2)),
    Bound("an external volume's capacity", f"{_V}.external_volume_template.capacity", _external(), _external("")),
    Bound(
        "32 characters of a capacity",
        f"{_V}.external_volume_template.capacity",
        _external("0" * 31 + "1"),
        _external("0" * 32 + "1"),
    ),
    Bound("a storage class", f"{_V}.external_volume_template.storage_class_name", _external(), _external(name="")),
    Bound(
        "253 characters of a storage class",
        f"{_V}.external_volume_template.storage_class_name",
        _external(name=_LONG),
        _external(name=_LONG + "x"),
    ),
    Bound(
        "an image volume's reference",
        f"{_V}.image.reference",
        _volume(image=pb.ImageVolume(reference=IMAGE)),
        _volume(image=pb.ImageVolume()),
    ),
    Bound(
        "512 characters of a reference",
        f"{_V}.image.reference",
        _volume(image=pb.ImageVolume(reference=_long_image(512))),
        _volume(image=pb.ImageVolume(reference=_long_image(513))),
    ),
    Bound(
        "8 data sources",
        _S,
        _sources(*(_bundle(f"b{n}") for n in range(8))),
        _sources(*(_bundle(f"b{n}") for n in range(9))),
    ),
    Bound(
        "one actor_metadata",
        _S,
        _items(_item("a")),
        _sources(
            *(pb.SystemInfoDataSource(actor_metadata=pb.ActorMetadataSource(items=[_item(path)])) for path in "ab")
        ),
    ),
    Bound("no file twice", f"{_S}[1]", _items(_item("a"), _item("b", 2)), _items(_item("a"), _item("a", 2))),
    Bound("a kind of data source", f"{_S}[0]", _sources(_bundle("a")), _sources(pb.SystemInfoDataSource())),
    Bound("1 item", f"{_S}[0].actor_metadata.items", _items(_item("a")), _items()),
    Bound(
        "no field twice",
        f"{_S}[0].actor_metadata.items[1]",
        _items(_item("a", 1), _item("b", 2), _item("c", 3)),
        _items(_item("a"), _item("b")),
    ),
    Bound("an item's field", f"{_S}[0].actor_metadata.items[0].field", _items(_item("a", 3)), _items(_item("a", 0))),
    Bound("a known field", f"{_S}[0].actor_metadata.items[0].field", _items(_item("a", 3)), _items(_item("a", 4))),
    Bound(
        "255 characters of a file's path",
        f"{_S}[0].actor_metadata.items[0].path",
        _items(_item("p" * 255)),
        _items(_item("p" * 256)),
    ),
    Bound(
        "16 segments of a file's path",
        f"{_S}[0].actor_metadata.items[0].path",
        _items(_item("/".join("p" * 16))),
        _items(_item("/".join("p" * 17))),
    ),
    Bound(
        "a clean file's path", f"{_S}[0].actor_metadata.items[0].path", _items(_item("a/b")), _items(_item("a/../b"))
    ),
    Bound("a relative file's path", f"{_S}[0].trust_bundle.path", _sources(_bundle("a")), _sources(_bundle("/a"))),
    Bound(
        "a known trust bundle",
        f"{_S}[0].trust_bundle.name",
        _sources(_bundle("a", names=[BUNDLE])),
        _sources(_bundle("a", names=["other"])),
    ),
    Bound(
        "one name of a trust bundle",
        f"{_S}[0].trust_bundle.name",
        _sources(_bundle("a")),
        _sources(_bundle("a", names=[BUNDLE, BUNDLE])),
    ),
    Bound(
        "either name or names of a trust bundle",
        f"{_S}[0].trust_bundle.name",
        _sources(_bundle("a")),
        _sources(_bundle("a", name=BUNDLE, names=[BUNDLE])),
    ),
)


def bound(limit: Bound, api: Api) -> None:
    space = api.atespace()
    within, beyond = (makers.template(api.location, space, name) for name in ("within", "beyond"))
    limit.within(within)
    limit.beyond(beyond)
    with refused("INVALID_ARGUMENT", f"actor_template.{limit.path}"):
        api.user("CreateActorTemplate", actor_template=beyond)
    made = api.user("CreateActorTemplate", actor_template=within)
    assert [container.name for container in made.containers] == [container.name for container in within.containers]


for one in BOUNDS:
    add("CreateActorTemplate", f"{one.title}: the edge is fine, one beyond INVALID_ARGUMENT", partial(bound, one))


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
