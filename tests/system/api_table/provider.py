"""Worker pools and sandbox runtimes: the bounds of their fields, and who may say how a pool fares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.makers import DIGEST, ref_of
from tests.system.api_table.rows import add, row

GVISOR, MICROVM = pb.SANDBOX_CLASS_GVISOR, pb.SANDBOX_CLASS_MICROVM
_FILE = pb.AssetFile(url="file:///x", sha256="a" * 64)
_CLOUD_HYPERVISOR = ("cloud-hypervisor", "virtiofsd", "kata-kernel", "kata-image", "kata-config", "kata-shim")


@dataclass(frozen=True)
class Bound:
    """Changes of a sound spec that reach a bound and go beyond it, and the path below the spec it is told with."""

    title: str
    path: str
    within: Callable[[Any], Any]
    beyond: Callable[[Any], Any]


def _template(**fields: Any) -> Callable[[pb.WorkerPoolSpec], None]:
    return lambda spec: spec.template.MergeFrom(pb.WorkerPoolPodTemplate(**fields))


def _toleration(**fields: Any) -> Callable[[pb.WorkerPoolSpec], None]:
    return _template(tolerations=[pb.Toleration(**{"key": "k", **fields})])


def _resources(**fields: dict[str, str]) -> Callable[[pb.WorkerPoolSpec], None]:
    return _template(resources=pb.PodResources(**fields))


def _set(**fields: Any) -> Callable[[Any], None]:
    return lambda spec: [setattr(spec, name, value) for name, value in fields.items()] and None


def _many(count: int) -> dict[str, str]:
    return {f"k{number}": "v" for number in range(count)}


POOL_BOUNDS = (
    Bound("no negative replicas", "replicas", _set(replicas=0), _set(replicas=-1)),
    Bound("a known sandbox_class", "sandbox_class", _set(sandbox_class=2), _set(sandbox_class=3)),
    Bound(
        "63 characters of a namespace",
        "deployment_namespace",
        _set(deployment_namespace="n" * 63),
        _set(deployment_namespace="n" * 64),
    ),
    Bound("64 labels", "template.labels", _template(labels=_many(64)), _template(labels=_many(65))),
    Bound("64 annotations", "template.annotations", _template(annotations=_many(64)), _template(annotations=_many(65))),
    Bound(
        "no labels of ate.dev",
        "template.labels[ate.dev/x]",
        _template(labels={"notate.dev/x": "v"}),
        _template(labels={"ate.dev/x": "v"}),
    ),
    Bound(
        "no annotations of ate.dev's subdomains",
        "template.annotations[a.ate.dev/x]",
        _template(annotations={"ate.dev.org/x": "v"}),
        _template(annotations={"a.ate.dev/x": "v"}),
    ),
    Bound(
        "16 tolerations",
        "template.tolerations",
        _template(tolerations=[pb.Toleration(key="k")] * 16),
        _template(tolerations=[pb.Toleration(key="k")] * 17),
    ),
    Bound(
        "a toleration's operator",
        "template.tolerations[0].operator",
        _toleration(operator="Exists"),
        _toleration(operator="exists"),
    ),
    Bound(
        "a toleration's effect",
        "template.tolerations[0].effect",
        _toleration(effect="PreferNoSchedule"),
        _toleration(effect="Never"),
    ),
    Bound(
        "a toleration of every taint",
        "template.tolerations[0].key",
        _toleration(key="", operator="Exists"),
        _toleration(key=""),
    ),
    Bound(
        "no value of a toleration that Exists",
        "template.tolerations[0].value",
        _toleration(value="v"),
        _toleration(value="v", operator="Exists"),
    ),
    Bound(
        "toleration_seconds with NoExecute",
        "template.tolerations[0].toleration_seconds",
        _toleration(effect="NoExecute", toleration_seconds=5),
        _toleration(effect="NoSchedule", toleration_seconds=5),
    ),
    Bound(
        "a limit's quantity",
        "template.resources.limits[cpu]",
        _resources(limits={"cpu": "2"}),
        _resources(limits={"cpu": "x"}),
    ),
    Bound(
        "no negative limit",
        "template.resources.limits[cpu]",
        _resources(limits={"cpu": "0"}),
        _resources(limits={"cpu": "-1"}),
    ),
    Bound(
        "requests up to the limit",
        "template.resources.requests[cpu]",
        _resources(limits={"cpu": "2"}, requests={"cpu": "2000m"}),
        _resources(limits={"cpu": "2"}, requests={"cpu": "2001m"}),
    ),
)


def _assets(*names: str, arch: str = "amd64", file: pb.AssetFile = _FILE, of: int = GVISOR) -> Callable[[Any], None]:
    def build(spec: pb.SandboxRuntimeConfigSpec) -> None:
        spec.sandbox_class = of  # type: ignore[assignment]
        spec.assets[arch].SetInParent()
        for name in names:
            spec.assets[arch].files[name].CopyFrom(file)

    return build


CONFIG_BOUNDS = (
    Bound("a pause_image", "pause_image", _set(), _set(pause_image="")),
    Bound("a pause_image with its digest", "pause_image", _set(), _set(pause_image="pause:latest")),
    Bound("64 digits of a pause_image's digest", "pause_image", _set(), _set(pause_image="p" + DIGEST[:-1])),
    Bound(
        "512 characters of a pause_image",
        "pause_image",
        _set(pause_image="p" * (512 - len(DIGEST)) + DIGEST),
        _set(pause_image="p" * (513 - len(DIGEST)) + DIGEST),
    ),
    Bound("a known sandbox_class", "sandbox_class", _set(sandbox_class=2), _set(sandbox_class=3)),
    Bound("a known architecture", "assets[riscv]", _assets("runsc", arch="arm64"), _assets("runsc", arch="riscv")),
    Bound("runsc or gvisor", "assets[amd64]", _assets("gvisor", "x"), _assets("x")),
    Bound("the node's own runsc", "assets[amd64]", _assets(), _assets("x")),
    Bound(
        "a kernel for QEMU", "assets[amd64]", _assets("kernel", of=MICROVM), _assets("qemu", "initramfs", of=MICROVM)
    ),
    Bound(
        "all files of Cloud Hypervisor",
        "assets[amd64]",
        _assets(*_CLOUD_HYPERVISOR, of=MICROVM),
        _assets(*_CLOUD_HYPERVISOR[:-1], of=MICROVM),
    ),
    Bound(
        "a file's URL",
        "assets[amd64].runsc.url",
        _assets("runsc"),
        _assets("runsc", file=pb.AssetFile(sha256="a" * 64)),
    ),
    Bound(
        "64 digits of a digest",
        "assets[amd64].runsc.sha256",
        _assets("runsc"),
        _assets("runsc", file=pb.AssetFile(url="file:///x", sha256="a" * 63)),
    ),
    Bound(
        "lower-case digits of a digest",
        "assets[amd64].runsc.sha256",
        _assets("runsc"),
        _assets("runsc", file=pb.AssetFile(url="file:///x", sha256="A" * 64)),
    ),
)


def bound(kind: str, field: str, limit: Bound, api: Api) -> None:
    make = makers.pool if kind == "WorkerPool" else makers.config
    sound, beyond = make(api.fresh("within")), make(api.fresh("beyond"))
    limit.within(sound.spec)
    limit.beyond(beyond.spec)
    with refused("INVALID_ARGUMENT", f"{field}.spec.{limit.path}:"):
        api.user(f"Create{kind}", **{field: beyond})
    made = api.user(f"Create{kind}", **{field: sound})
    worse = type(made)()
    worse.CopyFrom(made)
    worse.spec.CopyFrom(beyond.spec)
    with refused("INVALID_ARGUMENT", f"{field}.spec.{limit.path}:"):
        api.user(f"Update{kind}", **{field: worse})
    assert api.user(f"Update{kind}", **{field: made}).spec == made.spec


for kind, field, bounds in (
    ("WorkerPool", "worker_pool", POOL_BOUNDS),
    ("SandboxConfig", "sandbox_config", CONFIG_BOUNDS),
):
    for one in bounds:
        title = f"{one.title}: the edge is fine, one beyond INVALID_ARGUMENT, on update too"
        add(f"Create{kind}", title, partial(bound, kind, field, one))


def no_spec(kind: str, field: str, api: Api) -> None:
    make = makers.pool if kind == "WorkerPool" else makers.config
    value = make(api.fresh("bare"))
    value.ClearField("spec")
    with refused("INVALID_ARGUMENT", f"{field}.spec: is required"):
        api.user(f"Create{kind}", **{field: value})


def default_class(kind: str, field: str, api: Api) -> None:
    make = makers.pool if kind == "WorkerPool" else makers.config
    made = api.user(f"Create{kind}", **{field: make(api.fresh("plain"))})
    assert made.spec.sandbox_class == GVISOR
    made.spec.ClearField("sandbox_class")
    assert api.user(f"Update{kind}", **{field: made}).spec.sandbox_class == GVISOR


for kind, field in (("WorkerPool", "worker_pool"), ("SandboxConfig", "sandbox_config")):
    add(f"Create{kind}", "a missing spec is INVALID_ARGUMENT", partial(no_spec, kind, field))
    add(f"Create{kind}", "the sandbox_class is GVISOR unless said", partial(default_class, kind, field))


@row("CreateWorkerPool", "64 labels in Kubernetes syntax: the edge is fine, one beyond INVALID_ARGUMENT")
def _labels(api: Api) -> None:
    for labels, path in ((_many(65), "worker_pool.labels"), ({"k": "v v"}, "worker_pool.labels[k]")):
        with refused("INVALID_ARGUMENT", path):
            api.user("CreateWorkerPool", worker_pool=makers.pool(api.fresh("pool"), labels=labels))
    assert len(api.user("CreateWorkerPool", worker_pool=makers.pool(api.fresh("pool"), labels=_many(64))).labels) == 64


@row("UpdateWorkerPool", "the status is the controller's to report, and nobody else's")
def _status(api: Api) -> None:
    pool = api.user("CreateWorkerPool", worker_pool=makers.pool(api.fresh("pool")))
    pool.status.ready_replicas = 3
    after = api.user("UpdateWorkerPool", worker_pool=pool)
    assert after.status.ready_replicas == 0
    pool.metadata.version = after.metadata.version
    assert api.controller("UpdateWorkerPool", worker_pool=pool).status.ready_replicas == 3
    assert api.user("GetWorkerPool", worker_pool=ref_of(pool)).status.ready_replicas == 3


@row("DeleteSandboxConfig", "one that a template names is FAILED_PRECONDITION")
def _used(api: Api) -> None:
    config = api.user("CreateSandboxConfig", sandbox_config=makers.config(api.fresh("config")))
    template = makers.template(api.location, api.atespace(), "t")
    template.sandbox_config.config_name = config.metadata.name
    template = api.user("CreateActorTemplate", actor_template=template)
    with refused("FAILED_PRECONDITION", config.metadata.name):
        api.user("DeleteSandboxConfig", sandbox_config=ref_of(config))
    api.user("DeleteActorTemplate", actor_template=ref_of(template))
    api.user("DeleteSandboxConfig", sandbox_config=ref_of(config))
