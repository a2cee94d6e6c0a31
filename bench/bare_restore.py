"""The peer of the resume benchmarks: `runsc restore` with nothing of ours around it but the poll for its answer."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

import trio

from ate.node.gate import Probe, wait_until_ready
from ate.node.network import open_network_pool
from ate.node.sandbox import oci_spec
from ate.node.sandbox.cgroup import CgroupTree
from ate.node.sandbox.driver import ContainerSpec, SandboxSpec
from ate.node.sandbox.gvisor import GvisorDriver
from ate.node.sandbox.runsc import Runsc
from tests.system.rootfs import CACHE


class Bare:
    """One program on one root, checkpointed once, restored as often as asked; network, root and bundle are ready."""

    def __init__(self, binary: Path, directory: Path, root: Path, argv: tuple[str, ...], probe: str) -> None:
        self._runsc = Runsc(binary, directory / "s", facts_cache=CACHE)
        self._driver = GvisorDriver(self._runsc, directory / "b", CgroupTree("", ()))
        self._directory, self._install, self._number = directory, secrets.token_hex(4), 0
        self._root, self._argv, self._probe = root, argv, Probe("app", probe, 80)

    def _spec(self, netns: Path) -> SandboxSpec:
        self._number += 1
        config = oci_spec.build(oci_spec.Process("app", command=self._argv), oci_spec.ImageConfig())
        return SandboxSpec(f"{self._install}-{self._number:04}", (ContainerSpec("app", config, self._root),), netns)

    async def run(self, rounds: trio.MemoryReceiveChannel[int], results: list[float]) -> None:
        """Milliseconds from the command's start to the first 200, one for every round received."""
        async with open_network_pool(self._directory / "n", self._install, own_namespace=False) as pool:
            network = await pool.take()
            pool.activate(network)
            first = await self._driver.create(self._spec(network.netns))
            await self._driver.start(first)
            await wait_until_ready([self._probe])
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
                await wait_until_ready([self._probe])
                results.append((time.perf_counter() - begun) * 1e3)
                await self._driver.terminate(sandbox)
            await pool.release(network)
