"""Keeps the node's images within bounds: what no actor here needs goes, least recently used first. Used by the atelet.

In use are the images of every actor that is being started, runs or waits for its upload here; a sleeping actor's may
be pulled again.
"""

from __future__ import annotations

import json

import trio

from ate.errors import AteError
from ate.log import Logger
from ate.node.images import ImageStore
from ate.node.local_state import IDLE, LocalState
from ate.proto import node_pb2

log = Logger("ate.node")

INTERVAL = 60.0
_PAGE = 500


async def collect_images(images: ImageStore, state: LocalState, max_bytes: int, *, interval: float = INTERVAL) -> None:
    """Looks every `interval` seconds, until cancelled."""
    while True:
        await trio.sleep(interval)
        try:
            await images.collect(await images_in_use(state), max_bytes)
        except (AteError, OSError) as error:
            log.warning("images not collected, trying again", error=str(error))


async def images_in_use(state: LocalState) -> set[str]:
    """References of the images, pause images among them, that actors of this node run from."""
    found: set[str] = set()
    after = ""
    while page := await state.page(after, _PAGE):
        after = page[-1].actor_uid
        for actor in page:
            if actor.phase != IDLE:
                found |= _images_of(actor)
    return found


def _images_of(actor: node_pb2.LocalActor) -> set[str]:
    pause = json.loads(actor.runtime_json).get("pauseImage", "") if actor.runtime_json else ""
    return {*actor.images, pause} - {""}
