"""Promises of snapshots on real disks: nothing damaged is ever used, holes stay holes, a full disk is told plainly."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import trio

from ate import objects
from ate.errors import DataLoss, FailedPrecondition, NotFound, ResourceExhausted, Unavailable
from ate.node.snapshots import AssetSource, Manifest, SnapshotStore
from tests.system import disks, servers

FILES = {
    "checkpoint.img": b"kernel" * 1000,
    "pages.img": secrets.token_bytes(3 << 20),
    "durable-dir.tar": b"data" * 999,
}


def manifest_of(**changes: object) -> Manifest:
    fresh = Manifest(
        sandbox_class="gvisor",
        assets={"runsc": AssetSource("file:///usr/bin/runsc", "a" * 64)},
        pause_image="ate.local/pause@sha256:" + "b" * 64,
        atespace="team",
        actor_name="counter",
        actor_uid="0000",
        template_atespace="team",
        template_name="python",
        file_names=tuple(FILES),
        data_file_names=("durable-dir.tar",),
        scope="full",
    )
    return dataclasses.replace(fresh, **changes)  # type: ignore[arg-type]


def checkpoint(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


class Node:
    """Two nodes' snapshot stores on one object store, a checkpoint, and a folder to restore into."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.store = SnapshotStore(base / "here", cache_bytes=1 << 30)
        self.other = SnapshotStore(base / "there", cache_bytes=1 << 30)
        self.objects = base / "objects"
        self.uri = f"file://{self.objects}/actors/1/snapshots/a"
        self.at = self.objects / "actors/1/snapshots/a"
        self.checkpoint = checkpoint(base / "checkpoint")
        self.into = base / "restore"
        self.into.mkdir()

    def staged(self) -> list[Path]:
        return [*(self.base / "here/staging").iterdir(), *(self.base / "there/staging").iterdir()]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_what_was_saved_is_restored_byte_for_byte_on_another_node(node: Node):
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of())
    read = await node.other.read_manifest(node.uri)
    assert read == saved
    await node.other.fetch(node.uri, node.into, read, "full")
    assert contents(node.into) == FILES
    assert node.staged() == []
    names = {path.name for path in node.at.iterdir()}
    assert names == {"manifest.json", *(f"{name}.zstd" for name in FILES)}
    document = json.loads((node.at / "manifest.json").read_bytes())
    assert document["snapshotFiles"] == list(FILES)
    assert document["actorTemplateNamespace"] == "team"


async def test_the_data_of_a_full_snapshot_can_be_fetched_alone_and_replaces_what_is_there(node: Node):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    (node.into / "durable-dir.tar").write_bytes(b"the golden snapshot's")
    await node.other.fetch(node.uri, node.into, await node.other.read_manifest(node.uri), "data")
    assert contents(node.into) == {"durable-dir.tar": FILES["durable-dir.tar"]}


async def test_a_snapshot_of_data_is_not_restored_in_full(node: Node):
    await node.store.save(node.uri, node.checkpoint, manifest_of(file_names=("durable-dir.tar",), scope="data"))
    with pytest.raises(FailedPrecondition, match="durable data only"):
        await node.other.fetch(node.uri, node.into, await node.other.read_manifest(node.uri), "full")


async def test_a_save_may_be_repeated(node: Node):
    first = await node.store.save(node.uri, node.checkpoint, manifest_of())
    assert await node.store.save(node.uri, node.checkpoint, manifest_of()) == first


async def test_a_missing_file_is_named_and_no_snapshot_appears(node: Node):
    (node.checkpoint / "pages.img").unlink()
    with pytest.raises(DataLoss, match=r"pages\.img"):
        await node.store.save(node.uri, node.checkpoint, manifest_of())
    with pytest.raises(NotFound, match=node.uri):
        await node.store.read_manifest(node.uri)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


@pytest.mark.parametrize("damage", [flip, truncate, lengthen, Path.unlink])
@pytest.mark.parametrize("name", FILES)
async def test_a_damaged_object_is_named_marked_and_never_used(node: Node, name: str, damage):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    damage(node.at / f"{name}.zstd")
    with pytest.raises(DataLoss) as caught:
        await node.other.fetch(node.uri, node.into, await node.other.read_manifest(node.uri), "full")
    assert f"{name}.zstd" in caught.value.message and node.uri in caught.value.message
    assert contents(node.into) == {}
    assert node.staged() == []
    assert f"{name}.zstd" in json.loads((node.at / "quarantine.json").read_bytes())["fault"]
    assert (node.at / "manifest.json").exists()


@pytest.mark.parametrize("damage", [flip, truncate])
async def test_a_damaged_manifest_is_named(node: Node, damage):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    (node.at / "manifest.json").write_bytes(b"{")
    with pytest.raises(DataLoss, match=node.uri):
        await node.other.read_manifest(node.uri)


