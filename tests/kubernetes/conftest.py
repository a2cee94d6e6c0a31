"""A real cluster for every test here (see `cluster`): the API server, the scheduler, a kubelet, pods on containerd."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ate.asyncio_room import open_asyncio_room
from ate.controller.kubernetes.access import Source
from ate.controller.kubernetes.client import KubeClient, open_client

SCRIPT = Path(__file__).with_name("cluster")


class Cluster:
    """`kubeconfig` is the administrator's."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.state = kubeconfig.parent

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run([SCRIPT, "kubectl", *words], input=stdin, capture_output=True, text=True, timeout=120)
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root: NOTHING OF KUBERNETES IS TESTED HERE")
    up = subprocess.run([SCRIPT, "up"], capture_output=True, text=True, timeout=1800)
    assert up.returncode == 0, (up.stdout, up.stderr)
    try:
        yield Cluster(Path(up.stdout.strip().splitlines()[-1]))
    finally:
        subprocess.run([SCRIPT, "down"], check=True, timeout=60)


@pytest.fixture
async def kube(cluster: Cluster) -> AsyncIterator[KubeClient]:
    async with open_asyncio_room() as room, open_client(room, Source(str(cluster.kubeconfig))) as client:
        yield client


@pytest.fixture
async def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    name = "t-" + "".join(c if c.isalnum() else "-" for c in request.node.name.lower())[-40:].strip("-")
    cluster.kubectl("create", "namespace", name)
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")
