"""The platform's durable state: rows of protobuf messages under compare-and-swap, leases, and a change feed.

`base.py` is the interface every backend keeps and nothing above may look behind; `sqlite.py` is the backend of one
process. `tests/unit/test_store.py` is the conformance suite a further backend has to pass.
"""

from ate.store.base import Event, EventType, Key, Kind, Lease, Row, Store, Tx
from ate.store.sqlite import open_sqlite

__all__ = ["Event", "EventType", "Key", "Kind", "Lease", "Row", "Store", "Tx", "open_sqlite"]
