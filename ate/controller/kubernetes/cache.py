"""What the API server has of one kind, kept here by a list and a watch that resumes where it broke off.

A dropped watch goes on from the last version seen (bookmarks keep that fresh); where the server no longer has that
version all is listed again, and what vanished meanwhile is told of as gone. Pauses after failures grow and vary, so
that a server that comes back is not met by everybody at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

import trio

from ate.controller.kubernetes.client import KubeClient
from ate.controller.kubernetes.resources import Name, Object, Resource, name_of, version_of
from ate.errors import AteError, OutOfRange
from ate.log import Logger

log = Logger("ate.controller")

FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
_SHORT_WATCH: Final = 1.0
"""A watch that ends sooner than so many seconds after it began counts as a failure: no broken server is stormed."""

OnChange = Callable[[Name, Object | None, Object | None], None]
"""(name, before, now); None where there is no such object."""


class Cache:
    """`run` in a nursery; `synced` is set once everything was seen. Objects are shared: do not change them."""

    def __init__(
        self, client: KubeClient, resource: Resource, on_change: OnChange, *, namespace: str = "", labels: str = ""
    ) -> None:
        self._client, self._resource, self._on_change = client, resource, on_change
        self._namespace, self._labels = namespace, labels
        self._objects: dict[Name, Object] = {}
        self._version = ""
        self._pause = FIRST_PAUSE
        self.synced = trio.Event()

    def get(self, name: Name) -> Object | None:
        return self._objects.get(name)

    def __iter__(self) -> Iterator[Object]:
        return iter(list(self._objects.values()))

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self._list()
                began = trio.current_time()
                await self._client.watch(
                    self._resource, self._version, self._event, self._namespace, labels=self._labels
                )
                if trio.current_time() > began + _SHORT_WATCH:
                    continue
            except OutOfRange:
                log.info("the version watched from is gone, listing again", kind=self._resource.kind)
                self._version = ""
            except AteError as error:
                log.warning("a watch broke off, trying again", kind=self._resource.kind, error=error.message)
            await trio.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _list(self) -> None:
        found, version = await self._client.list(self._resource, self._namespace, labels=self._labels)
        listed = {name_of(each): each for each in found}
        for name in [name for name in self._objects if name not in listed]:
            self._on_change(name, self._objects.pop(name), None)
        for name, each in listed.items():
            self._put(name, each)
        self._version = version
        self.synced.set()

    def _event(self, kind: str, found: Object) -> None:
        if kind in ("ADDED", "MODIFIED"):
            self._put(name_of(found), found)
        elif kind == "DELETED":
            self._on_change(name_of(found), self._objects.pop(name_of(found), None), None)
        self._version = version_of(found)
        self._pause = FIRST_PAUSE  # a server that tells of events works

    def _put(self, name: Name, found: Object) -> None:
        before = self._objects.get(name)
        if before is not None and version_of(before) == version_of(found):
            return
        self._objects[name] = found
        self._on_change(name, before, found)