async def test_an_object_swapped_for_another_valid_one_is_not_used(node: Node):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    (node.at / "pages.img.zstd").write_bytes((node.at / "checkpoint.img.zstd").read_bytes())
    with pytest.raises(DataLoss):
        await node.other.fetch(node.uri, node.into, await node.other.read_manifest(node.uri), "full")
    assert contents(node.into) == {}


async def test_a_warm_resume_needs_neither_the_object_store_nor_a_copy(node: Node):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    await objects.delete_prefix(f"file://{node.objects}")
    inodes = {path.name: path.stat().st_ino for path in node.checkpoint.iterdir()}
    for path in node.checkpoint.iterdir():
        path.unlink()
    await node.store.fetch(node.uri, node.into, await node.store.read_manifest(node.uri), "full")
    assert contents(node.into) == FILES
    assert {path.name: path.stat().st_ino for path in node.into.iterdir()} == inodes


async def test_a_cached_file_that_was_written_to_is_not_used_again(node: Node):
    await node.store.save(node.uri, node.checkpoint, manifest_of())
    flip(node.checkpoint / "pages.img")  # a link to the cached file
    await node.store.fetch(node.uri, node.into, await node.store.read_manifest(node.uri), "full")
    assert contents(node.into) == FILES


async def test_the_cache_survives_a_restart_and_stays_within_its_bound(node: Node):
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of())
    (node.at / "pages.img.zstd").unlink()
    restarted = SnapshotStore(node.base / "here", cache_bytes=1 << 30)
    await restarted.fetch(node.uri, node.into, saved, "full")
    assert contents(node.into) == FILES
    smaller = SnapshotStore(node.base / "here", cache_bytes=1 << 20)
    kept = [path for path in (node.base / "here/cache").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in kept) <= 1 << 20
    with pytest.raises(DataLoss):
        await smaller.fetch(node.uri, node.into, saved, "full")


async def test_a_sparse_file_costs_what_it_holds_and_keeps_its_holes(node: Node):
    ram = node.checkpoint / "pages.img"
    with ram.open("wb") as file:
        file.truncate(2 << 30)
        for offset in (0, 100 << 20, (1 << 30) + 4096, (2 << 30) - 5):
            file.seek(offset)
            file.write(b"state")
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of())
    assert (node.at / "pages.img.zstd").stat().st_size < 100_000
    await node.other.fetch(node.uri, node.into, saved, "full")
    restored = node.into / "pages.img"
    assert restored.stat().st_size == 2 << 30
    assert restored.stat().st_blocks * 512 < 2 << 20
    with restored.open("rb") as file:
        for offset in (0, 100 << 20, (1 << 30) + 4096, (2 << 30) - 5):
            file.seek(offset)
            assert file.read(5) == b"state"


async def test_a_cancelled_fetch_leaves_nothing(node: Node):
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of())
    with trio.CancelScope() as scope:
        scope.cancel()
        await node.other.fetch(node.uri, node.into, saved, "full")
    assert scope.cancelled_caught
    assert contents(node.into) == {}
    assert node.staged() == []


# -- a full disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with disks.small_disk(tmp_path / "small", "1m") as path:
        yield path


async def test_a_full_object_store_is_told_and_an_older_snapshot_stays(node: Node, small_disk: Path):
    older = f"file://{small_disk}/older"
    await node.store.save(older, node.checkpoint, manifest_of(file_names=("checkpoint.img",)))
    before = contents(small_disk / "older")
    with pytest.raises(ResourceExhausted, match=rf"no space left.*{small_disk}.*free some"):
        await node.store.save(f"file://{small_disk}/newer", node.checkpoint, manifest_of())
    assert contents(small_disk / "older") == before
    assert not list(small_disk.rglob(".part-*"))
    with pytest.raises(NotFound):
        await node.other.read_manifest(f"file://{small_disk}/newer")


async def test_a_full_node_is_told_and_nothing_is_left_of_the_fetch(node: Node, small_disk: Path):
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of())
    full = SnapshotStore(small_disk / "snapshots", cache_bytes=1 << 30)
    with pytest.raises(ResourceExhausted, match="no space left"):
        await full.fetch(node.uri, node.into, saved, "full")
    assert contents(node.into) == {}
    assert list((small_disk / "snapshots/staging").iterdir()) == []


async def test_restoring_onto_another_file_system_copies(node: Node, small_disk: Path):
    saved = await node.store.save(node.uri, node.checkpoint, manifest_of(file_names=("checkpoint.img",)))
    await node.store.fetch(node.uri, small_disk, saved, "full")
    assert contents(small_disk) == {"checkpoint.img": FILES["checkpoint.img"]}


# -- paused actors --------------------------------------------------------------------------------------------------


