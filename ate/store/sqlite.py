"""The Store on one SQLite file, for one process: WAL, `synchronous=FULL`, one writer thread with group commit.

Writers submit functions; the writer thread takes all that wait, runs each in a savepoint of one transaction, commits
once, and only then answers (measured/python-stack.md section 3: 3k writes/s alone, 20k/s with 64 waiting). Point reads
run on the calling thread (5-10 us), lists and watches in a worker thread. A file lock keeps a second process out.
"""

from __future__ import annotations

import base64
import fcntl
import os
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw
import outcome
import trio
from google.protobuf.message import Message

from ate.errors import DataLoss, FailedPrecondition, OutOfRange, ResourceExhausted, Unavailable
from ate.store import rows
from ate.store.base import Event, EventType, Key, Kind, Lease, Row, Store, Tx
from ate.store.schema import MIGRATIONS

M = TypeVar("M", bound=Message)
T = TypeVar("T")

RETENTION_SECONDS = 15 * 60.0
"""How long changes stay in the outbox; the reference keeps 15 minutes (section 10)."""
FEED_PAGE = 1024
FENCES = 10_000
"""How many fences are reserved in the file at a time; a restart skips what is left of them."""
BATCH = 256
"""Most submissions in one group commit: bounds how long the first one waits for the last."""
CHECKED_AT_OPEN_BYTES = 256 << 20
"""Larger files are checked in the background after opening, so that a restart serves at once."""


def _prepare(connection: apsw.Connection) -> None:
    connection.set_busy_timeout(5000)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")


