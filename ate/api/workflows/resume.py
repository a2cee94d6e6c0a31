"""ResumeActor: claim a worker, start the actor there from its newest state, mark it RUNNING.

SUSPENDED or PAUSED -> RESUMING -> RUNNING. The sources in order: local snapshot of a pause (its nodes only), external
snapshot, boot from the images. Entered again while RESUMING it goes on with the claim it holds; the node knows the
claim's id and does not start a second sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio

from ate.api import scheduling
from ate.api.context import Context
from ate.api.kinds import ASSIGNMENTS, TAGS, WORKERS, key_of
from ate.api.workflows import claims, history, measures, node_requests, revert, steps
from ate.errors import (
    ACTOR_CRASHED,
    NOT_READY,
    NOT_STARTED,
    Aborted,
    AteError,
    FailedPrecondition,
    ResourceExhausted,
    reason_of,
    with_reason,
)
from ate.log import Logger, bind
from ate.names import GOLDEN_ATESPACE, Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2 as node
from ate.store import Key, Lease, Row, Tx
from ate.telemetry import trace

log = Logger("ate.api")

BIND_ATTEMPTS = 12
"""Choices lost to other resumes before giving up; each try sees a fresher cache (reference, section 3)."""
NODE_TIMEOUT = 300.0
"""Seconds for one Run or Restore: a cold image pull included."""
_FROM = (pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_PAUSED, pb.ACTOR_STATE_RESUMING)


async def resume(ctx: Context, ref: Ref, *, boot: bool = False, revert_crashed: bool = False) -> tuple[pb.Actor, bool]:
    """The running actor, and whether this call (or the one it joined) started it.

    `boot` skips the golden snapshot of an actor that has none of its own. `revert_crashed`: a routed request, for
    which the template may ask that a crashed actor first goes back to its last good snapshot.
    """
    actor = await steps.load(ctx, ref)
    if actor.value.status.state == pb.ACTOR_STATE_RUNNING:
        return actor.value, False
    if actor.value.status.state == pb.ACTOR_STATE_CRASHED and revert_crashed:
        template = await steps.template_of(ctx, actor)
        if template.value.lifecycle.on_crash == pb.ON_CRASH_REVERT:
            await revert.revert(ctx, ref)

    async def work(lease: Lease) -> tuple[pb.Actor, bool]:
        return await _resume(ctx, ref, lease, boot)

    return await ctx.operations.run(steps.lease_key(ref), "resume", work)


async def _resume(ctx: Context, ref: Ref, lease: Lease, boot: bool) -> tuple[pb.Actor, bool]:
    began = trio.current_time()
    actor = await steps.load(ctx, ref)
    state = actor.value.status.state
    if state == pb.ACTOR_STATE_RUNNING:
        return actor.value, False
    if state not in _FROM:
        refused = FailedPrecondition(_why_not(ref, actor.value))
        raise with_reason(refused, ACTOR_CRASHED) if state == pb.ACTOR_STATE_CRASHED else refused
    template = await steps.template_of(ctx, actor)
    config = await steps.config_of(ctx, template)
    missing = [v.volume_name for v in actor.value.status.actor_volumes if not v.storage_volume_id]
    if missing:
        raise FailedPrecondition(
            f"external volume {missing[0]!r} of actor {ref} is not provisioned: this install has no CSI driver. Use a "
            "durable_dir volume, which is saved with the actor, or take the volume out of the template"
        )
    if state != pb.ACTOR_STATE_RESUMING:
        with trace.span("step.AssignWorker"), measures.assignment():
            actor = await _assign(ctx, actor, template, lease, boot)
    elif not await ctx.store.transact(lambda tx: claims.hosts(tx, actor)):
        # It was never told to have run there, so nothing is lost: it sleeps on, and the next try takes another worker.
        # But the start may have reached the worker's new process.
        if await ctx.store.get(WORKERS, Key("", actor.value.status.worker_assignment.worker.name)) is not None:
            await node_requests.terminate(ctx.nodes, actor, lease)
        await steps.write_and_release(ctx, actor, lease, steps.back_to_sleep)
        raise Aborted(f"the worker of actor {ref} went away during the resume: retry")
    assigned = actor.value.status.worker_assignment
    claim = await ctx.store.get(ASSIGNMENTS, Key(assigned.worker.name, actor.uid))
    if claim is None:
        raise Aborted(f"actor {ref} lost its place on worker {assigned.worker.name}: retry")
    claimed = trio.current_time()
    try:
        with trace.span("step.StartOnNode"), bind(worker=assigned.worker.name, operation_id=claim.uid):
            await _start(ctx, actor, template, config, node_requests.metadata(claim.uid, lease), boot)
    except AteError as error:
        ambiguous, reason = isinstance(error, steps.AMBIGUOUS), reason_of(error)
        if ambiguous and reason not in (NOT_STARTED, NOT_READY):
            raise
        ctx.affinity.failed(actor.uid, assigned.worker.name)
        if ambiguous and reason == NOT_STARTED:
            await steps.write_and_release(ctx, actor, lease, steps.back_to_sleep)
            raise
        await node_requests.terminate(ctx.nodes, actor, lease)
        await steps.crash(ctx, actor, lease, f"resume failed: {error.message}")
        raise

    started = trio.current_time()

    def running(value: pb.Actor) -> None:
        value.status.state = pb.ACTOR_STATE_RUNNING
        # A time still to come stays: the actor may be asleep again by then.
        if value.HasField("wake_time") and value.wake_time.ToNanoseconds() <= ctx.wall_clock() * 1e9:
            value.ClearField("wake_time")

    def still_there(tx: Tx) -> None:
        if not claims.hosts(tx, actor):
            raise Aborted(f"the worker of actor {ref} went away during the resume: retry")

    try:
        with trace.span("step.FinalizeRunning"):
            actor = await steps.write(ctx, actor, lease, running, require=still_there)
    except Aborted:
        # Its worker was lost meanwhile and came back: what was just started there has no claim any more.
        await node_requests.terminate(ctx.nodes, actor, lease)
        raise
    ctx.affinity.ran(actor.uid, template.uid, assigned.node_name)
    steps.log_state(
        actor,
        claim_ms=(claimed - began) * 1e3,
        node_ms=(started - claimed) * 1e3,
        finalize_ms=(trio.current_time() - started) * 1e3,
    )
    return actor.value, True


def _why_not(ref: Ref, actor: pb.Actor) -> str:
    state = pb.ActorState.Name(actor.status.state).removeprefix("ACTOR_STATE_")
    if actor.status.state == pb.ACTOR_STATE_CRASHED:
        return (
            f"actor {ref} is CRASHED ({actor.status.crash.message}): revert it to its last good snapshot "
            f"(`ate revert actor {ref.name} -a {ref.atespace}`) or delete it"
        )
    return f"actor {ref} is {state}: it can be resumed from SUSPENDED or PAUSED only"


async def _assign(
    ctx: Context, actor: Row[pb.Actor], template: Row[pb.ActorTemplate], lease: Lease, boot: bool
) -> Row[pb.Actor]:
    needs = scheduling.needs_of(template.value, actor.value)
    needs = replace(
        needs,
        cpu_features=await _cpu_needed(ctx, actor, template, boot),
        excluded_workers=ctx.affinity.excluded(actor.uid),
        preferred_nodes=ctx.affinity.preferred(actor.uid, template.uid),
    )
    if actor.value.status.HasField("local_snapshot"):
        pinned = frozenset(actor.value.status.local_snapshot.node_vms_with_local_snapshots)
        needs = replace(needs, pinned_nodes=pinned)
    await ctx.workers.ready.wait()
    resources = template.value.resources
    noted = history.note(ctx.wall_clock(), "resume")
    for attempt in range(BIND_ATTEMPTS):
        chosen = ctx.workers.candidates.choose(needs)
        if chosen is None:
            break
        name = chosen.metadata.name
        try:
            with ctx.workers.candidates.claiming(chosen, needs):
                bound, worker, _ = await ctx.store.transact(
                    lambda tx, name=name: claims.bind(tx, actor, name, needs, resources, lease, noted)  # type: ignore[misc]
                )
                ctx.workers.apply(worker)
        except claims.WorkerTaken as taken:
            actor = await steps.load(ctx, Ref(actor.key.scope, actor.key.name), uid=actor.uid)
            if taken.row is None:
                ctx.workers.forget(name)
            else:
                ctx.workers.apply(taken.row)
            await trio.sleep(min(0.015 * 2**attempt, 0.25) if attempt else 0)
            continue
        measures.actor(bound.value)
        measures.eligible(partial(ctx.workers.candidates.fitting, needs), needs)
        return bound
    measures.eligible(partial(ctx.workers.candidates.fitting, needs), needs)
    raise ResourceExhausted(_no_worker(ctx, actor, needs))


async def _cpu_needed(ctx: Context, actor: Row[pb.Actor], template: Row[pb.ActorTemplate], boot: bool) -> str:
    """Id of the CPU features the memory to be restored may rely on; a boot and durable data run anywhere."""
    source = source_of(actor.value, template.uid, boot)
    if source.kind == "external" and source.scope == pb.SNAPSHOT_CONTENT_SCOPE_FULL:
        return actor.value.status.external_snapshot.cpu_features_id
    if source.kind and source.scope == pb.SNAPSHOT_CONTENT_SCOPE_DATA:
        golden = await _golden(ctx, template)
        return golden.cpu_features_id if golden is not None else ""
    return ""


def _no_worker(ctx: Context, actor: Row[pb.Actor], needs: scheduling.Needs) -> str:
    fitting = ctx.workers.candidates.fitting(needs)
    if fitting:
        return f"no free workers available: all {fitting} workers that fit actor {actor.key} are taken"
    if ctx.workers.candidates.fitting(replace(needs, cpu_features="")):
        why = f"its snapshot needs CPU features that no node of theirs has ({ctx.cpus.missing(needs.cpu_features)})"
        return (
            f"no free workers available for actor {actor.key}: {why}: add workers on such a node, or revert the actor"
        )
    if not ctx.workers.number:
        return "no free workers available: there are none yet: apply a WorkerPool, or see in its log why none starts"
    pinned = f" on node {', '.join(sorted(needs.pinned_nodes))}" if needs.pinned_nodes is not None else ""
    return (
        f"no free workers available: none of {ctx.workers.number} workers has class {needs.sandbox_class} and the "
        f"labels that actor {actor.key} asks for{pinned}: apply a WorkerPool that matches"
    )


@dataclass(frozen=True)
class Source:
    """What the actor starts from: an empty `kind` is a boot from the images."""

    kind: str
    name: str = ""
    scope: int = 0


def source_of(actor: pb.Actor, template_uid: str, boot: bool) -> Source:
    """Local snapshot, else external one (durable data only after a change of template), else the images."""
    if actor.status.HasField("local_snapshot"):
        local = actor.status.local_snapshot
        return Source("local", local.snapshot_name, local.content_scope)
    if actor.status.HasField("external_snapshot"):
        external = actor.status.external_snapshot
        own = f"/actors/{actor.metadata.uid}/" in external.snapshot_uri
        if boot and not own:
            return Source("")
        scope = external.content_scope
        if external.actor_template_uid != template_uid:
            scope = pb.SNAPSHOT_CONTENT_SCOPE_DATA
        return Source("external", external.snapshot_uri, scope)
    return Source("")


def _kind_of(source: Source, actor_uid: str) -> str:
    """As it is counted: a snapshot that is not the actor's own is a golden one, or another tag's."""
    if source.kind != "external":
        return source.kind or "boot"
    return "latest" if f"/actors/{actor_uid}/" in source.name else "golden"


async def _start(
    ctx: Context,
    actor: Row[pb.Actor],
    template: Row[pb.ActorTemplate],
    config: Row[pb.SandboxRuntimeConfig],
    metadata: dict[str, str],
    boot: bool,
) -> None:
    herder = await ctx.nodes.herder(actor.value.status.worker_assignment.node_name)
    fields: dict[str, Any] = {
        "target_ateom_uid": actor.value.status.worker_assignment.worker.name,
        **node_requests.identity(actor, template),
        **node_requests.sizes(template.value),
        "spec": node_requests.workload(template.value, actor.value),
        "sandbox_assets": node_requests.assets(template.value, config.value),
    }
    if template.value.lifecycle.HasField("idle_timeout") and actor.key.scope != GOLDEN_ATESPACE:
        fields["idle_timeout"] = template.value.lifecycle.idle_timeout
    call: dict[str, Any] = {"timeout": NODE_TIMEOUT, "metadata": metadata}
    source = source_of(actor.value, template.uid, boot)
    measures.snapshot(source.scope, _kind_of(source, actor.uid))
    if not source.kind:
        await herder.Run(node.RunRequest(**fields), **call)
        return
    scope: Any = node_requests.SCOPES[source.scope]  # type: ignore[index]
    golden = ""
    if scope == node.SNAPSHOT_SCOPE_DATA:
        below = await _golden(ctx, template)
        if below is not None:
            golden, scope = below.snapshot_uri, node.SNAPSHOT_SCOPE_DATA_ON_GOLDEN
    if source.kind == "local":
        fields |= {
            "type": node.CHECKPOINT_TYPE_LOCAL,
            "local_config": node.LocalCheckpointConfiguration(snapshot_name=source.name),
        }
    else:
        fields |= {
            "type": node.CHECKPOINT_TYPE_EXTERNAL,
            "external_config": node.ExternalCheckpointConfiguration(snapshot_uri=source.name),
        }
    await herder.Restore(node.RestoreRequest(scope=scope, golden_snapshot_uri=golden, **fields), **call)


async def _golden(ctx: Context, template: Row[pb.ActorTemplate]) -> pb.ExternalSnapshot | None:
    """The golden snapshot when the template wants durable data put on top of it; None: cold boot."""
    if template.value.snapshots_config.on_resume.from_data != pb.RESUME_SOURCE_GOLDEN:
        return None
    tag = await ctx.store.get(TAGS, key_of(template.value.status.golden_snapshot_status.golden_tag))
    return tag.value.status.snapshot if tag is not None and tag.value.status.snapshot.snapshot_uri else None