async def test_a_paused_actor_resumes_from_its_folder_and_the_older_pause_is_gone(node: Node):
    for name in ("one", "two"):
        checkpoint(node.checkpoint)
        saved = await node.store.save_local(node.base / "local" / name, node.checkpoint, manifest_of())
        assert contents(node.checkpoint) == {}
    assert [path.name for path in (node.base / "local").iterdir()] == ["two"]
    assert await node.store.open_local(node.base / "local/two") == saved
    await node.store.fetch_local(node.base / "local/two", node.into, saved, "full")
    assert contents(node.into) == FILES


async def test_pausing_may_be_repeated_after_success_and_after_a_kill_in_the_middle(node: Node):
    folder = node.base / "local/one"
    unfinished = node.base / "local/.saving-one"
    unfinished.mkdir(parents=True)
    (node.checkpoint / "pages.img").rename(unfinished / "pages.img")
    saved = await node.store.save_local(folder, node.checkpoint, manifest_of())
    assert await node.store.save_local(folder, node.checkpoint, manifest_of()) == saved
    await node.store.fetch_local(folder, node.into, saved, "full")
    assert contents(node.into) == FILES


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink])
async def test_damaged_paused_state_is_neither_resumed_nor_uploaded(node: Node, damage):
    folder = node.base / "local/one"
    saved = await node.store.save_local(folder, node.checkpoint, manifest_of())
    damage(folder / "pages.img")
    with pytest.raises(DataLoss, match=r"pages\.img"):
        await node.store.fetch_local(folder, node.into, saved, "full")
    assert contents(node.into) == {}
    with pytest.raises(DataLoss, match=r"pages\.img"):
        await node.store.upload_local(folder, node.uri, "full")
    with pytest.raises(NotFound):
        await node.store.read_manifest(node.uri)


async def test_lost_paused_state_says_revert(node: Node):
    with pytest.raises(DataLoss, match="revert"):
        await node.store.open_local(node.base / "local/gone")


async def test_paused_state_is_uploaded_in_full_or_its_data_alone(node: Node):
    folder = node.base / "local/one"
    await node.store.save_local(folder, node.checkpoint, manifest_of())
    await node.store.upload_local(folder, node.uri, "full")
    await node.store.upload_local(folder, node.uri + "-data", "data")
    await node.other.fetch(node.uri, node.into, await node.other.read_manifest(node.uri), "full")
    assert contents(node.into) == FILES
    alone = await node.other.read_manifest(node.uri + "-data")
    assert (alone.scope, alone.file_names) == ("data", ("durable-dir.tar",))
    assert {path.name for path in (node.objects / "actors/1/snapshots/a-data").iterdir()} == {
        "manifest.json",
        "durable-dir.tar.zstd",
    }


# -- on an S3 server --------------------------------------------------------------------------------------------------


async def test_on_s3_snapshots_are_saved_restored_checked_and_a_dead_store_loses_nothing(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = servers.s3(tmp_path)
    server.start()
    try:
        client = boto3.client(
            "s3", endpoint_url=server.url, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
        )
        client.create_bucket(Bucket="bucket")
        for name, value in {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        uri = "s3://bucket/actors/1/snapshots/a"
        saved = await node.store.save(uri, node.checkpoint, manifest_of())
        await node.other.fetch(uri, node.into, await node.other.read_manifest(uri), "full")
        assert contents(node.into) == FILES

        await objects.copy_prefix(uri, "s3://bucket/tags/1")
        key = "tags/1/pages.img.zstd"
        data = bytearray(client.get_object(Bucket="bucket", Key=key)["Body"].read())
        data[1000] ^= 1
        client.put_object(Bucket="bucket", Key=key, Body=bytes(data))
        third = SnapshotStore(node.base / "third", cache_bytes=0)
        for path in node.into.iterdir():
            path.unlink()
        with pytest.raises(DataLoss, match=r"pages\.img\.zstd.*s3://bucket/tags/1"):
            await third.fetch("s3://bucket/tags/1", node.into, await third.read_manifest("s3://bucket/tags/1"), "full")
        assert contents(node.into) == {}
        assert b"pages.img.zstd" in client.get_object(Bucket="bucket", Key="tags/1/quarantine.json")["Body"].read()

        server.kill()
        with pytest.raises(Unavailable, match="s3://bucket/b"):
            await node.store.save("s3://bucket/b", node.checkpoint, manifest_of())
        assert contents(node.checkpoint) == FILES  # to be uploaded when the store is back
        with pytest.raises(Unavailable, match=uri):
            await third.fetch(uri, node.into, saved, "full")
        assert contents(node.into) == {}
        await node.other.fetch(uri, node.into, await node.other.read_manifest(uri), "full")  # warm: asks no store
        assert contents(node.into) == FILES
    finally:
        server.kill()