def _migrate(connection: apsw.Connection, path: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise FailedPrecondition(
            f"{path} was written by a newer ate (schema {version}, this one knows {len(MIGRATIONS)}): upgrade this ate"
        )
    for number, script in enumerate(MIGRATIONS[version:], version + 1):
        with connection:
            connection.execute(script)
            connection.execute(f"PRAGMA user_version={number}")


def _check(connection: apsw.Connection, path: str) -> None:
    try:
        verdicts = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
    except (apsw.FullError, apsw.IOError):
        raise  # the disk's trouble, which says nothing about the file
    except apsw.Error as error:
        verdicts = [str(error)]
    if verdicts != ["ok"]:
        raise DataLoss(f"store {path} is damaged ({'; '.join(verdicts)}): restore it from a backup")


@dataclass
class _Submission:
    change: Callable[[Tx], Any]
    task: trio.lowlevel.Task
    result: outcome.Outcome[Any] | None = None


@dataclass
class SqliteStore(Store):
    """See `open_sqlite`."""

    path: str
    _writer: apsw.Connection
    _reader: apsw.Connection
    _now: Callable[[], float]
    _threaded: bool
    _queue: queue.SimpleQueue[_Submission | None] = field(default_factory=queue.SimpleQueue)
    _changed: trio.Event = field(default_factory=trio.Event)
    _last_trim: float = 0.0
    page_key: bytes = b""
    _id: str = ""
    _leases: dict[str, rows.HeldLease] = field(default_factory=dict)
    _fence: int = 0
    _fences_reserved: int = 0
    _list_lock: threading.Lock = field(default_factory=threading.Lock)
    _lister: apsw.Connection | None = None

    def _load_meta(self) -> None:
        self._fence = self._fences_reserved = self._writer.execute(
            "SELECT value FROM meta WHERE name='fence'"
        ).fetchone()[0]
        self.page_key = self._meta("page_key", lambda: secrets.token_bytes(32))
        self._id = self._meta("store_id", lambda: secrets.token_hex(4).encode()).decode()

    def _meta(self, name: str, make: Callable[[], bytes]) -> bytes:
        with self._writer:
            self._writer.execute("INSERT OR IGNORE INTO meta(name, value) VALUES (?,?)", (name, make()))
            found: bytes = self._writer.execute("SELECT value FROM meta WHERE name=?", (name,)).fetchone()[0]
        return bytes(found)

    # -- writes ---------------------------------------------------------------------------------------------------

    async def transact(self, change: Callable[[Tx], T]) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        submission = _Submission(change, trio.lowlevel.current_task())
        if self._threaded:
            self._queue.put(submission)
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        else:
            self._commit([submission])
            self._announce()
            await trio.lowlevel.cancel_shielded_checkpoint()
        assert submission.result is not None
        result: T = submission.result.unwrap()
        return result

    def _commit(self, batch: list[_Submission]) -> None:
        """Runs a batch in one transaction. A failing COMMIT or disk fails every submission of it."""
        tx = rows.SqliteTx(self._writer, self._now, self._leases)
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for submission in batch:
                self._writer.execute("SAVEPOINT one")
                try:
                    submission.result = outcome.Value(submission.change(tx))
                except BaseException as error:
                    if self._writer.get_autocommit():
                        raise  # SQLite has rolled all of it back by itself, as it does when the disk is full
                    self._writer.execute("ROLLBACK TO one")
                    submission.result = outcome.Error(_storage_error(self.path, error))
                self._writer.execute("RELEASE one")
            self._trim()
            self._writer.execute("COMMIT")
        except BaseException as error:
            with suppress(apsw.Error):  # a rollback ends the transaction even when the disk makes it fail
                if not self._writer.get_autocommit():
                    self._writer.execute("ROLLBACK")
            for submission in batch:
                submission.result = outcome.Error(_storage_error(self.path, error))

    def _trim(self) -> None:
        now = self._now()
        if now - self._last_trim > 60:
            self._last_trim = now
            self._writer.execute("DELETE FROM outbox WHERE at < ?", (now - RETENTION_SECONDS,))

    def _write_loop(self, token: trio.lowlevel.TrioToken) -> None:
        stop = False
        while not stop:
            batch: list[_Submission] = []
            item = self._queue.get()
            while True:
                if item is None:
                    stop = True
                    break
                batch.append(item)
                if len(batch) == BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._commit(batch)
                token.run_sync_soon(self._deliver, batch)

    def _deliver(self, batch: list[_Submission]) -> None:
        for submission in batch:
            trio.lowlevel.reschedule(submission.task)
        self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    # -- reads ----------------------------------------------------------------------------------------------------

    async def get(self, kind: Kind[M], key: Key) -> Row[M] | None:
        await trio.lowlevel.checkpoint()
        return rows.get(self._reader, kind, key)

    async def scan(
        self, kind: Kind[M], *, scope: str | None = None, after: Key | None = None, limit: int = 1000
    ) -> list[Row[M]]:
        return await self._in_lister(lambda db: rows.scan(db, kind, scope, after, limit))

    async def scan_owned(
        self, kind: Kind[M], owner: str, *, after: Key | None = None, limit: int = 1000
    ) -> list[Row[M]]:
        return await self._in_lister(lambda db: rows.scan_owned(db, kind, owner, after, limit))

    async def scan_due(self, kind: Kind[M], now: float, *, limit: int = 1000) -> list[Row[M]]:
        return await self._in_lister(lambda db: rows.scan_due(db, kind, now, limit))

    async def _in_lister(self, read: Callable[[apsw.Connection], T]) -> T:
        if not self._threaded:
            await trio.lowlevel.checkpoint()
            return read(self._reader)

        def locked() -> T:
            with self._list_lock, _explained(self.path):  # one at a time: the connection holds one statement's snapshot
                if self._lister is None:
                    lister = apsw.Connection(self.path)
                    _prepare(lister)
                    self._lister = lister
                return read(self._lister)

        return await trio.to_thread.run_sync(locked)

    def _close_lister(self) -> None:
        if self._lister is not None:
            self._lister.close()

    # -- the change feed ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watch(
        self, kind: Kind[M], *, scope: str | None = None, resume_token: str = ""
    ) -> AsyncIterator[AsyncIterator[Event[M]]]:
        feed = self._feed(kind, scope, resume_token)
        try:
            yield feed
        finally:
            await feed.aclose()

    async def _feed(self, kind: Kind[M], scope: str | None, token: str) -> Any:
        if not kind.watched:
            raise ValueError(f"kind {kind.name} is not watched")
        if token:
            seq = self._position(token)
        else:
            # The position is read first: a change between it and the listing shows up twice, never not at all; the
            # second sighting is dropped by its version.
            seq = await self._in_lister(_newest)
            seen: dict[Key, tuple[str, int]] = {}
            after: Key | None = None
            while True:
                page = await self.scan(kind, scope=scope, after=after, limit=500)
                for row in page:
                    seen[row.key] = (row.uid, row.version)
                    yield Event(EventType.ADDED, row, "")
                if len(page) < 500:
                    break
                after = page[-1].key
            caught_up = await self._in_lister(_newest)
            while seq < caught_up:
                batch, upto = await self._changes(kind, scope, seq)
                for event_seq, event in batch:
                    assert event.row is not None
                    listed = seen.get(event.row.key)
                    newer = listed is None or listed[0] != event.row.uid or listed[1] < event.row.version
                    if event_seq <= caught_up and (newer or event.type is EventType.DELETED):
                        yield event
                seq = upto
            seq = caught_up
            yield Event(EventType.BOOKMARK, None, self._token(seq))
        while True:
            changed = self._changed  # taken before looking, so that no commit is missed in between
            batch, upto = await self._changes(kind, scope, seq)
            for _, event in batch:
                yield event
            seq = upto
            if not batch:
                await changed.wait()

    async def _changes(self, kind: Kind[M], scope: str | None, seq: int) -> tuple[list[tuple[int, Event[M]]], int]:
        """The next changes after `seq`, and the position up to which there are no others of this kind and scope."""

        def read(db: apsw.Connection) -> tuple[list[tuple[int, Event[M]]], int]:
            with db:
                (oldest,) = db.execute("SELECT coalesce(min(seq), 0) FROM outbox").fetchone()
                (last,) = db.execute(
                    "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name='outbox'),0)"
                ).fetchone()
                if seq + 1 < oldest or (oldest == 0 and seq < last):
                    raise OutOfRange("the resume token is older than the change feed: watch again without one")
                entries = db.execute(
                    "SELECT seq, scope, name, uid, version, type, body FROM outbox WHERE seq>? AND kind=?"
                    + (" AND scope=?" if scope is not None else "")
                    + " ORDER BY seq LIMIT ?",
                    (seq, kind.name, *((scope,) if scope is not None else ()), FEED_PAGE),
                ).fetchall()
            found = []
            for at, row_scope, name, uid, version, type_, body in entries:
                row = Row(Key(row_scope, name), uid, version, kind.message.FromString(body))
                found.append((at, Event(EventType(type_), row, self._token(at))))
            return found, found[-1][0] if len(found) == FEED_PAGE else last

        return await self._in_lister(read)

    def _token(self, seq: int) -> str:
        return base64.urlsafe_b64encode(f"{self._id}:{seq}".encode()).decode().rstrip("=")

    def _position(self, token: str) -> int:
        try:
            store, _, seq = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode().partition(":")
            if store == self._id and seq.isdecimal() and len(seq) < 19:
                return int(seq)
        except ValueError:
            pass
        raise OutOfRange("the resume token is not of this store: watch again without one")

    # -- leases ---------------------------------------------------------------------------------------------------

    # In memory: the file lock says that no other process is at work here, so whoever held a lease before is dead. Only
    # the fences must go on rising, so a stretch of them is reserved in the file ahead of use.

    async def acquire_lease(self, key: str, holder: str, ttl: float) -> Lease | None:
        if self._fence >= self._fences_reserved:
            await self._reserve_fences()
        else:
            await trio.lowlevel.checkpoint()
        now = self._now()
        held = self._leases.get(key)
        if held is not None and held.expires > now:
            return None
        self._fence += 1
        lease = Lease(key, holder, self._fence)
        self._leases[key] = rows.HeldLease(lease, now + ttl)
        return lease

    async def renew_lease(self, lease: Lease, ttl: float) -> bool:
        await trio.lowlevel.checkpoint()
        held = self._leases.get(lease.key)
        if held is None or held.lease.fence != lease.fence:
            return False
        self._leases[lease.key] = rows.HeldLease(lease, self._now() + ttl)
        return True

    async def release_lease(self, lease: Lease) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        held = self._leases.get(lease.key)
        if held is not None and held.lease.fence == lease.fence:
            del self._leases[lease.key]

    async def _reserve_fences(self) -> None:
        upto = max(self._fence, self._fences_reserved) + FENCES

        def reserve(tx: Tx) -> None:
            self._writer.execute("UPDATE meta SET value=? WHERE name='fence'", (upto,))

        await self.transact(reserve)
        self._fences_reserved = max(upto, self._fences_reserved)

    async def clear(self) -> None:
        def wipe(tx: Tx) -> None:
            for table in ("rows", "outbox"):
                self._writer.execute(f"DELETE FROM {table}")

        await self.transact(wipe)
        self._leases.clear()


