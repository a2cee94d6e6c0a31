"""Resume of a suspended actor: our Restore until the first 200 through the tunnel, beside a bare `runsc restore`.

Ours is measured plain and with a sandbox prepared ahead; the bare command gets a ready network, root and bundle and is
polled for its first 200 as soon as it returns. Rounds alternate in one run, so that a noisy machine hurts all alike.
Needs root and runsc. Ends with one JSON line; `ratio` is plain over bare, `prepared_ratio` prepared over bare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.bare_restore import Bare
from tests.system import ateom_process, rootfs
from tests.system.ateom_process import Actor, Ateom

AIM = 1.25
PAUSE = 1.2  # seconds between rounds: time enough to prepare a sandbox and for old ones to be gone


async def ours(ateom: Ateom, actor: Actor, results: list[float], saves: list[float]) -> None:
    begun = time.perf_counter()
    saved = await ateom.stub.CheckpointWorkload(actor.checkpoint())
    saves.append((time.perf_counter() - begun) * 1e3)
    actor.stage(saved.snapshot_files)
    await trio.sleep(PAUSE)
    begun = time.perf_counter()
    await ateom.stub.RestoreWorkload(actor.restore())
    assert (await ateom.http(actor, "/healthz", stream=await ateom.connect()))[0] == 200
    results.append((time.perf_counter() - begun) * 1e3)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runsc", type=Path, default=Path(shutil.which("runsc") or "/usr/bin/runsc"))
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ate", dir="/tmp"))
    times: dict[str, list[float]] = {"bare": [], "plain": [], "prepared": []}
    saves: list[float] = []
    try:
        async with contextlib.AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            workers = {}
            for name in ("plain", "prepared"):
                ateom = await stack.enter_async_context(
                    ateom_process.start(directory / name, prepare=name == "prepared")
                )
                actor = Actor(ateom.root, options.runsc).prepare()
                await ateom.stub.RunWorkload(actor.run())
                workers[name] = (ateom, actor)
            go, rounds = trio.open_memory_channel[int](0)
            bare = Bare(options.runsc, directory / "bare", rootfs.python(), tuple(rootfs.COUNTER_ARGV), "/healthz")
            (directory / "bare").mkdir()
            nursery.start_soon(bare.run, rounds, times["bare"])
            for number in range(options.rounds):
                await go.send(number)
                await trio.sleep(PAUSE)
                for name, (ateom, actor) in workers.items():
                    await ours(ateom, actor, times[name], saves)
                    await trio.sleep(PAUSE)
            await go.aclose()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, values in times.items():
        print(f"{name:9} restore -> first 200: median {medians[name]:5.0f} ms  ({min(values):.0f}..{max(values):.0f})")
    print(f"checkpoint RPC: median {statistics.median(saves):.0f} ms")
    ratio = medians["plain"] / medians["bare"]
    figures = {
        "runsc": str(options.runsc),
        "rounds": options.rounds,
        **{f"{name}_ms": round(value, 1) for name, value in medians.items()},
        "prepared_ratio": round(medians["prepared"] / medians["bare"], 3),
    }
    line = {"bench": "resume", "figures": figures, "peer": "runsc restore", "ratio": round(ratio, 3), "aim": AIM}
    print(json.dumps({**line, "holds": ratio <= AIM}))


if __name__ == "__main__":
    trio.run(main)
