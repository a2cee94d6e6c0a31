"""Promises of the sandbox driver, kept on every real runsc build found on this machine."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ate.node.network import ActorNetwork, NetworkPool, open_network_pool
from ate.node.sandbox import oci_spec
from ate.node.sandbox.cgroup import CgroupTree
from ate.node.sandbox.driver import (
    CheckpointFailed,
    ContainerSpec,
    Sandbox,
    SandboxError,
    SandboxSpec,
    Stdio,
    UnusableImage,
)
from ate.node.sandbox.gvisor import GvisorDriver
from ate.node.sandbox.runsc import Runsc
from tests.system import rootfs
from tests.system.conftest import NOTHING, leftovers

ADDRESS = "169.254.17.2"


@dataclass
class Bench:
    """One driver with its networks and directories."""

    driver: GvisorDriver
    pool: NetworkPool
    directory: Path
    install: str
    python_root: Path
    busybox_root: Path
    number: int = 0
    networks: list[ActorNetwork] = field(default_factory=list)

    async def spec(self, *, several: bool = False, active: bool = True, **options: Any) -> SandboxSpec:
        """A fresh spec of the counter (with a second container when `several`) in a fresh network."""
        self.number += 1
        if active and self.pool.active is not None:
            await self.pool.release(self.pool.active)
        network = await self.pool.take()
        if active:
            self.pool.activate(network)
        durable = self.directory / "durable"
        durable.mkdir(exist_ok=True)
        process = oci_spec.Process(
            "app",
            command=tuple(options.pop("command", rootfs.COUNTER_ARGV)),
            env=tuple(options.pop("env", ())),
            mounts=(oci_spec.Mount(durable, "/data"),),
        )
        config = oci_spec.build(process, oci_spec.ImageConfig())
        containers = [ContainerSpec("app", config, self.python_root)]
        if several:
            side = oci_spec.Process("side", command=("/bin/sleep", "100000"))
            containers.append(ContainerSpec("side", oci_spec.build(side, oci_spec.ImageConfig()), self.busybox_root))
        pause = ContainerSpec("pause", oci_spec.build_pause(), self.busybox_root)
        return SandboxSpec(
            id=f"{self.install}-{self.number:03}",
            containers=tuple(containers),
            netns=network.netns,
            pause=pause,
            **options,
        )


@pytest.fixture
async def bench(
    runsc_binary: Path, python_root: Path, busybox_root: Path, short_dir: Path, actor_address_to_ourselves: None
) -> AsyncIterator[Bench]:
    install = secrets.token_hex(4)
    runsc = Runsc(runsc_binary, short_dir / install / "s", facts_cache=rootfs.CACHE)
    tree = CgroupTree.find(f"ate-{install}/w")
    async with open_network_pool(short_dir / install / "n", install, own_namespace=False) as pool:
        driver = GvisorDriver(runsc, short_dir / install / "b", tree)
        yield Bench(driver, pool, short_dir, install, python_root, busybox_root)
    assert await trio.to_thread.run_sync(tree.remove)


async def get(path: str, *, patience: float = 20.0) -> bytes:
    def once() -> bytes:
        connection = http.client.HTTPConnection(ADDRESS, 80, timeout=1)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    with trio.fail_after(patience):
        while True:
            try:
                return await trio.to_thread.run_sync(once)
            except (OSError, http.client.HTTPException):
                await trio.sleep(0.005)


async def count() -> int:
    return int(json.loads(await get("/"))["count"])


async def run_counter(bench: Bench, **options: Any) -> Sandbox:
    sandbox = await bench.driver.create(await bench.spec(**options))
    await bench.driver.start(sandbox)
    assert await get("/healthz") == b"ok"
    return sandbox


async def save(bench: Bench, sandbox: Sandbox, name: str = "image") -> Path:
    directory = bench.directory / name
    directory.mkdir()
    files = await bench.driver.checkpoint(sandbox, directory)
    assert set(files) == {path.name for path in directory.iterdir()} and files
    await bench.driver.terminate(sandbox)
    return directory


@pytest.mark.parametrize("several", [False, True], ids=["one-container", "two-containers"])
async def test_memory_and_files_survive_many_saves_each_under_a_new_id_and_network(bench: Bench, several: bool) -> None:
    sandbox = await run_counter(bench, several=several)
    boot = json.loads(await get("/"))["boot"]
    await get("/write/root/in-root")
    await get("/write/tmp/in-tmp")
    for cycle in range(3):
        image = await save(bench, sandbox, f"image-{cycle}")
        sandbox = await bench.driver.restore(await bench.spec(several=several), image)
        answer = json.loads(await get("/"))
        assert answer == {"count": cycle + 2, "boot": boot}
        assert (await get("/read/root"), await get("/read/tmp")) == (b"in-root", b"in-tmp")
    await bench.driver.terminate(sandbox)


@pytest.mark.parametrize("warm", [False, True], ids=["created", "warm"])
async def test_a_prepared_sandbox_takes_a_restore_and_can_be_saved_again(bench: Bench, warm: bool) -> None:
    sandbox = await run_counter(bench)
    for cycle in range(3):
        image = await save(bench, sandbox, f"image-{cycle}")
        spec = await bench.spec()
        prepared = await bench.driver.create(spec)
        assert not prepared.started
        if warm:
            await bench.driver.warm(prepared)
        sandbox = await bench.driver.restore(spec, image, prepared)
        assert await count() == cycle + 1
    await bench.driver.pause(sandbox)
    await bench.driver.resume(sandbox)
    assert await count() == 4
    await bench.driver.terminate(sandbox)


async def test_a_warm_sandbox_refuses_an_unusable_image_and_is_gone(bench: Bench) -> None:
    image = await save(bench, await run_counter(bench))
    os.truncate(image / "checkpoint.img", 100)
    spec = await bench.spec()
    prepared = await bench.driver.create(spec)
    await bench.driver.warm(prepared)
    with pytest.raises((UnusableImage, SandboxError)):
        await bench.driver.restore(spec, image, prepared)
    assert leftovers(f"{bench.install}/s")["processes"] == []


async def test_one_image_gives_several_sandboxes_and_is_not_changed_by_them(bench: Bench) -> None:
    image = await save(bench, await run_counter(bench))
    before = {path.name: path.read_bytes() for path in image.iterdir()}
    for _ in range(2):
        sandbox = await bench.driver.restore(await bench.spec(), image)
        assert await count() == 1
        await bench.driver.terminate(sandbox)
    assert {path.name: path.read_bytes() for path in image.iterdir()} == before


async def test_connections_open_at_a_checkpoint_do_not_cost_the_sandbox(bench: Bench) -> None:
    sandbox = await run_counter(bench)
    held = [socket.create_connection((ADDRESS, 80), 2) for _ in range(8)]
    held[0].sendall(b"GET / HTTP/1.1\r\n")
    image = await save(bench, sandbox)
    for connection in held:
        connection.close()
    sandbox = await bench.driver.restore(await bench.spec(), image)
    assert await count() == 1
    await bench.driver.terminate(sandbox)


async def test_terminate_leaves_nothing_whatever_the_state(bench: Bench) -> None:
    created = await bench.driver.create(await bench.spec())
    await bench.driver.terminate(created)
    running = await run_counter(bench, several=True)
    await bench.driver.terminate(running)
    await bench.driver.terminate(running)
    killed = await run_counter(bench)
    os.kill(killed.pids[0], 9)
    await bench.driver.terminate(killed)
    left = leftovers(bench.install)
    assert left["processes"] == [] and left["mounts"] == left["mounts"][:0] + _netns_mounts(left)
    assert not [path for path in (bench.directory / bench.install / "s").iterdir()]
    assert not [path for path in (bench.directory / bench.install / "b").iterdir()]
    assert not [path for path in Path("/sys/fs/cgroup").glob(f"*/ate-{bench.install}/w/*") if path.is_dir()]


def _netns_mounts(left: dict[str, list[str]]) -> list[str]:
    return [line for line in left["mounts"] if line.startswith("nsfs ")]


async def test_a_closed_pool_leaves_no_link_and_no_namespace(short_dir: Path) -> None:
    install = secrets.token_hex(4)
    async with open_network_pool(short_dir / install, install, spare=2, own_namespace=False) as pool:
        for _ in range(3):
            await pool.take()
        assert leftovers(install)["links"]
    assert leftovers(install) == NOTHING


@pytest.mark.parametrize("damage", ["no directory", "missing pages", "cut short", "garbage"])
async def test_an_unusable_image_is_an_error_and_leaves_nothing(bench: Bench, damage: str) -> None:
    image = await save(bench, await run_counter(bench))
    if damage == "no directory":
        shutil.rmtree(image)
    elif damage == "missing pages":
        (image / "pages.img").unlink()
    elif damage == "cut short":
        os.truncate(image / "checkpoint.img", (image / "checkpoint.img").stat().st_size // 2)
    else:
        (image / "checkpoint.img").write_bytes(secrets.token_bytes(4096))
    spec = await bench.spec()
    with pytest.raises((UnusableImage, SandboxError)) as caught:
        await bench.driver.restore(spec, image)
    assert spec.id in str(caught.value) or "snapshot" in str(caught.value)
    assert leftovers(f"{bench.install}/s")["processes"] == []
    assert not list((bench.directory / bench.install / "b").iterdir())


async def test_a_container_that_cannot_be_restored_ends_the_sandbox_and_its_handle(bench: Bench) -> None:
    image = await save(bench, await run_counter(bench, several=True))
    await bench.driver.probe()
    before = handles()
    spec = await bench.spec(several=True)
    app, side = spec.containers
    spec = replace(spec, containers=(app, replace(side, rootfs=Path("/no/such/root"))))
    with pytest.raises(SandboxError):
        await bench.driver.restore(spec, image)
    assert handles() == before
    assert leftovers(f"{bench.install}/s")["processes"] == []
    assert not list((bench.directory / bench.install / "b").iterdir())


def handles() -> int:
    """How many processes this one holds a pidfd of."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "pidfd" in os.readlink(path)
    return found


