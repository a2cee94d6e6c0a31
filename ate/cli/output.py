"""How resources are shown: kubectl-like tables, or JSON, YAML and names for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from ate.cli import manifests
from ate.proto import ateapi_pb2 as pb

FORMATS = ("table", "wide", "json", "yaml", "name")
NONE = "<none>"
Column = tuple[str, Callable[[Any], str]]


def age(message: Any) -> str:
    """Time since creation, in one or two units."""
    if not message.metadata.HasField("create_time"):
        return NONE
    seconds = int(time.time() - message.metadata.create_time.ToNanoseconds() / 1e9)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{max(seconds, 0)}s"


def _state(actor: pb.Actor) -> str:
    return pb.ActorState.Name(actor.status.state).removeprefix("ACTOR_STATE_")


def _event_state(state: pb.ActorState) -> str:
    return pb.ActorState.Name(state).removeprefix("ACTOR_STATE_") if state else NONE


def _limits(resources: pb.WorkerResources, name: str) -> str:
    return next((limit.quantity for limit in resources.resources.limits if limit.name == name), NONE)


def _template_state(template: pb.ActorTemplate) -> str:
    golden = template.status.golden_snapshot_status
    return f"{golden.golden_tag.atespace}/{golden.golden_tag.name}" if golden.HasField("golden_tag") else NONE


def _tag_state(tag: pb.Tag) -> str:
    return "Ready" if tag.status.state == pb.TAG_STATE_READY else "Pending"


def _scope(tag: pb.Tag) -> str:
    return pb.TagScope.Name(tag.scope).removeprefix("TAG_SCOPE_")


def _members(role: str, policy: pb.AccessPolicy) -> str:
    found = [member for binding in policy.bindings if binding.role == role for member in binding.members]
    return ",".join(member.removeprefix("user:") for member in found) or NONE


COLUMNS: dict[str, tuple[Sequence[Column], Sequence[Column]]] = {
    # kind: (columns of a table, further ones of -o wide); names and order of the reference, section 8
    "Actor": (
        (
            ("ATESPACE", lambda a: a.metadata.atespace),
            ("NAME", lambda a: a.metadata.name),
            ("TEMPLATE", lambda a: f"{a.actor_template.atespace}/{a.actor_template.name}"),
            ("STATE", _state),
            ("WORKER POD", lambda a: a.status.worker_assignment.worker_pod or NONE),
            ("WORKER IPS", lambda a: ",".join(a.status.worker_assignment.worker_pod_ips) or NONE),
            ("VERSION", lambda a: str(a.metadata.version)),
            ("AGE", age),
        ),
        (
            ("SNAPSHOT", lambda a: a.status.external_snapshot.snapshot_uri or NONE),
            ("CRASH", lambda a: a.status.crash.message or NONE),
            ("UID", lambda a: a.metadata.uid),
        ),
    ),
    "Worker": (
        (
            ("NAME", lambda w: w.metadata.name),
            ("POOL", lambda w: w.worker_pool or NONE),
            ("STATE", lambda w: pb.WorkerState.Name(w.status.state).removeprefix("WORKER_STATE_")),
            ("ACTORS", lambda w: f"{w.status.allocated.actors}/{max(w.status.capacity.actors, 1)}"),
            ("CPU", lambda w: _limits(w.status.capacity, "cpu")),
            ("MEMORY", lambda w: _limits(w.status.capacity, "memory")),
            ("POD", lambda w: w.worker_pod or NONE),
            ("AGE", age),
        ),
        (
            ("CLASS", lambda w: w.sandbox_class),
            ("NODE", lambda w: w.node_name),
            ("IPS", lambda w: ",".join(w.ips)),
            ("EPOCH", lambda w: str(w.epoch)),
        ),
    ),
    "Atespace": ((("NAME", lambda a: a.metadata.name), ("AGE", age)), (("UID", lambda a: a.metadata.uid),)),
    "ActorTemplate": (
        (
            ("ATESPACE", lambda t: t.metadata.atespace),
            ("NAME", lambda t: t.metadata.name),
            ("SANDBOX CLASS", lambda t: pb.SandboxClass.Name(t.sandbox_config.sandbox_class)[14:].lower()),
            ("GOLDEN TAG", _template_state),
            ("ERROR", lambda t: t.status.golden_snapshot_status.error_message or NONE),
            ("AGE", age),
        ),
        (("LOCATION", lambda t: t.snapshots_config.storage_location), ("UID", lambda t: t.metadata.uid)),
    ),
    "AccessPolicy": (
        (
            ("ATESPACE", lambda p: p.metadata.atespace or "(all)"),
            *((role.upper() + "S", partial(_members, role)) for role in ("owner", "editor", "viewer")),
            ("AGE", age),
        ),
        (("UID", lambda p: p.metadata.uid),),
    ),
    "Tag": (
        (
            ("ATESPACE", lambda t: t.metadata.atespace),
            ("NAME", lambda t: t.metadata.name),
            ("SCOPE", _scope),
            ("STATE", _tag_state),
            ("SNAPSHOT", lambda t: t.status.snapshot.snapshot_uri or NONE),
            ("CONTENT SCOPE", lambda t: pb.SnapshotContentScope.Name(t.status.snapshot.content_scope)[23:]),
            ("AGE", age),
        ),
        (("UID", lambda t: t.metadata.uid),),
    ),
    "WorkerPool": (
        (
            ("NAME", lambda p: p.metadata.name),
            ("CLASS", lambda p: pb.SandboxClass.Name(p.spec.sandbox_class)[14:].lower()),
            ("DESIRED", lambda p: str(p.spec.replicas)),
            ("CURRENT", lambda p: str(p.status.replicas)),
            ("READY", lambda p: str(p.status.ready_replicas)),
            ("AGE", age),
        ),
        (("LABELS", lambda p: ",".join(f"{k}={v}" for k, v in sorted(p.labels.items())) or NONE),),
    ),
    "ActorEvent": (
        (
            ("TIME", lambda e: e.time.ToDatetime().isoformat(timespec="milliseconds") + "Z"),
            ("ACTOR", lambda e: f"{e.atespace}/{e.actor_name}"),
            ("FROM", lambda e: _event_state(e.from_state)),
            ("TO", lambda e: _event_state(e.to_state)),
            ("OPERATION", lambda e: e.operation or NONE),
            ("MESSAGE", lambda e: e.message or NONE),
        ),
        (
            ("WORKER", lambda e: e.worker or NONE),
            ("NODE", lambda e: e.node or NONE),
            ("TRACE", lambda e: e.trace_id or NONE),
        ),
    ),
    "SandboxRuntimeConfig": (
        (
            ("NAME", lambda c: c.metadata.name),
            ("CLASS", lambda c: pb.SandboxClass.Name(c.spec.sandbox_class)[14:].lower()),
            ("PAUSE IMAGE", lambda c: c.spec.pause_image),
            ("AGE", age),
        ),
        (("ASSETS", lambda c: ",".join(sorted(c.spec.assets)) or "node's own"),),
    ),
}
WORDS = {"SandboxRuntimeConfig": "sandboxconfig", "ActorTemplate": "actor-template", "WorkerPool": "workerpool"}


def word(message: Message) -> str:
    """The resource's type as it is typed after `ate get`."""
    kind = type(message).__name__
    return WORDS.get(kind, kind.lower())


def name(message: Any) -> str:
    metadata = message.metadata
    full = f"{metadata.atespace}/{metadata.name}" if metadata.atespace else metadata.name
    return f"{word(message)}/{full}"


def render(items: Sequence[Any], format_: str, *, kind: str, single: bool = False) -> str:
    """The text for `items`; `single` prints one object instead of a list of one."""
    if format_ == "name":
        return "\n".join(name(item) for item in items)
    if format_ in ("json", "yaml"):
        documents = [manifests.to_document(item) for item in items]
        body: Any = documents[0] if single and len(documents) == 1 else {"kind": "List", "items": documents}
        if format_ == "json":
            return json.dumps(body, indent=2)
        import yaml

        return str(yaml.safe_dump(body, sort_keys=False)).rstrip()
    usual, further = COLUMNS[kind]
    columns = [*usual, *further] if format_ == "wide" else list(usual)
    return table([title for title, _ in columns], ([show(item) for _, show in columns] for item in items))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns three blanks apart, as kubectl prints them."""
    lines = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(titles))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
