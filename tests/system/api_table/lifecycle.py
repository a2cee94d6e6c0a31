"""What moves actors: each call from each state, and what it leaves. What CreateActor and UpdateActor allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from ate.errors import FailedPrecondition, Unavailable
from ate.names import GOLDEN_ATESPACE
from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused, request_of
from tests.system.api_table import makers
from tests.system.api_table.makers import NOWHERE, OTHER_TEMPLATE, add_actor, add_running, add_suspended, ref, ref_of
from tests.system.api_table.resources import BAD_SHORT
from tests.system.api_table.rows import add, row

Arrive = Callable[[Api], Any]


@contextmanager
def suspended(api: Api) -> Iterator[pb.Actor]:
    yield add_suspended(api)


@contextmanager
def running(api: Api) -> Iterator[pb.Actor]:
    yield add_running(api)


@contextmanager
def paused(api: Api) -> Iterator[pb.Actor]:
    yield api.user("PauseActor", actor=ref_of(add_running(api))).actor


@contextmanager
def crashed(api: Api) -> Iterator[pb.Actor]:
    actor = add_actor(api)
    with api.node_fails("start", FailedPrecondition("a broken image")), refused("FAILED_PRECONDITION", "broken"):
        api.user("ResumeActor", actor=ref_of(actor))
    yield makers.read_actor(api, actor)


def on_the_way(before: Arrive, rpc: str, what: str, **fields: Any) -> Arrive:
    """A state between two others: the node stays away while it lasts."""

    @contextmanager
    def arrive(api: Api) -> Iterator[pb.Actor]:
        with before(api) as actor, api.node_fails(what, Unavailable("the node is away")):
            with refused("UNAVAILABLE", "away"):
                api.user(rpc, actor=ref_of(actor), **fields)
            yield makers.read_actor(api, actor)

    return arrive


STATES: dict[str, Arrive] = {
    "SUSPENDED": suspended,
    "RUNNING": running,
    "PAUSED": paused,
    "CRASHED": crashed,
    "RESUMING": on_the_way(suspended, "ResumeActor", "start"),
    "SUSPENDING": on_the_way(running, "SuspendActor", "checkpoint"),
    "PAUSING": on_the_way(running, "PauseActor", "checkpoint"),
    "REVERTING": on_the_way(running, "RevertActor", "terminate"),
    "DELETING": on_the_way(running, "DeleteActor", "terminate", any_state=True),
}
MOVES: dict[str, tuple[str, set[str]]] = {
    "ResumeActor": ("RUNNING", {"SUSPENDED", "PAUSED", "RUNNING", "RESUMING"}),
    "SuspendActor": ("SUSPENDED", {"RUNNING", "PAUSED", "SUSPENDED", "SUSPENDING"}),
    "PauseActor": ("PAUSED", {"RUNNING", "PAUSED", "PAUSING"}),
    "RevertActor": ("SUSPENDED", {"RUNNING", "PAUSED", "CRASHED", "SUSPENDED", "REVERTING"}),
}
"""RPC -> the state it ends in, and those it may be called in."""
DELETABLE = {"SUSPENDED", "CRASHED", "DELETING"}


def name_of(actor: pb.Actor) -> str:
    return pb.ActorState.Name(actor.status.state).removeprefix("ACTOR_STATE_")


def moves(rpc: str, state: str, api: Api) -> None:
    target, _ = MOVES[rpc]
    if state in STATES_ON_THE_WAY:
        with STATES[state](api) as actor:
            assert name_of(actor) == state
        after = api.user(rpc, actor=ref_of(actor)).actor  # the node is back: the call goes on where it stopped
    else:
        with STATES[state](api) as actor:
            assert name_of(actor) == state
            after = api.user(rpc, actor=ref_of(actor)).actor
    assert name_of(after) == target and after.metadata.uid == actor.metadata.uid
    if state == target:
        assert after == actor, "nothing to do is nothing done"
    elif state not in STATES_ON_THE_WAY:
        assert after == makers.read_actor(api, actor)


def wrong_state(rpc: str, state: str, api: Api) -> None:
    with STATES[state](api) as actor:
        assert name_of(actor) == state
        with refused("FAILED_PRECONDITION", actor.metadata.name, state):
            api.user(rpc, actor=ref_of(actor))
        assert name_of(makers.read_actor(api, actor)) == state


def deletes(state: str, any_state: bool, api: Api) -> None:
    with STATES[state](api) as actor:
        assert name_of(actor) == state
        if state == "DELETING":
            with refused("UNAVAILABLE"):
                api.user("DeleteActor", actor=ref_of(actor), any_state=any_state)
        elif state not in STATES_ON_THE_WAY:
            gone = api.user("DeleteActor", actor=ref_of(actor), any_state=any_state)
            assert gone.metadata.uid == actor.metadata.uid
    if state in STATES_ON_THE_WAY:
        # Now that the node is back, what was interrupted may also end by itself: gone is gone.
        try:
            api.user("DeleteActor", actor=ref_of(actor), any_state=any_state)
        except grpc.RpcError as error:
            assert state == "DELETING" and error.code() is grpc.StatusCode.NOT_FOUND, error
    with refused("NOT_FOUND"):
        api.user("GetActor", actor=ref_of(actor))


STATES_ON_THE_WAY = {state for state in STATES if state.endswith("ING") and state != "RUNNING"}
for name, (target, allowed) in MOVES.items():
    for state in STATES:
        if state not in allowed:
            add(name, f"{state} is FAILED_PRECONDITION", partial(wrong_state, name, state))
        elif state == target:
            add(name, f"{state} stays as it is", partial(moves, name, state))
        else:
            add(name, f"{state} becomes {target}", partial(moves, name, state))
for state in STATES:
    if state in DELETABLE:
        add("DeleteActor", f"{state} can be deleted", partial(deletes, state, False))
    else:
        add("DeleteActor", f"{state} is FAILED_PRECONDITION", partial(wrong_state, "DeleteActor", state))
    add("DeleteActor", f"{state} can be deleted with any_state", partial(deletes, state, True))


def references(rpc: str, api: Api) -> None:
    with refused("INVALID_ARGUMENT", "actor"):
        api.user(rpc)
    for wrong in BAD_SHORT:
        with refused("INVALID_ARGUMENT", "actor.name"):
            api.user(rpc, actor=ref("a", wrong))
        with refused("INVALID_ARGUMENT", "actor.atespace"):
            api.user(rpc, actor=ref(wrong, "a"))
    with refused("INVALID_ARGUMENT", "actor.name", "actor.atespace"):
        api.user(rpc, actor=pb.ObjectRef())
    with refused("NOT_FOUND", "no-such-actor"):
        api.user(rpc, actor=ref(makers.LAB, "no-such-actor"))


for name in MOVES:
    add(name, "a missing or bad reference is INVALID_ARGUMENT, an unknown actor NOT_FOUND", partial(references, name))


# -- what the moves leave -----------------------------------------------------------------------------------------


@row("ResumeActor", "tells whether it resumed: false for one that was running")
def _resumed(api: Api) -> None:
    actor = add_actor(api)
    first = api.user("ResumeActor", actor=ref_of(actor))
    assert first.resumed and first.actor.status.worker_assignment.node_name == "n1"
    second = api.user("ResumeActor", actor=ref_of(actor))
    assert not second.resumed and second.actor == first.actor


@row("ResumeActor", "is RESOURCE_EXHAUSTED when no worker has what the actor asks for, and changes nothing")
def _nowhere(api: Api) -> None:
    actor = add_actor(api, worker_selector=pb.Selector(match_labels=NOWHERE))
    with refused("RESOURCE_EXHAUSTED", "no free workers available"):
        api.user("ResumeActor", actor=ref_of(actor))
    assert makers.read_actor(api, actor) == actor


@row("ResumeActor", "is RESOURCE_EXHAUSTED when every worker that fits is full, fine again when one has room")
def _full(api: Api) -> None:
    worker = makers.own_worker(api)
    first, second = (add_actor(api, **makers.on(worker)) for _ in range(2))
    api.user("ResumeActor", actor=ref_of(first))
    with refused("RESOURCE_EXHAUSTED", "no free workers available"):
        api.user("ResumeActor", actor=ref_of(second))
    api.user("SuspendActor", actor=ref_of(first))
    assert api.user("ResumeActor", actor=ref_of(second)).resumed


@row("ResumeActor", "is RESOURCE_EXHAUSTED when the only worker drains")
def _draining(api: Api) -> None:
    worker = makers.own_worker(api)
    actor = add_actor(api, **makers.on(worker))
    api.user("DrainWorker", worker=ref_of(worker))
    with refused("RESOURCE_EXHAUSTED"):
        api.user("ResumeActor", actor=ref_of(actor))


@row("ResumeActor", "boot skips the golden snapshot")
def _boot(api: Api) -> None:
    for boot, memory in ((False, 7), (True, 0)):
        actor = add_actor(api)
        api.node.snapshots[actor.status.external_snapshot.snapshot_uri] = 7
        answer = api.user("ResumeActor", actor=ref_of(actor), boot=boot)
        worker = answer.actor.status.worker_assignment.worker.name
        assert answer.resumed and api.node.workers[f"{worker}/{actor.metadata.uid}"].memory == memory


@row("ResumeActor", "callers that come meanwhile share it, other operations are ABORTED")
def _meanwhile(api: Api) -> None:
    actor = add_actor(api)
    resume = request_of("ResumeActor", actor=ref_of(actor))
    with api.node_holds_starts():
        calls = [api.user.later("ResumeActor", resume)]
        makers.eventually(lambda: name_of(makers.read_actor(api, actor)) == "RESUMING")
        calls.append(api.user.later("ResumeActor", resume))
        for rpc in ("SuspendActor", "PauseActor", "RevertActor"):
            with refused("ABORTED", "another operation"):
                api.user.once(rpc, request_of(rpc, actor=ref_of(actor)))
        with refused("ABORTED", "another operation"):
            api.user.once("DeleteActor", request_of("DeleteActor", actor=ref_of(actor), any_state=True))
    answers = [call.result() for call in calls]
    assert all(name_of(answer.actor) == "RUNNING" for answer in answers)
    assert api.user("SuspendActor", actor=ref_of(actor)).actor.metadata.uid == actor.metadata.uid


@row("SuspendActor", "leaves a snapshot below the actor's own prefix, and no claim")
def _suspend(api: Api) -> None:
    actor = add_running(api)
    after = api.user("SuspendActor", actor=ref_of(actor)).actor
    space, uid = actor.metadata.atespace, actor.metadata.uid
    prefix = f"{api.location}/atespaces/{space}/actors/{uid}/snapshots/"
    snapshot = after.status.external_snapshot
    assert snapshot.snapshot_uri.startswith(prefix)
    assert snapshot.content_scope == pb.SNAPSHOT_CONTENT_SCOPE_FULL
    template = api.user("GetActorTemplate", actor_template=actor.actor_template)
    assert snapshot.actor_template_uid == template.metadata.uid
    assert not after.status.HasField("worker_assignment") and not after.status.in_progress_snapshot_uri


@row("PauseActor", "leaves a snapshot on the node, and no claim")
def _pause(api: Api) -> None:
    after = api.user("PauseActor", actor=ref_of(add_running(api))).actor
    local = after.status.local_snapshot
    assert local.snapshot_name and list(local.node_vms_with_local_snapshots) == ["n1"]
    assert not after.status.HasField("worker_assignment") and not after.status.in_progress_local_snapshot_name


@row("RevertActor", "goes back to the last external snapshot and clears the crash")
def _revert(api: Api) -> None:
    worker = makers.own_worker(api)
    actor = add_suspended(api, **makers.on(worker))
    kept = actor.status.external_snapshot
    api.user("ResumeActor", actor=ref_of(actor))
    worker = api.user("GetWorker", worker=ref_of(worker))
    worker.epoch += 1
    api.user("UpdateWorker", worker=worker)
    lost = makers.read_actor(api, actor)
    assert name_of(lost) == "CRASHED" and lost.status.crash.message and lost.status.crash.HasField("crash_time")
    after = api.user("RevertActor", actor=ref_of(actor)).actor
    assert name_of(after) == "SUSPENDED" and not after.status.HasField("crash")
    assert after.status.external_snapshot == kept


@row("DeleteActor", "answers the actor as it was just before, its state aside")
def _answer(api: Api) -> None:
    actor = add_suspended(api)
    gone = api.user("DeleteActor", actor=ref_of(actor))
    assert name_of(gone) == "DELETING"
    gone.status.state = actor.status.state
    gone.metadata.version = actor.metadata.version
    gone.metadata.update_time.CopyFrom(actor.metadata.update_time)
    assert gone == actor


# -- what create and update allow ---------------------------------------------------------------------------------


def bad_actor(verb: str, api: Api) -> None:
    actor = add_actor(api)
    if verb == "Create":
        actor.metadata.name = api.fresh("other")

    def tried(path: str, change: Callable[[pb.Actor], Any]) -> None:
        wrong = pb.Actor()
        wrong.CopyFrom(actor)
        change(wrong)
        with refused("INVALID_ARGUMENT", f"actor.{path}"):
            api.user(f"{verb}Actor", actor=wrong)

    for name in BAD_SHORT:
        tried("actor_template.name", lambda a: setattr(a.actor_template, "name", name))
        tried("actor_template.atespace", lambda a: setattr(a.actor_template, "atespace", name))
        tried("source_tag.name", lambda a: a.source_tag.MergeFrom(ref("a", name)))
        tried("source_tag.atespace", lambda a: a.source_tag.MergeFrom(ref(name, "a")))
    many = {f"k{number}": "v" for number in range(11)}
    tried("worker_selector.match_labels", lambda a: a.worker_selector.SetInParent())
    tried("worker_selector.match_labels", lambda a: a.worker_selector.match_labels.update(many))
    tried("worker_selector.match_labels[k]", lambda a: a.worker_selector.match_labels.update({"k": "-"}))
    tried("worker_selector.match_labels[/k]", lambda a: a.worker_selector.match_labels.update({"/k": "v"}))
    tried("wake_time", lambda a: setattr(a.wake_time, "nanos", -1))
    tried("wake_time", lambda a: setattr(a.wake_time, "seconds", 2**60))
    del many["k10"]
    actor.worker_selector.match_labels.update(many)
    actor.wake_time.seconds = 4_000_000_000
    after = api.user(f"{verb}Actor", actor=actor)
    assert dict(after.worker_selector.match_labels) == many and after.wake_time.seconds == 4_000_000_000


add("CreateActor", "bad references, selectors and times are INVALID_ARGUMENT", partial(bad_actor, "Create"))
add("UpdateActor", "bad references, selectors and times are INVALID_ARGUMENT", partial(bad_actor, "Update"))


@row("CreateActor", "a missing template is FAILED_PRECONDITION")
def _no_template(api: Api) -> None:
    with refused("FAILED_PRECONDITION", "actor template not found", "no-such-template"):
        add_actor(api, actor_template=ref(makers.LAB, "no-such-template"))


@row("CreateActor", "starts SUSPENDED, at the golden snapshot of its template where there is one")
def _golden(api: Api) -> None:
    actor = add_actor(api)
    assert name_of(actor) == "SUSPENDED" and not actor.HasField("source_tag")
    tag = api.user("GetActorTemplate", actor_template=actor.actor_template).status.golden_snapshot_status.golden_tag
    assert actor.status.external_snapshot == api.user("GetTag", tag=tag).status.snapshot
    cold = add_actor(api, actor_template=OTHER_TEMPLATE)
    assert not cold.status.HasField("external_snapshot")


@row("UpdateActor", "an absent wake_time clears it")
def _clears(api: Api) -> None:
    actor = add_actor(api)
    actor.wake_time.seconds = 4_000_000_000
    actor = api.user("UpdateActor", actor=actor)
    assert actor.wake_time.seconds == 4_000_000_000
    actor.ClearField("wake_time")
    assert not api.user("UpdateActor", actor=actor).HasField("wake_time")


@row("UpdateActor", "another template is taken while SUSPENDED")
def _repoint(api: Api) -> None:
    actor = add_suspended(api)
    actor.actor_template.CopyFrom(OTHER_TEMPLATE)
    assert api.user("UpdateActor", actor=actor).actor_template == OTHER_TEMPLATE


@row("UpdateActor", "another template is FAILED_PRECONDITION in every other state")
def _repoint_awake(api: Api) -> None:
    for state in STATES.keys() - {"SUSPENDED", *STATES_ON_THE_WAY}:
        with STATES[state](api) as actor:
            actor.actor_template.CopyFrom(OTHER_TEMPLATE)
            with refused("FAILED_PRECONDITION", state):
                api.user("UpdateActor", actor=actor)


@row("UpdateActor", "a template that is missing or cannot take over is FAILED_PRECONDITION")
def _repoint_wrong(api: Api) -> None:
    actor = add_suspended(api)

    def refuse(template: pb.ObjectRef, word: str) -> None:
        actor.actor_template.CopyFrom(template)
        with refused("FAILED_PRECONDITION", word):
            api.user("UpdateActor", actor=actor)

    refuse(ref(makers.LAB, "no-such-template"), "actor template not found")
    space = api.atespace()
    other = makers.template(api.location, space, "microvm")
    other.sandbox_config.sandbox_class = pb.SANDBOX_CLASS_MICROVM
    other.sandbox_config.config_name = makers.MICROVM_CONFIG
    refuse(ref_of(api.user("CreateActorTemplate", actor_template=other)), "sandbox_config")
    other = makers.template(f"{api.location}/elsewhere", space, "elsewhere")
    refuse(ref_of(api.user("CreateActorTemplate", actor_template=other)), "storage_location")
    other = makers.template(api.location, space, "volumes")
    other.volumes.add(name="v").durable_dir.SetInParent()
    other.containers[0].volume_mounts.add(name="v", mount_path="/v")
    refuse(ref_of(api.user("CreateActorTemplate", actor_template=other)), "volumes")
    assert makers.read_actor(api, actor).actor_template == makers.TEMPLATE


@row("DeleteAtespace", "the reserved one stays: INVALID_ARGUMENT")
def _reserved(api: Api) -> None:
    with refused("INVALID_ARGUMENT", "atespace.name", "reserved"):
        api.user("DeleteAtespace", atespace=ref("", GOLDEN_ATESPACE))
    with refused("ALREADY_EXISTS"):
        api.user("CreateAtespace", atespace=makers.atespace(GOLDEN_ATESPACE))


@row("DeleteAtespace", "one with an actor, a template or a tag is FAILED_PRECONDITION, an emptied one goes")
def _not_empty(api: Api) -> None:
    space = api.atespace()
    message = f"Atespace {space} is not empty"

    def stays() -> None:
        with refused("FAILED_PRECONDITION", message):
            api.user("DeleteAtespace", atespace=ref("", space))

    actor = add_actor(api, space=space)
    stays()
    api.user("DeleteActor", actor=ref_of(actor))
    template = api.user("CreateActorTemplate", actor_template=makers.template(api.location, space, "t"))
    stays()
    api.user("DeleteActorTemplate", actor_template=ref_of(template))
    tag = api.user("CreateTag", tag=makers.tag(space, "t", ref_of(add_suspended(api))))
    stays()
    api.user("DeleteTag", tag=ref_of(tag))
    assert api.user("DeleteAtespace", atespace=ref("", space)).metadata.name == space