async def test_a_program_that_does_not_exist_is_an_error_that_names_it(bench: Bench) -> None:
    sandbox = await bench.driver.create(await bench.spec(command=["/no/such/program"]))
    with pytest.raises(SandboxError, match="/no/such/program"):
        await bench.driver.start(sandbox)
    assert leftovers(f"{bench.install}/s")["processes"] == []


async def test_a_full_disk_at_a_checkpoint_leaves_the_sandbox_running(bench: Bench) -> None:
    sandbox = await run_counter(bench, env=(("BALLAST_MIB", "24"),))
    small = bench.directory / "small"
    small.mkdir()
    await trio.run_process(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)])
    try:
        with pytest.raises(CheckpointFailed, match=r"bytes free.*still runs") as caught:
            await bench.driver.checkpoint(sandbox, small)
        assert caught.value.sandbox_alive
        assert await count() == 1
    finally:
        await trio.run_process(["umount", str(small)])
    await bench.driver.terminate(sandbox)


async def test_a_checkpoint_into_a_directory_in_use_fails_and_tells_the_sandbox_s_fate(bench: Bench) -> None:
    sandbox = await run_counter(bench)
    directory = bench.directory / "used"
    directory.mkdir()
    (directory / "checkpoint.img").write_text("something else")
    with pytest.raises(CheckpointFailed) as caught:
        await bench.driver.checkpoint(sandbox, directory)
    if caught.value.sandbox_alive:
        assert await count() == 1
    await bench.driver.terminate(sandbox)


