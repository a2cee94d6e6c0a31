"""Promises of the router on a whole install: real sandboxes, workers and control plane, one install for all of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from ate.proto import ateapi_pb2 as pb
from tests.system import rootfs
from tests.system.conftest import RUNSC_BUILDS
from tests.system.install import Install, joined, running
from tests.system.routing import Line
from tests.system.workload import PYTHON

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not RUNSC_BUILDS, reason="needs root and runsc")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    root = tmp_path_factory.mktemp("r") / "root"
    with running(root) as process:

        async def prepare() -> None:
            async with joined(root, process) as install:
                probe = pb.ContainerReadyz(http_get=pb.HTTPGetAction(path="/healthz", port=80))
                program = pb.Container(name="counter", image=install.image, readyz=probe)
                program.command.extend([PYTHON, "-c", rootfs.COUNTER])
                await install.set_up(replicas=1, golden=False)
                template = install.template("echo", f"file://{root}/objects")
                del template.containers[:]
                template.containers.append(program)
                request = pb.CreateActorTemplateRequest(actor_template=template)
                await install.api.control.CreateActorTemplate(request, timeout=30)
                await install.until(lambda: install.golden("echo"), 120)

        trio.run(prepare)
        yield root, process


@pytest.fixture
async def install(platform: tuple[Path, Any]) -> AsyncIterator[Install]:
    async with joined(*platform) as found:
        yield found
        listed = await found.api.control.ListActors(pb.ListActorsRequest(atespace="demo"), timeout=30)
        for actor in listed.actors:
            await found.delete(actor.metadata.name)


async def connect(install: Install) -> Line:
    host, _, port = install.router.rpartition(":")
    return Line(await trio.open_tcp_stream(host, int(port)))


def ask(name: str, first: str, *fields: str) -> bytes:
    return "\r\n".join([f"{first} HTTP/1.1", "Host: h", f"ate-target-actor: demo/{name}", *fields, "", ""]).encode()


async def test_bodies_headers_and_upgrades_pass_between_client_and_sandbox(install: Install) -> None:
    await install.add_actor("a", "echo")
    client = await connect(install)
    body = os.urandom(5 << 20)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, ask("a", "POST /echo", f"Content-Length: {len(body)}") + body)
        assert (await client.answer()).body == body
    await client.send(ask("a", "GET /chunked"))
    assert (await client.answer()).body == b"hello" * 3
    await client.send(ask("a", "GET /headers", "X-MiXed: 1", "x-ate-actor-uid: 2"))
    seen = json.loads((await client.answer()).body)
    assert ["X-MiXed", "1"] in seen and not any("ate-" in name.lower() for name, _ in seen)
    await client.send(ask("a", "GET /ws", "Connection: Upgrade", "Upgrade: echo") + b"early")
    assert (await client.answer()).status == 101 and await client.exactly(5) == b"early"
    await client.send(b"late")
    assert await client.exactly(4) == b"late"
    await client.stream.send_eof()
    assert await client.rest() == b"<eof seen>"


async def test_a_post_wakes_a_sleeping_actor_and_arrives_whole_whatever_the_router_believed(install: Install) -> None:
    await install.add_actor("a", "echo")
    for number in range(3):
        body = b"%d" % number * 50_000
        status, got = await install.raw("a", method="POST", body=body)
        assert (status, got.encode()) == (200, body)
        await install.suspend("a")  # the router still holds the route


async def test_actors_take_turns_on_one_worker_as_requests_come(install: Install) -> None:
    for name in ("a", "b"):
        await install.add_actor(name, "echo")
    for number in range(1, 3):
        for name in ("a", "b"):
            status, body = await install.raw(name)
            assert status == 200 and json.loads(body)["count"] == number
            await install.suspend(name)
    await install.raw("a")
    status, body = await install.raw("b")
    assert (status, "unavailable" in body) == (503, True)


async def test_a_worker_killed_during_a_request_is_an_honest_answer_and_the_next_request_is_served(
    install: Install,
) -> None:
    await install.add_actor("a", "echo")
    await install.raw("a")
    await install.suspend("a")
    await install.raw("a")
    assigned = (await install.get("a")).status.worker_assignment.worker_pod_uid
    client = await connect(install)
    await client.send(ask("a", "GET /slow?s=60"))
    await trio.sleep(0.3)
    for pid in install.worker_pids(assigned):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    got = await client.answer()
    assert got.status == 502 and "may have run" in got.text

    async def said() -> bool:
        status, body = await install.raw("a")
        return status == 503 and "revert" in body

    await install.until(said)
    await install.revert("a")
    await install.until(lambda: served(install))


async def served(install: Install) -> bool:
    status, _ = await install.raw("a")
    return status == 200


async def test_a_router_killed_or_restarted_serves_again(install: Install) -> None:
    await install.add_actor("a", "echo")
    await install.raw("a")
    install.kill("router")
    await install.until(lambda: served(install))
