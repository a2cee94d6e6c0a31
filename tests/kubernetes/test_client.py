"""Promises of the controller's client and cache, on a real API server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import trio

from ate.asyncio_room import open_asyncio_room
from ate.controller.kubernetes.access import Source
from ate.controller.kubernetes.cache import Cache
from ate.controller.kubernetes.client import KubeClient, open_client
from ate.controller.kubernetes.resources import CONFIG_MAPS, SECRETS, Name, Object, version_of
from ate.errors import (
    Aborted,
    AlreadyExists,
    AteError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from tests.kubernetes.conftest import Cluster

CREDENTIALS = "client.authentication.k8s.io/v1"


def config_map(namespace: str, name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {"of": "test"}},
        "data": data,
    }


class Story:
    """What a cache told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, name: Name, before: Object | None, now: Object | None) -> None:
        what = "gone" if now is None else "new" if before is None else "changed"
        self.told.append((name.name, what))

    async def until(self, *last: tuple[str, str]) -> None:
        with trio.fail_after(30):
            while not set(last) <= set(self.told):
                await trio.sleep(0.02)


def api_server(cluster: Cluster) -> int:
    """Its process id on the host."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/kube-apiserver") and str(cluster.state).encode() in b" ".join(words):
            return int(folder.name)
    raise AssertionError("no API server runs")


async def restart_api_server(cluster: Cluster, kube: KubeClient) -> None:
    """Kills it; the cluster starts another."""
    os.kill(api_server(cluster), signal.SIGKILL)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await kube.list(CONFIG_MAPS, "default")
    with trio.fail_after(60):
        while True:
            try:
                await kube.list(CONFIG_MAPS, "default")
                return
            except AteError:
                await trio.sleep(0.2)


async def test_objects_are_made_read_replaced_and_deleted_and_errors_are_ours(kube: KubeClient, namespace: str) -> None:
    made = await kube.create(CONFIG_MAPS, config_map(namespace, "a", x="1"), namespace)
    with pytest.raises(AlreadyExists, match="already exists"):
        await kube.create(CONFIG_MAPS, config_map(namespace, "a"), namespace)
    with pytest.raises(InvalidArgument, match="Invalid value"):
        await kube.create(CONFIG_MAPS, config_map(namespace, "No Name"), namespace)
    assert (await kube.get(CONFIG_MAPS, "a", namespace))["data"] == {"x": "1"}
    newer = await kube.replace(CONFIG_MAPS, {**made, "data": {"x": "2"}})
    with pytest.raises(Aborted):
        await kube.replace(CONFIG_MAPS, {**made, "data": {"x": "3"}})
    with pytest.raises(Aborted):
        await kube.delete(CONFIG_MAPS, "a", namespace, uid="0" * 8 + newer["metadata"]["uid"][8:])
    await kube.delete(CONFIG_MAPS, "a", namespace, uid=newer["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAPS, "a", namespace)


async def test_apply_takes_its_own_fields_and_leaves_those_of_others(kube: KubeClient, namespace: str) -> None:
    await kube.apply(CONFIG_MAPS, config_map(namespace, "a", ours="1"), "us")
    await kube.apply(CONFIG_MAPS, config_map(namespace, "a", theirs="1"), "them")
    again = await kube.apply(CONFIG_MAPS, config_map(namespace, "a", ours="2"), "us")
    assert again["data"] == {"ours": "2", "theirs": "1"}
    assert (await kube.apply(CONFIG_MAPS, config_map(namespace, "a"), "us"))["data"] == {"theirs": "1"}


async def test_a_long_list_comes_whole(kube: KubeClient, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ate.controller.kubernetes.client.PAGE", 3)
    for number in range(10):
        await kube.create(CONFIG_MAPS, config_map(namespace, f"c{number}"), namespace)
    found, version = await kube.list(CONFIG_MAPS, namespace, labels="of=test")
    assert {each["metadata"]["name"] for each in found} == {f"c{number}" for number in range(10)}
    assert version


async def test_a_cache_follows_and_goes_on_after_the_api_server_was_killed(
    cluster: Cluster, kube: KubeClient, namespace: str, nursery: trio.Nursery
) -> None:
    story = Story()
    cache = Cache(kube, CONFIG_MAPS, story, namespace=namespace, labels="of=test")
    await kube.create(CONFIG_MAPS, config_map(namespace, "old"), namespace)
    nursery.start_soon(cache.run)
    await cache.synced.wait()
    await kube.create(CONFIG_MAPS, config_map(namespace, "fresh"), namespace)
    await story.until(("old", "new"), ("fresh", "new"))
    await restart_api_server(cluster, kube)
    with pytest.raises(OutOfRange), trio.fail_after(20):  # a version from before the restart
        await kube.watch(CONFIG_MAPS, "1", lambda kind, found: None, namespace)
    await kube.delete(CONFIG_MAPS, "old", namespace)
    await kube.apply(CONFIG_MAPS, config_map(namespace, "fresh", x="1"), "us")
    await story.until(("old", "gone"), ("fresh", "changed"))
    assert [name for name, what in story.told if what == "new"] == ["old", "fresh"]
    found = cache.get(Name(namespace, "fresh"))
    assert found is not None and version_of(found)
    assert cache.get(Name(namespace, "old")) is None


async def test_a_cache_that_lost_its_place_lists_again_and_tells_what_vanished(
    cluster: Cluster, kube: KubeClient, namespace: str, nursery: trio.Nursery
) -> None:
    story = Story()
    cache = Cache(kube, CONFIG_MAPS, story, namespace=namespace, labels="of=test")
    for name in ("stays", "goes"):
        await kube.create(CONFIG_MAPS, config_map(namespace, name), namespace)
    with trio.CancelScope() as first:
        async with trio.open_nursery() as running:
            running.start_soon(cache.run)
            await cache.synced.wait()
            first.cancel()
    await kube.delete(CONFIG_MAPS, "goes", namespace)
    await restart_api_server(cluster, kube)  # it knows nothing of what happened before
    cache._version = "1"
    nursery.start_soon(cache.run)
    await story.until(("goes", "gone"))
    assert story.told.count(("stays", "new")) == 1


def kubeconfig_of_plugin(cluster: Cluster, folder: Path, script: str) -> Path:
    """A user whom an exec plug-in gives a token, as clouds ship them; `script` is the plug-in."""
    plugin = folder / "token"
    plugin.write_text(f"#!/bin/sh\n{script}\n")
    plugin.chmod(0o755)
    config = json.loads(cluster.kubeconfig.read_text())
    run = {"apiVersion": CREDENTIALS, "command": str(plugin), "interactiveMode": "Never"}
    config["users"] = [{"name": "admin", "user": {"exec": run}}]
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


def reader(cluster: Cluster, namespace: str) -> str:
    """A token of an account that may read the namespace's config maps."""
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "reader")
    cluster.kubectl("-n", namespace, "create", "role", "reader", "--verb=get,list,watch", "--resource=configmaps")
    account = f"--serviceaccount={namespace}:reader"
    cluster.kubectl("-n", namespace, "create", "rolebinding", "reader", "--role=reader", account)
    return cluster.kubectl("-n", namespace, "create", "token", "reader").strip()


