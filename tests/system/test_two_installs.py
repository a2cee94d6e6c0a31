"""Promise: two installs on one machine do not see each other's actors, networks or files."""

from __future__ import annotations

from pathlib import Path

import trio

from ate import install as installs
from ate.proto import ateapi_pb2 as pb
from tests.system.install import Install, open_install


async def test_two_installs_live_side_by_side(tmp_path: Path) -> None:
    async with open_install(tmp_path / "one") as one, open_install(tmp_path / "two") as two:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.set_up)
            nursery.start_soon(two.set_up)
        assert installs.install_id(one.root) != installs.install_id(two.root)
        for install in (one, two):
            await install.add_actor("a")
        assert [(await one.count("a"))["ram"] for _ in range(3)] == [1, 2, 3]
        assert (await two.count("a"))["ram"] == 1, "the namesake in the other install is another actor"
        for install in (one, two):
            answer = await install.api.control.ListActors(pb.ListActorsRequest(), timeout=30)
            assert len(answer.actors) == 1
        await one.suspend("a")
        await two.suspend("a")
        assert (await one.count("a"))["ram"] == 4 and (await two.count("a"))["ram"] == 2
        addresses = [await tunnel_addresses(install) for install in (one, two)]
        assert not addresses[0] & addresses[1]
        await one.delete("a")
        assert (await two.count("a"))["ram"] == 3
    assert not open_files_of(tmp_path)


async def tunnel_addresses(install: Install) -> set[str]:
    answer = await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
    return {ip for worker in answer.workers for ip in worker.ips}


def open_files_of(root: Path) -> list[str]:
    """Processes that still name the root after both were stopped."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(root).encode() in path.read_bytes() and b"pytest" not in path.read_bytes()
    ]
