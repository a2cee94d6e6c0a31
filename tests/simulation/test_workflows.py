"""Promises of the actor workflows, on the real control plane with model nodes, under a virtual clock."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ate.api import actors, nodes, recovery, templates, workers
from ate.api.workflows import revert, steps, suspend
from ate.api.workflows import tags as tag_workflows
from ate.errors import (
    NOT_STARTED,
    Aborted,
    AteError,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
    with_reason,
)
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from tests.simulation.cluster import Cluster, open_cluster, template

SUSPENDED, RUNNING, CRASHED = pb.ACTOR_STATE_SUSPENDED, pb.ACTOR_STATE_RUNNING, pb.ACTOR_STATE_CRASHED


@pytest.fixture
def clock(autojump_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    return autojump_clock


async def ready(cluster: Cluster, *, worker_count: int = 1) -> list[str]:
    uids = [await cluster.add_worker() for _ in range(worker_count)]
    await cluster.add_template()
    await cluster.add_actor("a")
    return uids


async def test_memory_survives_many_sleeps(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster, worker_count=2)
        seen = set()
        for count in range(6):
            actor = await cluster.resume("a")
            assert cluster.memory(actor).memory == count
            cluster.memory(actor).memory += 1
            seen.add(actor.status.worker_assignment.worker.name)
            asleep = await cluster.suspend("a")
            assert asleep.status.state == SUSPENDED and not asleep.status.HasField("worker_assignment")
            assert cluster.node.workers == {}
            own = [uri for uri in cluster.snapshots if asleep.metadata.uid in uri]
            assert own == [asleep.status.external_snapshot.snapshot_uri], "an actor keeps one snapshot"
        assert len(seen) == 2, "the least recently used worker comes next"


async def test_a_resume_of_a_running_actor_changes_nothing(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        first = await cluster.resume("a")
        assert await cluster.resume("a") == first
        assert cluster.node.starts == 1


async def test_callers_of_one_resume_share_it(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster, worker_count=3)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(cluster.resume, "a")
        assert cluster.node.starts == 1 and len(cluster.node.workers) == 1


async def test_a_resume_outlives_its_caller(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        cluster.node.delay = 5
        with trio.move_on_after(1):
            await cluster.resume("a")
        actor = await cluster.until("a", RUNNING)
        assert cluster.memory(actor).memory == 0 and cluster.node.starts == 1


async def test_an_operation_that_never_ends_is_given_up_and_entered_again(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        ref = Ref("demo", "a")

        async def never(lease: object) -> None:
            await trio.sleep_forever()

        with pytest.raises(DeadlineExceeded, match="did not end within"):
            await cluster.ctx.operations.run(steps.lease_key(ref), "resume", never)
        assert (await cluster.resume("a")).status.state == RUNNING


async def test_an_actor_whose_volume_nobody_provisioned_stays_asleep_and_says_why(clock: object) -> None:
    async with open_cluster() as cluster:
        await cluster.add_worker()
        external = pb.ExternalVolumeTemplate(storage_class_name="fast", capacity="1Gi")
        made = template(volumes=[pb.Volume(name="data", external_volume_template=external)])
        made.containers[0].volume_mounts.add(name="data", mount_path="/data")
        await templates.create(cluster.ctx, pb.CreateActorTemplateRequest(actor_template=made))
        await cluster.add_actor("a")
        with pytest.raises(FailedPrecondition, match=r"'data' of actor demo/a is not provisioned.*durable_dir"):
            await cluster.resume("a")
        assert (await cluster.get("a")).status.state == SUSPENDED and cluster.node.starts == 0


async def test_one_worker_never_holds_two_actors(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster, worker_count=2)
        for name in "bcdef":
            await cluster.add_actor(name)
        outcomes: list[str] = []

        async def try_resume(name: str) -> None:
            try:
                await cluster.resume(name)
                outcomes.append("runs")
            except ResourceExhausted as error:
                assert "no free workers available" in error.message
                outcomes.append("no room")

        async with trio.open_nursery() as nursery:
            for name in "abcdef":
                nursery.start_soon(try_resume, name)
        assert sorted(outcomes) == ["no room"] * 4 + ["runs"] * 2


async def test_a_lost_reply_is_not_a_second_checkpoint(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        await cluster.resume("a")
        lost = 0

        def lose(what: str) -> None:
            nonlocal lost
            if what == "checkpoint" and not lost:
                lost += 1
                raise Unavailable("the reply was lost")

        cluster.node.after = lose
        with pytest.raises(Unavailable):
            await cluster.suspend("a")
        asleep = await cluster.until("a", SUSPENDED)
        assert cluster.node.checkpoints == 1 and asleep.status.HasField("external_snapshot")
        await cluster.resume("a")


async def test_a_lost_reply_is_not_a_second_start(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster, worker_count=2)
        lost = 0

        def lose(what: str) -> None:
            nonlocal lost
            if what == "start" and not lost:
                lost += 1
                raise Unavailable("the reply was lost")

        cluster.node.after = lose
        with pytest.raises(Unavailable):
            await cluster.resume("a")
        await cluster.until("a", RUNNING)
        assert cluster.node.starts == 1 and len(cluster.node.workers) == 1


async def test_a_start_that_was_not_begun_leaves_the_actor_asleep_and_the_worker_free(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)

        def away(what: str) -> None:
            raise with_reason(Unavailable("object store is down"), NOT_STARTED)

        cluster.node.before = away
        with pytest.raises(Unavailable, match="object store is down"):
            await cluster.resume("a")
        actor = await cluster.get("a")
        assert actor.status.state == SUSPENDED and not actor.status.HasField("worker_assignment")
        cluster.node.before = lambda what: None
        await cluster.resume("a")


async def test_a_damaged_snapshot_crashes_the_actor_and_keeps_what_is_left(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        await cluster.resume("a")
        before = await cluster.suspend("a")

        def damaged(what: str) -> None:
            if what == "start":
                raise DataLoss("object checkpoint.img.zstd: sha256 differs")

        cluster.node.before = damaged
        with pytest.raises(DataLoss, match=r"checkpoint\.img"):
            await cluster.resume("a")
        crashed = await cluster.get("a")
        assert crashed.status.state == CRASHED and "checkpoint.img" in crashed.status.crash.message
        assert crashed.status.external_snapshot == before.status.external_snapshot
        with pytest.raises(FailedPrecondition, match="revert"):
            await cluster.resume("a")
        cluster.node.before = lambda what: None
        await revert.revert(cluster.ctx, Ref("demo", "a"))
        await cluster.resume("a")


async def test_a_failed_checkpoint_never_replaces_the_last_good_snapshot(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        actor = await cluster.resume("a")
        cluster.memory(actor).memory = 7
        good = await cluster.suspend("a")
        await cluster.resume("a")

        def broken(what: str) -> None:
            if what == "checkpoint":
                raise Internal("no space left on device")

        cluster.node.before = broken
        with pytest.raises(Internal, match="no space left"):
            await cluster.suspend("a")
        crashed = await cluster.get("a")
        assert crashed.status.state == CRASHED
        assert crashed.status.external_snapshot == good.status.external_snapshot
        cluster.node.before = lambda what: None
        reverted = await revert.revert(cluster.ctx, Ref("demo", "a"))
        assert reverted.status.state == SUSPENDED and not reverted.status.in_progress_snapshot_uri
        assert cluster.memory(await cluster.resume("a")).memory == 7


async def test_a_restarted_worker_crashes_its_actor_and_takes_new_ones(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        await cluster.resume("a")
        await cluster.suspend("a")
        await cluster.resume("a")
        cluster.node.workers.clear()
        worker = await workers.get(cluster.ctx, pb.GetWorkerRequest(worker=pb.ObjectRef(name=uid)))
        worker.epoch = 2
        worker = await workers.update(cluster.ctx, pb.UpdateWorkerRequest(worker=worker))
        assert worker.status.observed_epoch == 2 and worker.status.allocated.actors == 0
        crashed = await cluster.get("a")
        assert crashed.status.state == CRASHED and "restarted" in crashed.status.crash.message
        await revert.revert(cluster.ctx, Ref("demo", "a"))
        assert cluster.memory(await cluster.resume("a")).memory == 0


async def test_a_worker_that_restarts_during_a_resume_costs_the_actor_nothing(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        cluster.memory(await cluster.resume("a")).memory = 4
        await cluster.suspend("a")
        cluster.node.delay = 5
        outcomes: list[str] = []

        async def resuming() -> None:
            try:
                await cluster.resume("a")
            except Aborted:
                outcomes.append("aborted")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(resuming)
            await trio.sleep(1)
            worker = await workers.get(cluster.ctx, pb.GetWorkerRequest(worker=pb.ObjectRef(name=uid)))
            worker.epoch = 2
            await workers.update(cluster.ctx, pb.UpdateWorkerRequest(worker=worker))
        await cluster.until("a", SUSPENDED, 30)
        assert outcomes == ["aborted"] and cluster.node.workers == {}, "what was started without a claim is taken down"
        assert cluster.memory(await cluster.resume("a")).memory == 4


async def test_a_deleted_worker_crashes_its_actor_and_is_gone(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        await cluster.resume("a")
        await workers.delete(cluster.ctx, pb.DeleteWorkerRequest(worker=pb.ObjectRef(name=uid)))
        assert (await cluster.get("a")).status.state == CRASHED
        with pytest.raises(NotFound):
            await workers.get(cluster.ctx, pb.GetWorkerRequest(worker=pb.ObjectRef(name=uid)))


async def test_deleting_a_worker_ends_what_it_runs(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        await cluster.add_node()
        cluster.memory(await cluster.resume("a")).memory = 3
        await cluster.suspend("a")
        await cluster.resume("a")
        await workers.delete(cluster.ctx, pb.DeleteWorkerRequest(worker=pb.ObjectRef(name=uid)))
        assert cluster.node.workers == {}, "the actor may be started elsewhere: it must not run here any more"
        await cluster.add_worker()
        await revert.revert(cluster.ctx, Ref("demo", "a"))
        assert cluster.memory(await cluster.resume("a")).memory == 3


async def test_a_worker_stays_until_its_node_says_that_what_it_ran_has_ended_or_is_away(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        await cluster.add_node()
        await cluster.resume("a")
        gone = pb.DeleteWorkerRequest(worker=pb.ObjectRef(name=uid))

        def silent(what: str) -> None:
            raise Unavailable("the node does not answer")

        cluster.node.before = silent
        with pytest.raises(Unavailable, match="may still run actor demo/a"):
            await workers.delete(cluster.ctx, gone)
        assert (await cluster.get("a")).status.state == RUNNING
        await trio.sleep(nodes.AWAY_SECONDS + 1)
        await workers.delete(cluster.ctx, gone)
        assert (await cluster.get("a")).status.state == CRASHED


async def test_a_worker_that_saves_an_actor_is_not_deleted_under_it(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        await cluster.add_node()
        cluster.memory(await cluster.resume("a")).memory = 6
        cluster.node.delay = 5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.suspend, "a")
            await trio.sleep(1)
            with pytest.raises(Unavailable, match="is saving actor demo/a"):
                await workers.delete(cluster.ctx, pb.DeleteWorkerRequest(worker=pb.ObjectRef(name=uid)))
        await workers.delete(cluster.ctx, pb.DeleteWorkerRequest(worker=pb.ObjectRef(name=uid)))
        await cluster.add_worker()
        assert cluster.memory(await cluster.resume("a")).memory == 6


@pytest.mark.parametrize("busy", [Aborted("another operation runs on this worker"), Unavailable("busy")])
async def test_a_busy_node_crashes_nobody(clock: object, busy: AteError) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        times = 0

        def once(what: str) -> None:
            nonlocal times
            times += 1
            if times == 1:
                raise busy

        for change, then in ((cluster.resume, RUNNING), (cluster.suspend, SUSPENDED), (cluster.resume, RUNNING)):
            times = 0
            cluster.node.before = once
            try:
                await change("a")
            except (Aborted, Unavailable):
                pass
            await cluster.until("a", then)
        times = 0
        try:
            await suspend.pause(cluster.ctx, Ref("demo", "a"))
        except (Aborted, Unavailable):
            pass
        await cluster.until("a", pb.ACTOR_STATE_PAUSED)


async def test_a_template_stays_while_its_actors_are_awake(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        cluster.memory(await cluster.resume("a")).memory = 2
        gone = pb.DeleteActorTemplateRequest(actor_template=pb.ObjectRef(atespace="demo", name="t"))
        with pytest.raises(FailedPrecondition, match="demo/a is one"):
            await templates.delete(cluster.ctx, gone)
        await suspend.pause(cluster.ctx, Ref("demo", "a"))
        with pytest.raises(FailedPrecondition, match="demo/a is one"):
            await templates.delete(cluster.ctx, gone)
        await cluster.suspend("a")
        await templates.delete(cluster.ctx, gone)
        with pytest.raises(FailedPrecondition):
            await cluster.resume("a")
        assert (await cluster.get("a")).status.state == SUSPENDED
        await cluster.add_template()
        assert cluster.memory(await cluster.resume("a")).memory == 2


async def test_no_actor_wakes_into_a_template_that_goes_meanwhile(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        cluster.node.delay = 5
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.resume, "a")
            await trio.sleep(1)
            with pytest.raises(FailedPrecondition, match="demo/a is one"):
                await templates.delete(
                    cluster.ctx,
                    pb.DeleteActorTemplateRequest(actor_template=pb.ObjectRef(atespace="demo", name="t")),
                )
        await cluster.suspend("a")


async def test_a_draining_worker_takes_nobody(clock: object) -> None:
    async with open_cluster() as cluster:
        (uid,) = await ready(cluster)
        drain = pb.DrainWorkerRequest(worker=pb.ObjectRef(name=uid))
        first = await workers.drain(cluster.ctx, drain)
        assert await workers.drain(cluster.ctx, drain) == first, "repeating it changes nothing"
        with pytest.raises(ResourceExhausted):
            await cluster.resume("a")


async def test_a_paused_actor_wakes_on_its_node_or_is_uploaded(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        actor = await cluster.resume("a")
        cluster.memory(actor).memory = 3
        paused = await suspend.pause(cluster.ctx, Ref("demo", "a"))
        assert list(paused.status.local_snapshot.node_vms_with_local_snapshots) == ["n1"]
        actor = await cluster.resume("a")
        assert cluster.memory(actor).memory == 3
        cluster.memory(actor).memory = 4
        await suspend.pause(cluster.ctx, Ref("demo", "a"))
        asleep = await cluster.suspend("a")
        assert asleep.status.state == SUSPENDED and not asleep.status.HasField("local_snapshot")
        assert cluster.memory(await cluster.resume("a")).memory == 4


async def test_deleting_takes_everything_along_and_a_namesake_starts_afresh(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        actor = await cluster.resume("a")
        cluster.memory(actor).memory = 9
        with pytest.raises(FailedPrecondition):
            await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=False, options=pb.DeleteOptions())
        await cluster.suspend("a")
        await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=False, options=pb.DeleteOptions())
        assert not [uri for uri in cluster.snapshots if actor.metadata.uid in uri]
        await cluster.add_actor("a")
        again = await cluster.resume("a")
        assert cluster.memory(again).memory == 0 and again.metadata.uid != actor.metadata.uid
        gone = await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=True, options=pb.DeleteOptions())
        assert gone.metadata.uid == again.metadata.uid and cluster.node.workers == {}


async def test_a_template_gets_one_published_golden_snapshot_that_new_actors_wake_from(clock: object) -> None:
    async with open_cluster(golden=True) as cluster:
        await cluster.add_worker()
        made = await cluster.add_template()
        status = await golden_done(cluster, made)
        assert status.golden_tag == pb.ObjectRef(atespace="ate-golden", name=made.metadata.uid)
        borrowed = await cluster.add_actor("a")
        uri = borrowed.status.external_snapshot.snapshot_uri
        assert "/atespaces/ate-golden/tags/" in uri
        assert cluster.node.workers == {}, "the golden actor is gone"
        await cluster.resume("a")
        await cluster.suspend("a")
        assert uri in cluster.snapshots, "a borrowed snapshot is not the borrower's to delete"
        await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=True, options=pb.DeleteOptions())
        assert uri in cluster.snapshots


async def golden_done(cluster: Cluster, made: pb.ActorTemplate) -> pb.GoldenSnapshotStatus:
    ref = pb.ObjectRef(atespace="demo", name=made.metadata.name)
    with trio.fail_after(300):
        while True:
            found = await templates.get(cluster.ctx, pb.GetActorTemplateRequest(actor_template=ref))
            status = found.status.golden_snapshot_status
            if status.HasField("golden_tag") or status.error_message:
                return status
            await trio.sleep(0.5)


async def test_a_golden_actor_that_crashes_ends_the_search_with_its_reason(clock: object) -> None:
    async with open_cluster(golden=True) as cluster:
        await cluster.add_worker()

        def broken(what: str) -> None:
            if what == "start":
                raise Internal("container exited with status 3")

        cluster.node.before = broken
        status = await golden_done(cluster, await cluster.add_template())
        assert status.error_message.startswith("GoldenActorCrashed: ") and "status 3" in status.error_message


async def test_a_golden_snapshot_waits_for_a_worker(clock: object) -> None:
    async with open_cluster(golden=True) as cluster:
        made = await cluster.add_template()
        await trio.sleep(30)
        await cluster.add_worker()
        assert (await golden_done(cluster, made)).HasField("golden_tag")


async def test_a_tag_is_shared_as_its_scope_says(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        actor = await cluster.resume("a")
        cluster.memory(actor).memory = 5
        source = pb.ObjectRef(atespace="demo", name="a")
        tag = pb.Tag(
            metadata=pb.ResourceMetadata(atespace="demo", name="v1"), scope=pb.TAG_SCOPE_ATESPACE, source_actor=source
        )
        with pytest.raises(FailedPrecondition, match="SUSPENDED"):
            await tag_workflows.create(cluster.ctx, tag)
        await cluster.suspend("a")
        made = await tag_workflows.create(cluster.ctx, tag)
        assert made.status.state == pb.TAG_STATE_READY
        clone = pb.Actor(
            metadata=pb.ResourceMetadata(atespace="demo", name="clone"),
            actor_template=pb.ObjectRef(atespace="demo", name="t"),
            source_tag=pb.ObjectRef(atespace="demo", name="v1"),
        )
        await actors.create(cluster.ctx, pb.CreateActorRequest(actor=clone))
        assert cluster.memory(await cluster.resume("clone")).memory == 5
        clone.metadata.atespace = "ate-golden"
        with pytest.raises(FailedPrecondition, match="publish"):
            await actors.create(cluster.ctx, pb.CreateActorRequest(actor=clone))
        await tag_workflows.delete(cluster.ctx, Ref("demo", "v1"), pb.DeleteOptions())
        assert made.status.snapshot.snapshot_uri not in cluster.snapshots


async def test_work_interrupted_by_the_death_of_the_control_plane_is_finished_by_the_next(clock: object) -> None:
    async with open_cluster(recover=False) as cluster:
        await ready(cluster)
        cluster.node.delay = 1000
        with trio.move_on_after(1) as scope:
            await cluster.resume("a")
        assert scope.cancelled_caught and (await cluster.get("a")).status.state == pb.ACTOR_STATE_RESUMING
        # A fresh role on the same store: nothing in memory, only what was stored.
        from ate.api.recovery import Recovery
        from ate.api.workflows.operations import Operations

        cluster.node.delay = 0.1
        async with trio.open_nursery() as nursery:
            cluster.ctx.operations = Operations(cluster.ctx.store, nursery, "next")
            await trio.sleep(700)  # the dead one's lease runs out
            nursery.start_soon(Recovery(cluster.ctx).run)
            actor = await cluster.until("a", RUNNING, 60)
            assert cluster.memory(actor)
            nursery.cancel_scope.cancel()


async def test_two_operations_on_one_actor_do_not_mix(clock: object) -> None:
    async with open_cluster() as cluster:
        await ready(cluster)
        await cluster.resume("a")
        cluster.node.delay = 5
        errors: list[AteError] = []

        async def pausing() -> None:
            try:
                await suspend.pause(cluster.ctx, Ref("demo", "a"))
            except AteError as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.suspend, "a")
            await trio.sleep(1)
            nursery.start_soon(pausing)
        assert len(errors) == 1 and isinstance(errors[0], Aborted)
        assert (await cluster.get("a")).status.state == SUSPENDED


async def test_a_bug_that_one_actor_meets_leaves_the_others_alone(
    clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_cluster(recover=False) as cluster:
        await ready(cluster, worker_count=2)
        await cluster.add_actor("b")
        cluster.node.before = lambda what: (_ for _ in ()).throw(Unavailable("away"))
        for name in ("a", "b"):
            with pytest.raises(Unavailable):
                await cluster.resume(name)
        cluster.node.before = lambda what: None
        resume_ = recovery.resume.resume

        async def buggy(ctx: object, ref: Ref, **options: bool) -> object:
            if ref.name == "a":
                raise ValueError("a bug")
            return await resume_(cluster.ctx, ref, **options)

        monkeypatch.setattr(recovery.resume, "resume", buggy)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recovery.Recovery(cluster.ctx).run)
            await cluster.until("b", RUNNING, 30)
            monkeypatch.setattr(recovery.resume, "resume", resume_)
            await cluster.until("a", RUNNING, 60)
            nursery.cancel_scope.cancel()
