"""Promise: a node's images stay within their bound, and nothing goes that an actor runs from or that was imported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from ate.asyncio_room import open_asyncio_room
from ate.node.image_collection import collect_images, images_in_use
from ate.node.images import ImageStore, build_pause_image, import_path
from ate.node.local_state import CHECKPOINTED, IDLE, RUNNING, LocalState
from ate.proto import node_pb2
from ate.store import open_sqlite
from tests.image_tars import Item, image, layout, tar
from tests.system import servers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="unpacking owners needs root")


async def test_only_images_that_nobody_needs_and_a_registry_has_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = servers.registry(tmp_path)
    server.start()
    directory = tmp_path / "images"
    files = [tar([Item(f"file{number}", value="x" * 100_000)]) for number in range(4)]
    pulled = [servers.push(server, f"app{n}", image([files[n]])) for n in range(3)]
    try:
        async with open_asyncio_room() as room, open_sqlite(tmp_path / "store.db") as store:
            images, state = ImageStore(directory, room), LocalState(store)
            for reference in pulled:
                await images.ensure(reference)
            imported = await import_path(directory, layout(image([files[3]]), tmp_path / "layout", "x.y/i"))
            pause = await build_pause_image(directory)
            for uid, phase, reference in (
                ("a", RUNNING, pulled[0]),
                ("b", CHECKPOINTED, pulled[1]),
                ("c", IDLE, pulled[2]),
            ):
                await state.put(node_pb2.LocalActor(actor_uid=uid, phase=phase, images=[reference], worker_uid="w"))
            await state.change("a", lambda actor: setattr(actor, "runtime_json", '{"pauseImage": "x@sha256:y"}'))
            assert await images_in_use(state) == {pulled[0], pulled[1], "x@sha256:y"}

            later = time.time() + 3600
            monkeypatch.setattr("ate.node.images.store.time.time", lambda: later)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: collect_images(images, state, 0, interval=0.01))
                with trio.fail_after(30):
                    while (directory / "blobs/sha256" / pulled[2].rpartition(":")[2]).exists():
                        await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            server.kill()
            for reference in (pulled[0], pulled[1], *imported, pause):
                assert (await images.ensure(reference)).layers, "it is still here, and there is no registry"
    finally:
        server.kill()
