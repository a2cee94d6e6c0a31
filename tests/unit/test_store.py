"""The conformance suite of ate/store: what every backend promises. SQLite runs it on a file and on one thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ate.errors import (
    Aborted,
    AlreadyExists,
    AteError,
    DataLoss,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from ate.proto import ateapi_pb2 as pb
from ate.store import EventType, Key, Kind, Store, Tx, open_sqlite
from ate.store.schema import MIGRATIONS
from tests.system.disks import small_disk

ACTORS = Kind("actor", pb.Actor, watched=True)
ASSIGNMENTS = Kind("assignment", pb.ActorAssignment, owner=lambda a: a.actor_template_ref.name)
Open = Callable[[], AbstractAsyncContextManager[Store]]


@pytest.fixture(params=["file", "inline"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda: open_sqlite(tmp_path / "store.db", threaded=request.param == "file")


@pytest.fixture
async def store(opener: Open) -> AsyncIterator[Store]:
    async with opener() as store:
        yield store


def actor(name: str = "a", scope: str = "s") -> pb.Actor:
    return pb.Actor(metadata=pb.ResourceMetadata(atespace=scope, name=name))


async def add(store: Store, name: str, scope: str = "s") -> None:
    await store.transact(lambda tx: tx.insert(ACTORS, Key(scope, name), actor(name, scope)))


async def test_a_new_row_has_version_one_a_uid_and_times(store: Store) -> None:
    await add(store, "a")
    row = await store.get(ACTORS, Key("s", "a"))
    assert row is not None and row.version == 1 == row.value.metadata.version
    assert row.uid == row.value.metadata.uid != ""
    assert row.value.metadata.create_time == row.value.metadata.update_time


async def test_a_taken_key_is_already_exists(store: Store) -> None:
    await add(store, "a")
    with pytest.raises(AlreadyExists):
        await add(store, "a")


async def test_an_update_with_a_stale_version_or_uid_is_aborted_and_changes_nothing(store: Store) -> None:
    await add(store, "a")
    row = await store.get(ACTORS, Key("s", "a"))
    assert row is not None
    await store.transact(lambda tx: tx.update(ACTORS, row.key, row.value, uid=row.uid, version=1))
    for uid, version in ((row.uid, 1), ("other", 2)):
        with pytest.raises(Aborted):
            await store.transact(lambda tx, u=uid, v=version: tx.update(ACTORS, row.key, row.value, uid=u, version=v))  # type: ignore[misc]
    after = await store.get(ACTORS, row.key)
    assert after is not None and after.version == 2
    with pytest.raises(NotFound):
        await store.transact(lambda tx: tx.update(ACTORS, Key("s", "b"), row.value, uid=row.uid, version=1))


async def test_a_delete_honours_its_guards(store: Store) -> None:
    await add(store, "a")
    with pytest.raises(Aborted):
        await store.transact(lambda tx: tx.delete(ACTORS, Key("s", "a"), uid="other"))
    with pytest.raises(Aborted):
        await store.transact(lambda tx: tx.delete(ACTORS, Key("s", "a"), version=7))
    gone = await store.transact(lambda tx: tx.delete(ACTORS, Key("s", "a"), version=1))
    assert gone.value.metadata.name == "a"
    with pytest.raises(NotFound):
        await store.transact(lambda tx: tx.delete(ACTORS, Key("s", "a")))


async def test_a_failing_transaction_leaves_nothing_and_spares_its_neighbours(store: Store) -> None:
    def broken(tx: object) -> None:
        tx.insert(ACTORS, Key("s", "broken"), actor("broken"))  # type: ignore[attr-defined]
        raise RuntimeError("no")

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(add, store, f"n{n}")
        with pytest.raises(RuntimeError):
            await store.transact(broken)
    assert await store.get(ACTORS, Key("s", "broken")) is None
    assert len(await store.scan(ACTORS)) == 20


async def test_concurrent_compare_and_swap_has_one_winner_a_round(store: Store) -> None:
    await add(store, "a")
    won = 0

    async def bump() -> None:
        nonlocal won
        while True:
            row = await store.get(ACTORS, Key("s", "a"))
            assert row is not None
            try:
                await store.transact(lambda tx: tx.update(ACTORS, row.key, row.value, uid=row.uid, version=row.version))
            except Aborted:
                continue
            won += 1
            return

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(bump)
    row = await store.get(ACTORS, Key("s", "a"))
    assert won == 16 and row is not None and row.version == 17


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.sets(st.tuples(st.sampled_from("xyz"), st.text("abc-", min_size=1, max_size=4)), max_size=25),
    size=st.integers(1, 7),
)
def test_pages_hold_every_row_once_in_key_order(names: set[tuple[str, str]], size: int) -> None:
    async def check() -> None:
        async with open_sqlite(":memory:", threaded=False) as store:
            for scope, name in names:
                await add(store, name, scope)
            for scope_filter in (None, "y"):
                found: list[Key] = []
                after: Key | None = None
                while True:
                    page = await store.scan(ACTORS, scope=scope_filter, after=after, limit=size)
                    found += [row.key for row in page]
                    if len(page) < size:
                        break
                    after = page[-1].key
                assert found == sorted(Key(s, n) for s, n in names if scope_filter in (None, s))

    trio.run(check)


async def test_rows_are_listed_by_owner(store: Store) -> None:
    def assign(tx: object) -> None:
        for n, owner in enumerate(["w1", "w2", "w1"]):
            message = pb.ActorAssignment(actor_template_ref=pb.ObjectRef(name=owner))
            tx.insert(ASSIGNMENTS, Key("", f"a{n}"), message)  # type: ignore[attr-defined]

    await store.transact(assign)
    assert [r.key.name for r in await store.scan_owned(ASSIGNMENTS, "w1")] == ["a0", "a2"]
    assert await store.scan_owned(ASSIGNMENTS, "w3") == []


async def test_rows_that_are_due_come_earliest_first_and_follow_their_changes(store: Store) -> None:
    timed = Kind("timed", pb.Actor, due=lambda a: a.wake_time.seconds if a.HasField("wake_time") else None)

    def at(seconds: int | None) -> pb.Actor:
        value = pb.Actor()
        if seconds is not None:
            value.wake_time.seconds = seconds
        return value

    for name, seconds in (("late", 30), ("never", None), ("early", 10), ("middle", 20)):
        await store.transact(lambda tx: tx.insert(timed, Key("s", name), at(seconds)))
    assert [row.key.name for row in await store.scan_due(timed, 25)] == ["early", "middle"]
    assert [row.key.name for row in await store.scan_due(timed, 99, limit=1)] == ["early"]
    early = await store.get(timed, Key("s", "early"))
    assert early is not None
    await store.transact(lambda tx: tx.update(timed, early.key, at(None), uid=early.uid, version=early.version))
    await store.transact(lambda tx: tx.delete(timed, Key("s", "middle")))
    assert await store.scan_due(timed, 25) == []


async def test_a_file_of_an_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    with apsw.Connection(str(tmp_path / "old.db")) as old:
        old.execute(MIGRATIONS[0])
        old.execute("PRAGMA user_version=1")
        body = actor().SerializeToString()
        old.execute("INSERT INTO rows VALUES ('actor','s','a','u',3,NULL,?)", (body,))
    old.close()
    async with open_sqlite(tmp_path / "old.db") as store:
        row = await store.get(ACTORS, Key("s", "a"))
        assert row is not None and row.version == 3
        assert await store.scan_due(ACTORS, 99) == []


async def test_a_watch_lists_marks_then_follows(store: Store) -> None:
    await add(store, "a")
    await add(store, "z", "other")
    async with store.watch(ACTORS, scope="s") as feed:
        first = await anext(feed)
        assert (first.type, first.row and first.row.key.name) == (EventType.ADDED, "a")
        assert (await anext(feed)).type is EventType.BOOKMARK
        await add(store, "b")
        await add(store, "zz", "other")
        await store.transact(lambda tx: tx.delete(ACTORS, Key("s", "a")))
        added, deleted = await anext(feed), await anext(feed)
        assert (added.type, added.row and added.row.key.name) == (EventType.ADDED, "b")
        assert (deleted.type, deleted.row and deleted.row.key.name) == (EventType.DELETED, "a")
        with trio.move_on_after(0.05) as scope:
            await anext(feed)
        assert scope.cancelled_caught


async def test_a_listing_during_many_changes_misses_none(store: Store) -> None:
    for number in range(600):
        await add(store, f"a{number:04}")
    told: set[str] = set()
    async with store.watch(ACTORS) as feed:
        async for event in feed:
            if event.row is None:
                break
            if not told:  # more than a page of the feed, while the listing is under way, and behind where it is

                def more(tx: Tx) -> None:
                    for number in range(1500):
                        tx.insert(ACTORS, Key("s", f"A{number:04}"), actor(f"A{number:04}"))

                await store.transact(more)
            told.add(event.row.key.name)
    assert len(told) == 2100


async def test_a_watch_of_a_quiet_kind_outlives_the_feed_of_the_others(tmp_path: Path) -> None:
    now = 1000.0
    quiet = Kind("quiet", pb.Actor, watched=True)
    async with open_sqlite(tmp_path / "a.db", now=lambda: now, threaded=False) as store:
        async with store.watch(quiet) as feed:
            assert (await anext(feed)).type is EventType.BOOKMARK
            async with trio.open_nursery() as nursery:
                found: list[str] = []

                async def follow() -> None:
                    event = await anext(feed)
                    assert event.row is not None
                    found.append(event.row.key.name)

                nursery.start_soon(follow)
                for number in range(5):
                    await trio.testing.wait_all_tasks_blocked()
                    now += 1000
                    await add(store, f"a{number}")
                await store.transact(lambda tx: tx.insert(quiet, Key("s", "q"), actor("q")))
            assert found == ["q"]


async def test_a_watch_resumes_after_a_restart_without_a_gap(opener: Open) -> None:
    async with opener() as store:
        async with store.watch(ACTORS) as feed:
            token = (await anext(feed)).resume_token
    async with opener() as store:
        await add(store, "a")
        async with store.watch(ACTORS, resume_token=token) as feed:
            event = await anext(feed)
            assert event.type is EventType.ADDED and event.row is not None and event.row.key.name == "a"


async def test_an_expired_or_foreign_resume_token_is_out_of_range(tmp_path: Path) -> None:
    now = 1000.0
    async with open_sqlite(tmp_path / "a.db", now=lambda: now, threaded=False) as store:
        async with store.watch(ACTORS) as feed:
            token = (await anext(feed)).resume_token
        await add(store, "a")
        now += 3600
        await add(store, "b")  # trims
        await add(store, "c")
        with pytest.raises(OutOfRange):
            async with store.watch(ACTORS, resume_token=token) as feed:
                await anext(feed)
        with pytest.raises(OutOfRange):
            beyond = store._token(10**40)
            async with store.watch(ACTORS, resume_token=beyond) as feed:
                await anext(feed)
        with pytest.raises(OutOfRange):
            async with store.watch(ACTORS, resume_token="bm90LW91cnM") as feed:
                await anext(feed)


async def test_a_lease_has_one_holder_and_its_fence_stops_the_late_one(tmp_path: Path) -> None:
    now = 1000.0
    async with open_sqlite(tmp_path / "a.db", now=lambda: now, threaded=False) as store:
        first = await store.acquire_lease("k", "one", 30)
        assert first is not None and await store.acquire_lease("k", "two", 30) is None
        assert await store.renew_lease(first, 30)
        now += 31
        await store.transact(lambda tx: tx.require_lease(first))  # expired, but nobody took it
        second = await store.acquire_lease("k", "two", 30)
        assert second is not None and second.fence > first.fence
        with pytest.raises(Aborted):
            await store.transact(lambda tx: tx.require_lease(first))
        assert not await store.renew_lease(first, 30)
        await store.release_lease(first)  # the late holder's release must not free it
        assert await store.acquire_lease("k", "three", 30) is None
        await store.release_lease(second)
        third = await store.acquire_lease("k", "three", 30)
        assert third is not None and third.fence > second.fence


async def test_leases_end_with_the_process_that_held_them(opener: Open) -> None:
    async with opener() as store:
        first = await store.acquire_lease("k", "one", 3600)
    async with opener() as store:
        second = await store.acquire_lease("k", "two", 30)
        assert first is not None and second is not None and second.fence > first.fence


async def test_acknowledged_writes_are_there_after_reopening(opener: Open) -> None:
    async with opener() as store:
        await add(store, "a")
    async with opener() as store:
        assert await store.get(ACTORS, Key("s", "a")) is not None


async def test_a_second_process_is_kept_out(opener: Open) -> None:
    async with opener():
        with pytest.raises(FailedPrecondition, match="another process"):
            async with opener():
                pass


async def test_a_damaged_or_newer_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with open_sqlite(path, threaded=False) as store:
        for n in range(200):
            await add(store, f"n{n}")
    raw = bytearray(path.read_bytes())
    raw[4096 * 3 : 4096 * 3 + 2000] = b"\xff" * 2000
    path.write_bytes(raw)
    with pytest.raises(DataLoss, match=r"a\.db"):
        async with open_sqlite(path, threaded=False):
            pass
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(DataLoss):
        async with open_sqlite(path, threaded=False):
            pass
    newer = tmp_path / "b.db"
    db = apsw.Connection(str(newer))
    db.execute("PRAGMA user_version=999")
    db.close()
    with pytest.raises(FailedPrecondition, match="newer ate"):
        async with open_sqlite(newer, threaded=False):
            pass


@pytest.mark.parametrize("threaded", [True, False], ids=["file", "inline"])
async def test_a_transaction_that_sqlite_rolls_back_by_itself_says_the_disk_is_full(
    tmp_path: Path, threaded: bool
) -> None:
    """With a bound on pages the insert itself fails, and takes the whole transaction and its savepoints along."""
    async with open_sqlite(tmp_path / "a.db", threaded=threaded) as store:
        await add(store, "before")
        (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
        store._writer.execute(f"PRAGMA max_page_count={pages}")

        async def too_much(name: str) -> None:
            with pytest.raises(ResourceExhausted, match=r"a\.db is full: free some space"):
                await store.transact(lambda tx: tx.insert(ACTORS, Key("s", name), actor("x" * (64 << 10))))

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(too_much, f"n{number}")
        assert [row.key.name for row in await store.scan(ACTORS)] == ["before"]
        store._writer.execute("PRAGMA max_page_count=100000")
        await add(store, "after")
    async with open_sqlite(tmp_path / "a.db", threaded=threaded) as store:
        assert [row.key.name for row in await store.scan(ACTORS)] == ["after", "before"]


@pytest.mark.parametrize("threaded", [True, False], ids=["file", "inline"])
async def test_a_store_on_a_full_disk_says_so_keeps_what_it_has_and_goes_on_with_space(
    tmp_path: Path, threaded: bool
) -> None:
    with small_disk(tmp_path / "small", "2m") as small:
        async with open_sqlite(small / "a.db", threaded=threaded) as store:
            acknowledged = set()
            with pytest.raises(ResourceExhausted, match=r"small/a\.db is full: free some space"):
                for number in range(10_000):
                    await store.transact(lambda tx: tx.insert(ACTORS, Key("s", f"n{number}"), actor("x" * 9000)))
                    acknowledged.add(f"n{number}")
            assert {row.key.name for row in await store.scan(ACTORS)} == acknowledged != set()
            for _ in range(3):
                with pytest.raises(AteError):
                    await store.transact(lambda tx: tx.insert(ACTORS, Key("s", "large"), actor("x" * (2 << 20))))
            await trio.run_process(["mount", "-o", "remount,size=32m", str(small)])
            await add(store, "after")
        async with open_sqlite(small / "a.db", threaded=threaded) as store:
            assert {row.key.name for row in await store.scan(ACTORS)} == {*acknowledged, "after"}


async def test_a_store_that_cannot_be_made_for_want_of_space_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as small:
        (small / "ballast").write_bytes(bytes(56 << 10))
        with pytest.raises(ResourceExhausted, match=r"small/a\.db is full: free some space"):
            async with open_sqlite(small / "a.db"):
                pass
