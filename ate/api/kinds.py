"""The kinds of rows the api role keeps, and how a resource's name becomes a key."""

from __future__ import annotations

from typing import Final

from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto import events_pb2, node_pb2
from ate.store import Key, Kind

IN_TRANSITION: Final = frozenset(
    {
        pb.ACTOR_STATE_RESUMING,
        pb.ACTOR_STATE_SUSPENDING,
        pb.ACTOR_STATE_PAUSING,
        pb.ACTOR_STATE_REVERTING,
        pb.ACTOR_STATE_DELETING,
    }
)
TRANSITION: Final = "in-transition"
"""Owner under which actors with unfinished workflows are found after a restart, however many others there are."""


def awake_of(template: pb.ObjectRef | pb.ResourceMetadata) -> str:
    """Owner under which the running and paused actors of a template are found: without it they could not be saved."""
    return f"awake:{template.atespace}/{template.name}"


def _owner(actor: pb.Actor) -> str:
    state = actor.status.state
    if state in IN_TRANSITION:
        return TRANSITION
    return awake_of(actor.actor_template) if state in (pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_PAUSED) else ""


SLEEPING: Final = frozenset({pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_PAUSED})


def _due(actor: pb.Actor) -> float | None:
    """When the timers look at the actor: to wake or delete it, or to forget a wake time that found it awake."""
    status, times = actor.status.state, []
    if actor.HasField("expire_time") and status != pb.ACTOR_STATE_DELETING:
        times.append(actor.expire_time.ToNanoseconds() / 1e9)
    if actor.HasField("wake_time") and (status in SLEEPING or status == pb.ACTOR_STATE_RUNNING):
        times.append(actor.wake_time.ToNanoseconds() / 1e9)
    return min(times, default=None)


ATESPACES: Final = Kind("atespace", pb.Atespace)
TEMPLATES: Final = Kind("actor-template", pb.ActorTemplate, watched=True)
ACTORS: Final = Kind(
    "actor",
    pb.Actor,
    watched=True,
    owner=_owner,
    due=_due,
)
ACCESS: Final = Kind("access-policy", pb.AccessPolicy)
"""One an atespace, under its name; the global one has none."""
EGRESS: Final = Kind("egress-policy", pb.EgressPolicy)
"""Under the key of its actor, and deleted with it."""
ACTOR_EVENTS: Final = Kind("actor-events", events_pb2.ActorHistory, has_metadata=False)
"""Under the key of its actor, and deleted with it."""
TAGS: Final = Kind("tag", pb.Tag)
WORKERS: Final = Kind("worker", pb.Worker, watched=True)
ASSIGNMENTS: Final = Kind("assignment", pb.ActorAssignment, owner=lambda assignment: assignment.metadata.name)
"""One actor's claim on a worker. Scope: the worker's name; name and owner: the actor's uid."""
POOLS: Final = Kind("worker-pool", pb.WorkerPool, watched=True)
CONFIGS: Final = Kind("sandbox-config", pb.SandboxRuntimeConfig)
NODES: Final = Kind("node", node_pb2.Node, has_metadata=False)
CPU_FEATURES: Final = Kind("cpu-features", node_pb2.CpuFeatures, has_metadata=False)
"""Under their id: what snapshots say of the CPU they were taken on, and nodes of theirs."""


def key_of(ref: pb.ObjectRef | pb.ResourceMetadata | Ref) -> Key:
    """Key of the resource a reference (or a resource's own metadata) names."""
    return Key(ref.atespace, ref.name)
