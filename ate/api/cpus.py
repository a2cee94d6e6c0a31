"""CPU features: what the nodes have, and whether a memory image may run there.

A program that looked at its CPU once goes on using what it found, so memory may only be restored where every feature
of the CPU it was saved on is there. Sets of features are stored once, under an id made from them; snapshots and nodes
refer to them by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ate.api.kinds import CPU_FEATURES, NODES
from ate.proto import node_pb2
from ate.store import Key, Store, Tx


def features_id(features: Iterable[str]) -> str:
    """The id of a set of features; empty for none."""
    known = sorted(set(features))
    return hashlib.sha256(" ".join(known).encode()).hexdigest()[:16] if known else ""


class Cpus:
    """In memory, loaded from the store at the start and told of every registration."""

    def __init__(self) -> None:
        self._sets: dict[str, frozenset[str]] = {}
        self._nodes: dict[str, str] = {}

    async def load(self, store: Store) -> None:
        for sets in await store.scan(CPU_FEATURES):
            self._sets[sets.key.name] = frozenset(sets.value.features)
        after: Key | None = None
        while page := await store.scan(NODES, after=after):
            self._nodes |= {row.key.name: row.value.cpu_features_id for row in page}
            after = page[-1].key

    async def register(self, store: Store, node: str, features: Iterable[str]) -> tuple[str, bool]:
        """The id of the node's set, which is stored when it is new; and whether the node had another one before."""
        known = frozenset(features)
        id_ = features_id(known)
        if id_ and id_ not in self._sets:

            def insert(tx: Tx) -> None:
                if tx.get(CPU_FEATURES, Key("", id_)) is None:
                    row = node_pb2.CpuFeatures(id=id_, features=sorted(known))
                    tx.insert(CPU_FEATURES, Key("", id_), row)

            await store.transact(insert)
            self._sets[id_] = known
        changed = self._nodes.get(node, "") != id_
        self._nodes[node] = id_
        return id_, changed

    def of_node(self, node: str) -> str:
        """Id of the node's set of CPU features; empty when it told none."""
        return self._nodes.get(node, "")

    def fits(self, needed: str, has: str) -> bool:
        """Whether a memory image taken with the set `needed` runs on a CPU with the set `has`; unknown ones may try."""
        if needed in ("", has) or needed not in self._sets or has not in self._sets:
            return True
        return self._sets[needed] <= self._sets[has]

    def missing(self, needed: str) -> str:
        """For people: the features of `needed` that the best node lacks."""
        wanted = self._sets.get(needed, frozenset())
        lacks = [sorted(wanted - self._sets.get(id_, frozenset())) for id_ in set(self._nodes.values())]
        fewest = sorted(lacks, key=len)[0] if lacks else sorted(wanted)
        return ", ".join(fewest) or "none known"