@pytest.mark.parametrize("how", ["program exits", "sandbox is killed", "side container exits"])
async def test_a_crash_is_noticed(bench: Bench, how: str) -> None:
    sandbox = await run_counter(bench, several=how == "side container exits")
    async with trio.open_nursery() as nursery:
        noticed = trio.Event()

        async def watch() -> None:
            assert await bench.driver.wait_exit(sandbox)
            noticed.set()

        nursery.start_soon(watch)
        await trio.testing.wait_all_tasks_blocked()
        if how == "sandbox is killed":
            os.kill(sandbox.pids[0], 9)
        else:
            with pytest.raises(trio.TooSlowError):
                await get("/exit", patience=0.5)
        with trio.fail_after(20):
            await noticed.wait()
    await bench.driver.terminate(sandbox)


async def test_more_memory_than_the_limit_ends_the_sandbox_and_says_why(bench: Bench) -> None:
    if not (await bench.driver.probe()).cgroup:
        pytest.skip("control groups cannot be written here")
    spec = await bench.spec(env=(("BALLAST_MIB", "400"), ("START_DELAY", "0")), memory_bytes=128 << 20)
    sandbox = await bench.driver.create(spec)
    stats = await bench.driver.stats(sandbox)
    assert stats is not None and 0 < stats.memory_bytes <= 128 << 20
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.driver.start, sandbox)
            assert "memory limit" in await bench.driver.wait_exit(sandbox)
    await bench.driver.terminate(sandbox)


async def test_output_of_containers_reaches_its_reader_across_a_restore(bench: Bench) -> None:
    async def reading(spec: SandboxSpec) -> tuple[SandboxSpec, int, int]:
        reader, writer = os.pipe()
        return replace(spec, stdio={"app": Stdio(writer, writer)}), reader, writer

    spec, reader, writer = await reading(await bench.spec())
    sandbox = await bench.driver.create(spec)
    await bench.driver.start(sandbox)
    os.close(writer)
    await get("/log")
    assert b"plain line" in await trio.to_thread.run_sync(os.read, reader, 4096)
    image = await save(bench, sandbox)
    os.close(reader)
    spec, reader, writer = await reading(await bench.spec())
    sandbox = await bench.driver.restore(spec, image)
    os.close(writer)
    await get("/log")
    assert b"plain line" in await trio.to_thread.run_sync(os.read, reader, 65536)
    await bench.driver.terminate(sandbox)
    os.close(reader)


async def test_volumes_are_shared_with_the_host_and_not_part_of_the_image(bench: Bench) -> None:
    sandbox = await run_counter(bench)
    await get("/write/durable/kept")
    assert (bench.directory / "durable/f").read_text() == "kept"
    image = await save(bench, sandbox)
    (bench.directory / "durable/f").write_text("replaced")
    sandbox = await bench.driver.restore(await bench.spec(), image)
    assert await get("/read/durable") == b"replaced"
    await bench.driver.terminate(sandbox)


async def test_a_cancelled_create_leaves_nothing(bench: Bench) -> None:
    spec = await bench.spec()
    with trio.move_on_after(0.06):
        await bench.driver.create(spec)
        await trio.sleep_forever()
    await trio.sleep(0.3)
    # Either it was cancelled half-way, and is gone, or it was done: then its handle was lost with this scope.
    assert len(leftovers(f"{bench.install}/s")["processes"]) in (0, 2)
    await bench.driver._sweep(spec, ())
    assert leftovers(f"{bench.install}/s")["processes"] == []
