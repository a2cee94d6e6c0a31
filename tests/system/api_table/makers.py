"""Sound resources for rows to start from, and the lab: templates with golden snapshots, a worker for everybody."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import NODE, TIMEOUT, Api


def ref(atespace: str, name: str) -> pb.ObjectRef:
    return pb.ObjectRef(atespace=atespace, name=name)


DIGEST = "@sha256:" + "a" * 64
IMAGE = "ate.local/x" + DIGEST
LONGEST = ".".join(["x" * 63] * 3 + ["x" * 61])
"""A DNS subdomain of 253 characters."""
LAB = "lab"
TEMPLATE = ref(LAB, "t")
"""Its golden snapshot is ready before the first row runs."""
OTHER_TEMPLATE = ref(LAB, "u")
"""Takes over the durable data of `TEMPLATE`; never gets a golden snapshot."""
OWN_TEMPLATE = ref(LAB, "own")
"""For the workers that rows make for themselves; its actors must select one of them by its label `only`."""
CONFIG = "gvisor-default"
MICROVM_CONFIG = "microvm-default"
NOWHERE = {"no": "worker"}
"""Labels of no worker: what selects them never starts."""
LABELS = {"some": "label"}
"""What a row changes labels to."""


def meta(atespace: str, name: str) -> pb.ResourceMetadata:
    return pb.ResourceMetadata(atespace=atespace, name=name)


def atespace(name: str) -> pb.Atespace:
    return pb.Atespace(metadata=meta("", name))


def actor(space: str, name: str, **fields: Any) -> pb.Actor:
    return pb.Actor(**{"metadata": meta(space, name), "actor_template": TEMPLATE, **fields})


def template(location: str, space: str, name: str, **fields: Any) -> pb.ActorTemplate:
    """A gVisor template that no worker can start."""
    value = pb.ActorTemplate(
        metadata=meta(space, name),
        containers=[pb.Container(name="c", image=IMAGE, readyz=pb.ContainerReadyz(http_get=pb.HTTPGetAction(port=80)))],
        sandbox_config=pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_GVISOR, config_name=CONFIG),
        snapshots_config=pb.SnapshotsConfig(storage_location=location),
        worker_selector=pb.Selector(match_labels=NOWHERE),
    )
    value.MergeFrom(pb.ActorTemplate(**fields))
    return value


def tag(space: str, name: str, source: pb.ObjectRef, scope: int = pb.TAG_SCOPE_ATESPACE) -> pb.Tag:
    return pb.Tag(metadata=meta(space, name), scope=scope, source_actor=source)  # type: ignore[arg-type]


def worker(name: str, **fields: Any) -> pb.Worker:
    """A gVisor worker of the node, with labels of its own."""
    return pb.Worker(
        **{
            "metadata": meta("", name),
            "worker_namespace": "ns",
            "worker_pool": "pool",
            "worker_pod": f"pod-{name}",
            "worker_pod_uid": str(uuid.uuid4()),
            "node_name": NODE,
            "ips": ["127.0.0.9"],
            "sandbox_class": "gvisor",
            "labels": {"only": name, "lab": "own"},
            "epoch": 1,
            **fields,
        }
    )


def pool(name: str, **fields: Any) -> pb.WorkerPool:
    return pb.WorkerPool(**{"metadata": meta("", name), "spec": pb.WorkerPoolSpec(replicas=1), **fields})


def config(name: str, **fields: Any) -> pb.SandboxRuntimeConfig:
    return pb.SandboxRuntimeConfig(
        metadata=meta("", name), spec=pb.SandboxRuntimeConfigSpec(pause_image=IMAGE, **fields)
    )


def limits(**amounts: str) -> pb.Resources:
    return pb.Resources(limits=[pb.Limits(name=name, quantity=text) for name, text in amounts.items()])


def build_lab(api: Api) -> None:
    """Makes the lab; returns when the golden snapshot of its template is there."""
    user = api.user
    user("CreateAtespace", atespace=atespace(LAB))
    user("CreateSandboxConfig", sandbox_config=config(CONFIG))
    user("CreateSandboxConfig", sandbox_config=config(MICROVM_CONFIG, sandbox_class=pb.SANDBOX_CLASS_MICROVM))
    shared = user("CreateWorker", worker=worker("shared", labels={"lab": "shared"}))
    first = user("CreateWorker", worker=worker("first"))
    for made in (shared, first):
        api.atelet("SetWorkerCapacity", worker=ref_of(made), capacity=pb.WorkerResources(actors=100_000))
    for of, labels in ((TEMPLATE, {"lab": "shared"}), (OWN_TEMPLATE, {"lab": "own"}), (OTHER_TEMPLATE, NOWHERE)):
        blueprint = template(api.location, LAB, of.name)
        blueprint.worker_selector.CopyFrom(pb.Selector(match_labels=labels))
        user("CreateActorTemplate", actor_template=blueprint)
    for of in (TEMPLATE, OWN_TEMPLATE):
        eventually(lambda of=of: _golden(api, of))
    user("DeleteWorker", worker=ref_of(first))


def _golden(api: Api, template: pb.ObjectRef) -> bool:
    status = api.user("GetActorTemplate", actor_template=template).status.golden_snapshot_status
    assert not status.error_message, status.error_message
    return bool(status.HasField("golden_tag"))


def eventually(condition: Callable[[], bool]) -> None:
    """Returns when `condition()` holds, for what the role does by itself."""
    until = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def add_actor(api: Api, **fields: Any) -> pb.Actor:
    """A new SUSPENDED actor in an atespace of its own, unless `metadata` says otherwise."""
    return api.user("CreateActor", actor=actor(fields.pop("space", "") or api.atespace(), api.fresh("actor"), **fields))


def ref_of(resource: Any) -> pb.ObjectRef:
    return ref(resource.metadata.atespace, resource.metadata.name)


def add_running(api: Api, **fields: Any) -> pb.Actor:
    return api.user("ResumeActor", actor=ref_of(add_actor(api, **fields))).actor


def own_worker(api: Api, *, actors: int = 1, **fields: Any) -> pb.Worker:
    """A worker for this row alone."""
    made = api.user("CreateWorker", worker=worker(api.fresh("own"), **fields))
    capacity = pb.WorkerResources(actors=actors)
    return api.atelet("SetWorkerCapacity", worker=ref_of(made), capacity=capacity).worker


def on(worker: pb.Worker | str) -> dict[str, Any]:
    """Fields of an actor that can run on this worker only."""
    name = worker if isinstance(worker, str) else worker.metadata.name
    return {"actor_template": OWN_TEMPLATE, "worker_selector": pb.Selector(match_labels={"only": name})}


def add_suspended(api: Api, **fields: Any) -> pb.Actor:
    """A SUSPENDED actor with a snapshot of its own."""
    return api.user("SuspendActor", actor=ref_of(add_running(api, **fields))).actor


def read_actor(api: Api, value: pb.Actor) -> pb.Actor:
    return api.user("GetActor", actor=ref_of(value))


def add_tag(api: Api, scope: int = pb.TAG_SCOPE_ATESPACE) -> pb.Tag:
    """A READY tag, and its source beside it."""
    source = add_suspended(api)
    made = tag(source.metadata.atespace, api.fresh("tag"), ref_of(source), scope)
    return api.user("CreateTag", tag=made)
