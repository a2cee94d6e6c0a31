"""Promises of placement: which workers fit, and which of them is chosen, however many there are."""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ate.api import scheduling
from ate.api.candidates import Candidates
from ate.api.cpus import Cpus, features_id
from ate.api.kinds import NODES
from ate.api.scheduling import Free, Needs
from ate.proto import ateapi_pb2 as pb
from ate.proto import node_pb2
from ate.store import Key, open_sqlite


def worker(name: str, **fields: Any) -> pb.Worker:
    value = pb.Worker(metadata=pb.ResourceMetadata(name=name), sandbox_class="gvisor", node_name="n1", epoch=1)
    value.status.state = pb.WORKER_STATE_ACTIVE
    value.status.observed_epoch = 1
    value.MergeFrom(pb.Worker(**fields))
    return value


def choose(workers: Iterable[pb.Worker], needs: Needs) -> pb.Worker | None:
    candidates = Candidates()
    for each in workers:
        candidates.put(each)
    return candidates.choose(needs)


def test_a_worker_must_fit_class_labels_node_state_and_room() -> None:
    needs = Needs("gvisor", selectors=({"a": "1"}, {"b": "2"}))
    fit = worker("w", labels={"a": "1", "b": "2"})
    assert choose([fit], needs) == fit and scheduling.eligible(fit, needs)
    for other in (
        worker("w", labels={"a": "1"}),
        worker("w", labels={"a": "1", "b": "2"}, status=pb.WorkerStatus(state=pb.WORKER_STATE_DRAINING)),
        worker("w", labels={"a": "1", "b": "2"}, sandbox_class="microvm"),
        worker("w", labels={"a": "1", "b": "2"}, epoch=2),
    ):
        assert choose([other], needs) is None and not scheduling.eligible(other, needs)
    full = worker("w", labels={"a": "1", "b": "2"}, status=pb.WorkerStatus(allocated=pb.WorkerResources(actors=1)))
    assert choose([full], needs) is None
    elsewhere = Needs("gvisor", pinned_nodes=frozenset({"n2"}))
    assert choose([fit], elsewhere) is None and not scheduling.eligible(fit, elsewhere)


def limits(cpu: str, memory: str) -> pb.Resources:
    return pb.Resources(limits=[pb.Limits(name="cpu", quantity=cpu), pb.Limits(name="memory", quantity=memory)])


def test_room_counts_what_is_taken_and_an_undeclared_capacity_is_unconstrained() -> None:
    needs = Needs("gvisor", cpu_milli=600, memory_bytes=1 << 30)
    status = pb.WorkerStatus(capacity=pb.WorkerResources(actors=4, resources=limits("1", "4Gi")))
    assert scheduling.free(worker("w", status=status)).holds(needs)
    status.allocated.CopyFrom(pb.WorkerResources(actors=1, resources=limits("500m", "1Gi")))
    assert not scheduling.free(worker("w", status=status)).holds(needs)
    assert scheduling.free(worker("w")).holds(needs)


def at(name: str, node: str, seconds: int) -> pb.Worker:
    value = worker(name)
    value.node_name = node
    value.metadata.update_time.seconds = seconds
    return value


def test_the_node_with_the_snapshot_comes_first_then_the_least_recently_used_then_one_that_failed() -> None:
    old, new, far = at("old", "n1", 1), at("new", "n1", 9), at("far", "n2", 5)
    assert choose([new, far, old], Needs("gvisor")) == old
    preferred = (frozenset({"n2"}), frozenset({"n1"}))
    assert choose([new, far, old], Needs("gvisor", preferred_nodes=preferred)) == far
    needs = Needs("gvisor", excluded_workers=frozenset({"old"}))
    assert choose([new, old], needs) == new
    assert choose([old], needs) == old, "better a worker that failed than none"


def test_a_node_that_holds_the_image_is_preferred() -> None:
    workers = [at(f"w{number}", f"n{number}", number) for number in range(1, 9)]
    needs = Needs("gvisor", preferred_nodes=(frozenset(), frozenset({"n5", "n7"})))
    chosen = choose(workers, needs)
    assert chosen is not None and chosen.node_name == "n5"


def test_room_that_is_being_claimed_is_not_offered_to_another() -> None:
    candidates = Candidates()
    for name in ("a", "b"):
        candidates.put(worker(name))
    needs = Needs("gvisor")
    first = candidates.choose(needs)
    assert first is not None
    with candidates.claiming(first, needs):
        second = candidates.choose(needs)
        assert second is not None and second.metadata.name != first.metadata.name
        with candidates.claiming(second, needs):
            assert candidates.choose(needs) is None
            assert candidates.fitting(needs) == 2
    assert candidates.choose(needs) is not None