def credential(token: str) -> str:
    return json.dumps({"apiVersion": CREDENTIALS, "kind": "ExecCredential", "status": {"token": token}})


async def test_a_service_account_is_let_in_by_its_token_alone_and_only_as_far_as_its_role(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    file = kubeconfig_of_plugin(cluster, tmp_path, f"echo '{credential(reader(cluster, namespace))}'")
    async with open_asyncio_room() as room, open_client(room, Source(str(file))) as client:
        await client.list(CONFIG_MAPS, namespace)
        with pytest.raises(PermissionDenied, match="secrets is forbidden"):
            await client.list(SECRETS, namespace)


@pytest.mark.parametrize("how", ["asking", "watching"])
async def test_a_refused_token_is_got_anew(
    cluster: Cluster, namespace: str, tmp_path: Path, nursery: trio.Nursery, how: str
) -> None:
    """The plug-in's first answer is a token that has ended: a request never shows it, a watch fails once."""
    good = credential(reader(cluster, namespace))
    again = f"[ -e {tmp_path}/asked ] && echo '{good}' || echo '{credential('ended')}'; touch {tmp_path}/asked"
    file = kubeconfig_of_plugin(cluster, tmp_path, again)
    async with open_asyncio_room() as room, open_client(room, Source(str(file))) as client:
        if how == "asking":
            await client.list(CONFIG_MAPS, namespace)
            return
        told: list[str] = []
        seen = trio.Event()

        def handle(kind: str, found: Object) -> None:
            told.append(found["metadata"]["name"])
            seen.set()

        with pytest.raises(Unauthenticated), trio.fail_after(20):
            await client.watch(CONFIG_MAPS, "0", handle, namespace)
        assert told == []
        nursery.start_soon(client.watch, CONFIG_MAPS, "0", handle, namespace)
        with trio.fail_after(20):
            await seen.wait()
        assert told == ["kube-root-ca.crt"]
        nursery.cancel_scope.cancel()
