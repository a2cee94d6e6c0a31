"""Resume of a suspended actor: our Restore until the first 200 through the tunnel, beside a bare `runsc restore`.

Ours is measured plain and with a sandbox prepared ahead; the bare command gets a ready network, root and bundle and is
polled for its first 200 as soon as it returns. Rounds alternate in one run, so that a noisy machine hurts all alike.
Needs root and runsc. Ends with one JSON line; `ratio` is plain over bare, `prepared_ratio` prepared over bare.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from ate.node.gate import Probe, wait_until_ready
from ate.node.network import open_network_pool
from ate.node.sandbox import oci_spec
from ate.node.sandbox.cgroup import CgroupTree
from ate.node.sandbox.driver import ContainerSpec, SandboxSpec
from ate.node.sandbox.gvisor import GvisorDriver
from ate.node.sandbox.runsc import Runsc
from tests.system import ateom_process, rootfs
from tests.system.ateom_process import Actor, Ateom

AIM = 1.25
PAUSE = 1.2  # seconds between rounds: time enough to prepare a sandbox and for old ones to be gone


class Bare:
    """`runsc restore` with nothing of ours around it but the poll for its answer."""

    def __init__(self, binary: Path, directory: Path, install: str) -> None:
        self._runsc = Runsc(binary, directory / "s", facts_cache=rootfs.CACHE)
        self._driver = GvisorDriver(self._runsc, directory / "b", CgroupTree("", ()))
        self._directory, self._install, self._number = directory, install, 0

    def _spec(self, netns: Path) -> SandboxSpec:
        self._number += 1
        process = oci_spec.Process("app", command=tuple(rootfs.COUNTER_ARGV))
        config = oci_spec.build(process, oci_spec.ImageConfig())
        container = ContainerSpec("app", config, rootfs.python())
        return SandboxSpec(f"{self._install}-{self._number:04}", (container,), netns)

    async def run(self, rounds: trio.MemoryReceiveChannel[int], results: list[float]) -> None:
        probes = [Probe("app", "/healthz", 80)]
        async with open_network_pool(self._directory / "n", self._install, own_namespace=False) as pool:
            network = await pool.take()
            pool.activate(network)
            first = await self._driver.create(self._spec(network.netns))
            await self._driver.start(first)
            await wait_until_ready(probes)
            image = self._directory / "image"
            image.mkdir()
            await self._driver.checkpoint(first, image)
            await self._driver.terminate(first)
            async for _ in rounds:
                await pool.release(network)
                network = await pool.take()
                pool.activate(network)
                spec = self._spec(network.netns)
                begun = time.perf_counter()
                sandbox = await self._driver.restore(spec, image)
                await wait_until_ready(probes)
                results.append((time.perf_counter() - begun) * 1e3)
                await self._driver.terminate(sandbox)
            await pool.release(network)


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
            bare = Bare(options.runsc, directory / "bare", secrets.token_hex(4))
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
    print(
        json.dumps(
            {
                "bench": "resume",
                "runsc": str(options.runsc),
                "rounds": options.rounds,
                **{f"{name}_ms": round(value, 1) for name, value in medians.items()},
                "ratio": round(ratio, 3),
                "prepared_ratio": round(medians["prepared"] / medians["bare"], 3),
                "aim": AIM,
                "met": ratio <= AIM,
            }
        )
    )


if __name__ == "__main__":
    trio.run(main)