async def test_memory_goes_only_where_every_feature_of_its_cpu_is() -> None:
    async with open_sqlite(":memory:", threaded=False) as store:
        cpus = Cpus()
        old, _ = await cpus.register(store, "old", ["arch:x", "sse"])
        new, changed = await cpus.register(store, "new", ["arch:x", "sse", "avx"])
        assert changed and (await cpus.register(store, "new", ["avx", "sse", "arch:x"])) == (new, False)
        for name, id_ in (("old", old), ("new", new)):
            row = node_pb2.Node(node_name=name, cpu_features_id=id_)
            await store.transact(lambda tx: tx.insert(NODES, Key("", row.node_name), row))
        reloaded = Cpus()
        await reloaded.load(store)
    for known in (cpus, reloaded):
        candidates = Candidates(known)
        for node in ("old", "new", "silent"):
            candidates.put(at(node, node, len(node)))
        assert known.fits(old, new) and not known.fits(new, old) and known.missing(features_id([])) == "none known"
        chosen = candidates.choose(Needs("gvisor", cpu_features=new))
        assert chosen is not None and chosen.node_name != "old"
        candidates.remove("silent")
        candidates.remove("new")
        assert candidates.choose(Needs("gvisor", cpu_features=new)) is None
        assert candidates.fitting(Needs("gvisor", cpu_features=new)) == 0
        assert candidates.choose(Needs("gvisor", cpu_features=old)) is not None


_AMOUNTS = st.sampled_from([0, 1, 100, 127, 128, 250, 1000, 1024, 4000])


@given(cpu=_AMOUNTS, memory=_AMOUNTS, need_cpu=_AMOUNTS, need_memory=_AMOUNTS)
def test_a_bucket_says_the_truth_about_its_workers(cpu: int, memory: int, need_cpu: int, need_memory: int) -> None:
    free, needs = Free(1, cpu, memory), Needs("gvisor", cpu_milli=need_cpu, memory_bytes=need_memory)
    assert Free.in_bucket(free.bucket(), needs) in (free.holds(needs), None)


_WORKERS = st.lists(
    st.builds(
        lambda name, node, used, label, state, actors, taken, cpu, cpu_taken: worker(
            name,
            labels={"l": label} if label else {},
            status=pb.WorkerStatus(
                state=state,
                capacity=pb.WorkerResources(actors=actors, resources=limits(f"{cpu}m", "0") if cpu else pb.Resources()),
                allocated=pb.WorkerResources(
                    actors=min(taken, max(actors, 1)), resources=limits(f"{min(cpu_taken, cpu)}m", "0")
                ),
            ),
            metadata=pb.ResourceMetadata(update_time={"seconds": used}),
            node_name=node,
        ),
        name=st.text(string.ascii_lowercase, min_size=1, max_size=2),
        node=st.sampled_from(["n1", "n2", "n3"]),
        used=st.integers(0, 20),
        label=st.sampled_from(["", "x", "y"]),
        state=st.sampled_from([pb.WORKER_STATE_ACTIVE, pb.WORKER_STATE_ACTIVE, pb.WORKER_STATE_DRAINING]),
        actors=st.integers(0, 3),
        taken=st.integers(0, 3),
        cpu=_AMOUNTS,
        cpu_taken=_AMOUNTS,
    ),
    max_size=12,
)
_NEEDS = st.builds(
    Needs,
    sandbox_class=st.just("gvisor"),
    selectors=st.sampled_from([(), ({"l": "x"},)]),
    cpu_milli=_AMOUNTS,
    pinned_nodes=st.sampled_from([None, frozenset({"n1"}), frozenset({"n1", "n2"})]),
    excluded_workers=st.sampled_from([frozenset(), frozenset({"a", "b"})]),
    preferred_nodes=st.sampled_from([(), (frozenset({"n2"}), frozenset())]),
)


@given(workers=_WORKERS, needs=_NEEDS)
def test_the_index_chooses_what_a_look_at_every_worker_would(workers: list[pb.Worker], needs: Needs) -> None:
    newest = {each.metadata.name: each for each in workers}
    candidates = Candidates()
    for each in workers:
        candidates.put(each)
    may = [w for w in newest.values() if scheduling.eligible(w, needs)]
    assert candidates.fitting(needs) == len(may)
    free = [w for w in may if scheduling.free(w).holds(needs)]
    chosen = candidates.choose(needs)
    assert (chosen is None) == (not free)
    if chosen is None:
        return
    assert chosen in free

    def rank(each: pb.Worker) -> tuple[bool, bool]:
        snapshot = needs.preferred_nodes[0] if needs.preferred_nodes else frozenset()
        return each.metadata.name in needs.excluded_workers, each.node_name not in snapshot

    assert rank(chosen) == min(rank(each) for each in free)
    alike = [
        w for w in free if rank(w) == rank(chosen) and scheduling.free(w).bucket() == scheduling.free(chosen).bucket()
    ]
    used = [each.metadata.update_time.seconds for each in alike]
    assert chosen.metadata.update_time.seconds == min(used)
    for name in newest:
        candidates.remove(name)
    assert candidates.choose(needs) is None and candidates.fitting(needs) == 0
