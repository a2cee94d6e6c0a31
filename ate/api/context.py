"""What every part of the api role works with: the store, the nodes, object storage, workers in memory, running work."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ate.api.cpus import Cpus
from ate.api.nodes import Nodes
from ate.api.scheduling import Affinity
from ate.api.worker_cache import WorkerCache
from ate.api.workflows.operations import Operations
from ate.store import Store


class Objects(Protocol):
    """The part of object storage the control plane needs; `ate.objects` is the real one."""

    async def delete_prefix(self, uri: str) -> None:
        """Removes every object below `uri`; nothing there is no error."""

    async def copy_prefix(self, source_uri: str, target_uri: str) -> None:
        """Copies every object below `source_uri`, the manifest last; repeatable."""

    async def delete_other_snapshots(self, prefix_uri: str, keep_uri: str) -> None:
        """Removes every snapshot below `prefix_uri` except the one at `keep_uri`."""


class LastWords:
    """Why actors ended, as their workers told it, until the loss is dealt with. In memory: only words can get lost."""

    def __init__(self, most: int = 1000) -> None:
        self._most = most
        self._words: OrderedDict[str, str] = OrderedDict()

    def keep(self, actor_uid: str, reason: str) -> None:
        self._words[actor_uid] = reason
        while len(self._words) > self._most:
            self._words.popitem(last=False)

    def take(self, actor_uid: str, otherwise: str) -> str:
        """The reason told for the actor, once; `otherwise` where none was."""
        return self._words.pop(actor_uid, otherwise)


@dataclass
class Context:
    """Made once by `ate.api.server`; nothing in it is global."""

    store: Store
    nodes: Nodes
    objects: Objects
    workers: WorkerCache
    operations: Operations
    cpus: Cpus = field(default_factory=Cpus)
    affinity: Affinity = field(default_factory=Affinity)
    last_words: LastWords = field(default_factory=LastWords)
    wall_clock: Callable[[], float] = time.time
