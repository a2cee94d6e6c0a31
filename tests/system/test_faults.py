"""Promise: bad disks, bad images and absent stores give a clear error that names the thing; nothing is lost, nothing
is left behind.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ate.errors import AteError, DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from ate.node.images import import_path
from ate.proto import ateapi_pb2 as pb
from tests.system.disks import small_disk
from tests.system.install import Install, counter_layout, open_install
from tests.system.servers import make_bucket, s3


def objects_of(install: Install, actor: pb.Actor) -> list[Path]:
    """The stored objects of the actor's snapshot, the manifest aside."""
    folder = Path(actor.status.external_snapshot.snapshot_uri.removeprefix("file://"))
    return sorted(path for path in folder.iterdir() if path.suffix == ".zstd")


async def free_workers(install: Install) -> bool:
    answer = await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
    return all(worker.status.allocated.actors == 0 for worker in answer.workers)


def asleep(install: Install, name: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await install.get(name)).status.state == pb.ACTOR_STATE_SUSPENDED

    return check


async def test_a_damaged_or_shortened_object_never_runs_and_the_mended_one_does(tmp_path: Path) -> None:
    async with open_install(tmp_path / "root", "--snapshot-cache-bytes=0") as install:  # as on another node
        await install.set_up(replicas=1)
        await install.add_actor("a")
        for _ in range(3):
            await install.count("a")
        asleep = await install.suspend("a")
        objects = objects_of(install, asleep)
        assert len(objects) >= 2
        for damage in ("flip", "truncate"):
            for path in objects:
                good = path.read_bytes()
                bad = bytearray(good)
                if damage == "flip":
                    bad[len(bad) // 2] ^= 1
                path.write_bytes(bad if damage == "flip" else good[: len(good) // 2])
                with pytest.raises(DataLoss, match=re.escape(path.name)):
                    await install.resume("a")
                crashed = await install.get("a")
                assert crashed.status.state == pb.ACTOR_STATE_CRASHED
                assert crashed.status.external_snapshot == asleep.status.external_snapshot
                status, body = await install.raw("a")
                assert status == 503 and path.name in body
                assert await free_workers(install)
                path.write_bytes(good)
                (path.parent / "quarantine.json").unlink(missing_ok=True)
                await install.revert("a")
        assert (await install.count("a"))["ram"] == 4


@pytest.mark.parametrize("volume", [False, True], ids=["memory-and-root", "with-a-durable-volume"])
async def test_a_full_disk_at_a_checkpoint_loses_nothing(volume: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with small_disk(root / "actors", "96m"):
        async with open_install(root) as install:
            await install.set_up(replicas=1, golden=not volume)
            if volume:  # the count's file lies in it
                made = install.template("durable", f"file://{root}/objects")
                made.volumes.add(name="data").durable_dir.SetInParent()
                made.containers[0].volume_mounts.add(name="data", mount_path="/var/lib")
                request = pb.CreateActorTemplateRequest(actor_template=made)
                await install.api.control.CreateActorTemplate(request, timeout=30)
                await install.until(lambda: install.golden("durable"), 120)
            await install.add_actor("a", "durable" if volume else "counter")
            await install.count("a")
            await install.suspend("a")
            assert (await install.count("a"))["ram"] == 2
            filler = root / "actors" / "filler"
            with pytest.raises(OSError, match="No space"), filler.open("wb") as file:
                while True:
                    file.write(b"x" * (1 << 20))
            with pytest.raises((AteError,), match=r"(?i)space|bytes free"):
                await install.suspend("a")
            filler.unlink()
            actor = await install.settled("a")
            if actor.status.state == pb.ACTOR_STATE_CRASHED:
                await install.revert("a")
                assert (await install.count("a"))["ram"] == 2, "it is back at its last good snapshot"
            else:
                assert (await install.count("a"))["ram"] == 3, "it never stopped running"
            await install.suspend("a")
            await install.count("a")
            await install.delete("a")
            assert await free_workers(install)


async def test_an_object_store_that_is_full_keeps_the_checkpoint_until_there_is_room(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with small_disk(store, "32m"):
        async with open_install(tmp_path / "root") as install:
            await install.set_up(replicas=1, location=f"file://{store}")
            await install.add_actor("a")
            await install.count("a")
            await install.suspend("a")
            await install.count("a")
            filler = store / "filler"
            with pytest.raises(OSError, match="No space"), filler.open("wb") as file:
                while True:
                    file.write(b"x" * (1 << 18))
            with pytest.raises(Unavailable, match=r"(?i)space"):
                await install.suspend("a")
            filler.unlink()
            await install.until(asleep(install, "a"))
            assert (await install.count("a"))["ram"] == 3, "the checkpoint of then is the one kept"


async def test_an_object_store_that_is_down_keeps_the_checkpoint_until_it_is_back(tmp_path: Path) -> None:
    server = s3(tmp_path)
    server.start()
    environment = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    make_bucket(server, "snapshots")
    try:
        async with open_install(tmp_path / "root", env=environment) as install:
            await install.set_up(replicas=1, location="s3://snapshots/demo")
            await install.add_actor("a")
            assert (await install.count("a"))["ram"] == 1
            server.kill()
            with pytest.raises(Unavailable, match="s3://snapshots"):
                await install.suspend("a")
            server.start()  # the emulator forgets everything, bucket and golden snapshot included

            async def bucket_missed() -> bool:  # at first it may join a try that began before the server was back
                with pytest.raises(Unavailable) as raised:
                    await install.suspend("a")
                return "no such bucket" in raised.value.message

            await install.until(bucket_missed)
            make_bucket(server, "snapshots")
            await install.until(asleep(install, "a"))
            assert (await install.count("a"))["ram"] == 2, (
                "the checkpoint taken while the store was down is the one kept"
            )
    finally:
        server.kill()


async def test_a_registry_that_is_down_is_named_and_the_actor_stays_asleep(tmp_path: Path) -> None:
    async with open_install(tmp_path / "root", "--registry-plain-http=127.0.0.1:9") as install:
        await install.set_up(replicas=1)
        template = install.template("remote", f"file://{install.root}/objects")
        template.containers[0].image = "127.0.0.1:9/nowhere/app@sha256:" + "b" * 64
        await install.api.control.CreateActorTemplate(
            pb.CreateActorTemplateRequest(actor_template=template), timeout=30
        )
        await install.add_actor("r", "remote")
        said: list[str] = []

        async def named() -> bool:  # now and then the template's golden actor has the worker, with the same fate
            try:
                await install.resume("r")
            except AteError as error:
                said.append(error.message)
            return bool(said) and "127.0.0.1:9" in said[-1]

        await install.until(named)
        assert (await install.settled("r")).status.state == pb.ACTOR_STATE_SUSPENDED
        await install.delete("r")


async def test_a_template_of_an_unknown_runtime_is_refused_by_name(tmp_path: Path) -> None:
    async with open_install(tmp_path / "root") as install:
        demo = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
        await install.api.control.CreateAtespace(pb.CreateAtespaceRequest(atespace=demo), timeout=30)
        template = install.template("t", "file:///x")
        template.sandbox_config.config_name = "no-such-runtime"
        with pytest.raises(FailedPrecondition, match="no-such-runtime"):
            request = pb.CreateActorTemplateRequest(actor_template=template)
            await install.api.control.CreateActorTemplate(request, timeout=30)


@pytest.mark.parametrize("escape", ["../outside", "link/outside"])
async def test_an_image_that_climbs_out_of_its_layer_is_refused(escape: str, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    shutil.copytree(counter_layout(), layout)
    write_evil_layer(layout, escape)
    images = tmp_path / "images"
    with pytest.raises(InvalidArgument, match=r"layer sha256:.*outside"):
        await import_path(images, layout, "ate.local/evil")
    assert not list(tmp_path.rglob("outside")), "nothing was written outside"
    assert not list(images.rglob("evil"))


def write_evil_layer(layout: Path, name: str) -> None:
    """Replaces the layout's image by one whose second layer holds an entry that leads out of it."""
    import gzip
    import hashlib
    import io

    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../../../../tmp"
        tar.addfile(link)
        entry = tarfile.TarInfo(name)
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"evil"))

    def blob(data: bytes) -> tuple[str, int]:
        digest = hashlib.sha256(data).hexdigest()
        (layout / "blobs/sha256" / digest).write_bytes(data)
        return f"sha256:{digest}", len(data)

    index = json.loads((layout / "index.json").read_text())
    manifest = json.loads((layout / "blobs/sha256" / index["manifests"][0]["digest"][7:]).read_text())
    config = json.loads((layout / "blobs/sha256" / manifest["config"]["digest"][7:]).read_text())
    config["rootfs"]["diff_ids"][1] = "sha256:" + hashlib.sha256(plain.getvalue()).hexdigest()
    manifest["layers"][1]["digest"], manifest["layers"][1]["size"] = blob(gzip.compress(plain.getvalue()))
    manifest["config"]["digest"], manifest["config"]["size"] = blob(json.dumps(config).encode())
    described = index["manifests"][0]
    described["digest"], described["size"] = blob(json.dumps(manifest).encode())
    (layout / "index.json").write_text(json.dumps(index))
