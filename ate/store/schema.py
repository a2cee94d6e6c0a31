"""The SQLite schema, as the list of steps from an empty file to today. A step that has been released never changes."""

from __future__ import annotations

from typing import Final

MIGRATIONS: Final[tuple[str, ...]] = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    INSERT INTO meta(name, value) VALUES ('fence', 0);
    CREATE TABLE rows (
      kind TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL,
      uid TEXT NOT NULL, version INTEGER NOT NULL, owner TEXT, body BLOB NOT NULL,
      UNIQUE (kind, scope, name)
    );
    CREATE INDEX rows_by_owner ON rows (kind, owner, scope, name) WHERE owner IS NOT NULL;
    CREATE TABLE leases (
      key TEXT PRIMARY KEY, holder TEXT NOT NULL, fence INTEGER NOT NULL, expires REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE outbox (
      seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL,
      uid TEXT NOT NULL, version INTEGER NOT NULL, type INTEGER NOT NULL, body BLOB NOT NULL, at REAL NOT NULL
    );
    CREATE INDEX outbox_by_age ON outbox (at);
    """,
    """
    ALTER TABLE rows ADD COLUMN due REAL;
    CREATE INDEX rows_by_due ON rows (kind, due) WHERE due IS NOT NULL;
    """,
    "DROP TABLE leases;",
)
