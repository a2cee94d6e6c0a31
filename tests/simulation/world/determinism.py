"""Makes a run repeat itself from its seed: scheduling, identifiers, and threads that run where they are called."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import trio
import trio._core._run as scheduler

from tests.simulation.world.process import gate


@contextlib.contextmanager
def deterministic(rng: random.Random, disk_fault: Callable[[], None]) -> Iterator[None]:
    """`disk_fault` is called before work that would run in a thread (which is disk work), and may raise OSError."""

    async def inline(
        sync_fn: Callable[..., Any], *args: Any, limiter: Any = None, abandon_on_cancel: bool = False, **_: Any
    ) -> Any:
        await trio.lowlevel.checkpoint_if_cancelled()
        await gate()
        disk_fault()
        result = sync_fn(*args)
        await trio.lowlevel.cancel_shielded_checkpoint()
        await gate()
        return result

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    began = time.perf_counter()
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (scheduler, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
            (scheduler, "_r", random.Random(rng.getrandbits(32))),
            (trio.to_thread, "run_sync", inline),
            (uuid, "uuid4", uuid4),
            (secrets, "token_hex", lambda n=8: rng.getrandbits(8 * n).to_bytes(n, "big").hex()),
            (secrets, "token_bytes", lambda n=8: rng.getrandbits(8 * n).to_bytes(n, "big")),
            (time, "perf_counter", lambda: began),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        yield