_FULL_BYTES = 1 << 20
"""Less free space than this explains an I/O error: SQLite says no more when its shared memory file cannot grow."""


def _storage_error(path: str, error: BaseException) -> BaseException:
    """The error of our tree for what a failing disk makes SQLite raise; any other error as it is."""
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and _is_full(path)):
        return ResourceExhausted(f"the disk of the store {path} is full: free some space, then try again")
    if isinstance(error, apsw.IOError):
        return Unavailable(f"the disk of the store {path} fails ({error}): try again, and look at the disk")
    return error


def _is_full(path: str) -> bool:
    try:
        free = os.statvfs(Path(path).parent)
    except OSError:
        return False
    return free.f_bavail * free.f_frsize < _FULL_BYTES


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        told = _storage_error(path, error)
        if told is error:
            raise
        raise told from error


def _newest(db: apsw.Connection) -> int:
    found = db.execute("SELECT seq FROM sqlite_sequence WHERE name='outbox'").fetchone()
    return int(found[0]) if found else 0


@asynccontextmanager
async def open_sqlite(
    path: Path | str, *, now: Callable[[], float] = time.time, threaded: bool = True
) -> AsyncIterator[SqliteStore]:
    """Opens (or makes) the store at `path`, whose folder must exist; `:memory:` needs `threaded=False`.

    Raises DataLoss when the file is damaged, FailedPrecondition when another process has it open or a newer ate wrote
    it. A write on a full disk is ResourceExhausted and changes nothing; with space again, the store goes on. With
    `threaded=False` everything runs on the calling thread: for simulations under a virtual clock.
    """
    path = str(path)
    in_file = path != ":memory:"
    with ExitStack() as held:
        if in_file:
            lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FailedPrecondition(f"the store {path} is open in another process: stop that one first")
        with _explained(path):
            writer = held.enter_context(closing(apsw.Connection(path)))
            try:
                _prepare(writer)
            except apsw.NotADBError:
                raise DataLoss(f"store {path} is damaged (not a database): restore it from a backup")
            if not in_file or Path(path).stat().st_size <= CHECKED_AT_OPEN_BYTES:
                _check(writer, path)
            _migrate(writer, path)
            reader = writer
            if in_file:
                reader = held.enter_context(closing(apsw.Connection(path)))
                _prepare(reader)
            store = SqliteStore(path, writer, reader, now, threaded)
            held.callback(store._close_lister)
            store._load_meta()
        if not threaded:
            yield store
            return
        async with trio.open_nursery() as nursery:
            if in_file and Path(path).stat().st_size > CHECKED_AT_OPEN_BYTES:
                nursery.start_soon(store._in_lister, lambda db: _check(db, path))
            thread = threading.Thread(
                target=store._write_loop, args=(trio.lowlevel.current_trio_token(),), name="store-writer"
            )
            thread.start()
            try:
                yield store
                nursery.cancel_scope.cancel()
            finally:
                store._queue.put(None)
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(thread.join)
