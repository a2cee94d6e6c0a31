"""Promises of images: pulled from a real registry, stacked by the kernel's overlayfs, clean after every fault."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ate.asyncio_room import open_asyncio_room
from ate.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from ate.node.images import ImageStore, build_pause_image, import_path
from ate.node.images.disk import ImageDirectory
from ate.node.images.pause import program
from ate.node.images.registry import Registry
from tests.image_tars import BuiltImage, Item, digest, image, layout, tar
from tests.system import servers
from tests.system.disks import small_disk
from tests.system.servers import Running

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="unpacking owners and whiteouts needs root")

BASE = tar([Item("etc", "dir"), Item("etc/name", value="base"), Item("bin", "dir"), Item("bin/tool", value="1")])
TOP = tar([Item("etc", "dir"), Item("etc/name", value="top"), Item("bin", "dir"), Item("bin/.wh.tool")])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = servers.registry(tmp_path)
    running.start()
    yield running
    running.kill()


def leftovers(directory: Path) -> list[Path]:
    return list((directory / "staging").iterdir())


async def test_an_image_is_pulled_once_and_handed_out_top_layer_first(server: Running, tmp_path: Path):
    built = image([BASE, TOP])
    reference = servers.push(server, "team/app", built)
    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        found = await store.ensure(reference)
        assert (found.reference, found.digest) == (reference, built.digest)
        assert found.config["config"]["Entrypoint"] == ["/bin/true"]
        assert [(layer / "etc/name").read_text() for layer in found.layers] == ["top", "base"]
        server.kill()
        assert await store.ensure(reference) is found
        again = ImageStore(tmp_path / "images", room)  # a restarted node needs no registry for what it has
        assert await again.ensure(reference) == found
    assert leftovers(tmp_path / "images") == []


async def test_images_with_dockers_media_types_and_repeated_layers_are_pulled(server: Running, tmp_path: Path):
    built = image([BASE, TOP, TOP], docker=True)
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    reference = servers.push(server, "app", built, kind=kind)
    async with open_asyncio_room() as room:
        found = await ImageStore(tmp_path / "images", room).ensure(reference)
    assert len(found.layers) == 3


async def test_many_who_ask_at_once_share_one_pull(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pulled: list[str] = []
    really = Registry.blob

    async def counted(self: Registry, blob, path: Path) -> None:
        pulled.append(blob.digest)
        await really(self, blob, path)

    monkeypatch.setattr(Registry, "blob", counted)
    first = servers.push(server, "first", image([BASE, TOP]))
    second = servers.push(server, "second", image([BASE]))
    async with open_asyncio_room() as room, trio.open_nursery() as nursery:
        store = ImageStore(tmp_path / "images", room)
        for reference in (first, second) * 5:
            nursery.start_soon(store.ensure, reference)
    assert len(pulled) == 2


async def test_a_registry_that_is_down_is_named_with_the_image(tmp_path: Path):
    reference = f"127.0.0.1:{servers.free_port()}/team/app@sha256:{'a' * 64}"
    async with open_asyncio_room() as room:
        with trio.fail_after(30), pytest.raises(Unavailable, match=r"registry 127\.0\.0\.1") as caught:
            await ImageStore(tmp_path / "images", room).ensure(reference)
    assert reference in caught.value.message


async def test_a_registry_that_dies_under_a_pull_is_reported_and_the_pull_can_be_repeated(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reference = servers.push(server, "app", image([BASE, TOP]))
    really = Registry.blob

    async def dies_first(self: Registry, blob, path: Path) -> None:
        server.kill()
        await really(self, blob, path)

    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "blob", dies_first)
            with pytest.raises(Unavailable):
                await store.ensure(reference)
        assert leftovers(tmp_path / "images") == []
        server.start()
        assert len((await store.ensure(reference)).layers) == 2


async def test_an_image_the_registry_does_not_have_is_named(server: Running, tmp_path: Path):
    reference = f"{server.host}/team/app@sha256:{'a' * 64}"
    async with open_asyncio_room() as room:
        with pytest.raises(NotFound, match=reference):
            await ImageStore(tmp_path / "images", room).ensure(reference)


def registry_file(tmp_path: Path, blob: str) -> Path:
    hexa = blob.removeprefix("sha256:")
    return tmp_path / "registry/docker/registry/v2/blobs/sha256" / hexa[:2] / hexa / "data"


async def test_a_rotten_layer_is_data_loss_and_the_good_ones_stay(server: Running, tmp_path: Path):
    built = image([BASE, TOP])
    reference = servers.push(server, "app", built)
    path = registry_file(tmp_path, built.layers[1][0])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        with pytest.raises(DataLoss, match=built.layers[1][0]):
            await store.ensure(reference)
        assert leftovers(tmp_path / "images") == []
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert len((await store.ensure(reference)).layers) == 2


async def test_a_layer_of_another_diff_id_is_data_loss(server: Running, tmp_path: Path):
    honest = image([BASE])
    other = image([TOP])
    config = json.loads(honest.blobs[json.loads(honest.manifest)["config"]["digest"]])
    config["rootfs"]["diff_ids"] = [other.layers[0][1]]
    forged = json.dumps(config).encode()
    document = json.loads(honest.manifest)
    document["config"].update(digest=digest(forged), size=len(forged))
    manifest = json.dumps(document).encode()
    built = BuiltImage(digest(manifest), {**honest.blobs, digest(forged): forged}, manifest, honest.layers)
    reference = servers.push(server, "app", built)
    async with open_asyncio_room() as room:
        with pytest.raises(DataLoss, match="unpacks to"):
            await ImageStore(tmp_path / "images", room).ensure(reference)
    assert list((tmp_path / "images/layers/sha256").iterdir()) == []


@pytest.mark.parametrize(
    "items",
    [
        [Item("../evil", value="x")],
        [Item("out", "symlink", "/tmp"), Item("out/evil", value="x")],
        [Item("up", "symlink", "../.."), Item("up/evil", value="x")],
        [Item("evil", "hardlink", "../../../../etc/passwd")],
    ],
)
async def test_an_image_that_reaches_out_of_its_layer_is_refused_and_named(
    server: Running, tmp_path: Path, items: list[Item]
):
    built = image([tar(items)])
    reference = servers.push(server, "app", built)
    async with open_asyncio_room() as room:
        with pytest.raises(InvalidArgument, match="entry") as caught:
            await ImageStore(tmp_path / "images", room).ensure(reference)
    assert built.layers[0][0] in caught.value.message and reference in caught.value.message
    assert not list(tmp_path.rglob("evil")) and not Path("/tmp/evil").exists()
    assert leftovers(tmp_path / "images") == []


async def test_a_cancelled_pull_leaves_nothing_and_the_next_one_works(server: Running, tmp_path: Path):
    built = image([tar([Item("big", value="x" * (30 << 20))])], compress=False)
    reference = servers.push(server, "app", built)
    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        for moment in (0.0, 0.005, 0.02, 0.05, 0.1):
            with trio.move_on_after(moment) as scope:
                await store.ensure(reference)
            assert leftovers(tmp_path / "images") == []
            if not scope.cancelled_caught:
                break
        assert (await store.ensure(reference)).layers[0].joinpath("big").stat().st_size == 30 << 20


async def test_a_full_disk_is_told_and_nothing_is_left(server: Running, tmp_path: Path):
    reference = servers.push(server, "app", image([tar([Item("big", value="x" * (4 << 20))])]))
    with small_disk(tmp_path / "small", "1m") as small:
        async with open_asyncio_room() as room:
            with pytest.raises(ResourceExhausted, match=r"no space left.*free some"):
                await ImageStore(small / "images", room).ensure(reference)
        assert leftovers(small / "images") == []


async def test_an_index_gives_this_machines_image_or_says_what_there_is(server: Running, tmp_path: Path):
    built = image([BASE])
    servers.push(server, "app", built)
    kind = "application/vnd.oci.image.index.v1+json"
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": built.digest,
        "size": len(built.manifest),
    }
    arch = json.loads(built.blobs[json.loads(built.manifest)["config"]["digest"]])["architecture"]
    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        for wanted, works in ((arch, True), ("s390x", False)):
            platform = {"os": "linux", "architecture": wanted}
            index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [{**entry, "platform": platform}]})
            listed = BuiltImage(digest(index.encode()), {}, index.encode(), [])
            reference = servers.push(server, "app", listed, kind=kind)
            if works:
                assert (await store.ensure(reference)).digest == listed.digest
            else:
                with pytest.raises(FailedPrecondition, match="linux/s390x"):
                    await store.ensure(reference)


async def test_a_registry_with_tokens_is_asked_with_the_credentials_of_dockers_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A registry of ours that hands out tokens: docker-registry needs a token service for that."""
    built = image([BASE])
    blobs = {**built.blobs, built.digest: built.manifest}
    secret = base64.b64encode(b"me:secret").decode()

    async def serve(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some(65536)
        path = request.split(b" ")[1].decode()
        lines = request.decode().split("\r\n")
        authorization = next((line.split(": ", 1)[1] for line in lines if line.startswith("Authorization")), "")
        status, headers, body = "404 Not Found", "", b""
        if path.startswith("/token?"):
            assert "service=us" in path and "scope=repository%3Aapp%3Apull" in path.replace(":", "%3A")
            if authorization == f"Basic {secret}":
                status, body = "200 OK", b'{"token": "t0ken"}'
            else:
                status = "401 Unauthorized"
        elif authorization != "Bearer t0ken":
            realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="us",scope="repository:app:pull"'
            status, headers = "401 Unauthorized", f"WWW-Authenticate: {realm}\r\n"
        elif path.rpartition("/")[2] in blobs:
            status, body = "200 OK", blobs[path.rpartition("/")[2]]
        await stream.send_all(
            f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )

    async with open_asyncio_room() as room, trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        port = listeners[0].socket.getsockname()[1]
        reference = f"127.0.0.1:{port}/app@{built.digest}"
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        store = ImageStore(tmp_path / "images", room)
        with pytest.raises(PermissionDenied, match=reference):
            await store.ensure(reference)
        (tmp_path / "config.json").write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": secret}}}))
        assert len((await store.ensure(reference)).layers) == 1
        nursery.cancel_scope.cancel()


# -- imports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
async def test_an_oci_layout_is_imported_beside_a_running_store(tmp_path: Path, form: str):
    built = image([BASE, TOP])
    source = layout(built, tmp_path / "layout")
    if form != "folder":
        archive = tmp_path / f"layout.{form}"
        with tarfile.open(archive, "w:gz" if form == "tar.gz" else "w") as file:
            file.add(source, ".")
        shutil.rmtree(source)
        source = archive
    async with open_asyncio_room() as room:
        store = ImageStore(tmp_path / "images", room)
        assert await import_path(tmp_path / "images", source) == [f"example.com/team/app@{built.digest}"]
        (reference,) = await import_path(tmp_path / "images", source, "other/name:v2")
        assert reference == f"other/name@{built.digest}"
        assert len((await store.ensure(reference)).layers) == 2
    assert leftovers(tmp_path / "images") == []


async def test_what_docker_save_writes_is_imported(tmp_path: Path):
    built = image([BASE, TOP], compress=False)
    config = next(blob for blob in built.blobs if b"rootfs" in built.blobs[blob] and b"Entrypoint" in built.blobs[blob])
    archive = tmp_path / "saved.tar"
    entry = {"Config": "c.json", "RepoTags": ["team/app:v1"], "Layers": ["1/layer.tar", "2/layer.tar"]}
    with tarfile.open(archive, "w") as file:
        files = {
            "c.json": built.blobs[config],
            "1/layer.tar": BASE,
            "2/layer.tar": TOP,
            "manifest.json": json.dumps([entry]).encode(),
        }
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    (reference,) = await import_path(tmp_path / "images", archive)
    assert reference.startswith("team/app@sha256:")
    assert await import_path(tmp_path / "images", archive) == [reference]
    async with open_asyncio_room() as room:
        found = await ImageStore(tmp_path / "images", room).ensure(reference)
    assert [(layer / "etc/name").read_text() for layer in found.layers] == ["top", "base"]


async def test_a_damaged_layout_is_refused_and_not_half_there(tmp_path: Path):
    built = image([BASE, TOP])
    source = layout(built, tmp_path / "layout")
    (source / "blobs/sha256" / built.layers[1][0].removeprefix("sha256:")).write_bytes(b"rotten")
    with pytest.raises(DataLoss, match=built.layers[1][0]):
        await import_path(tmp_path / "images", source)
    assert not ImageDirectory(tmp_path / "images").blob(built.digest).exists()
    assert leftovers(tmp_path / "images") == []


@pytest.mark.parametrize("what", ["nothing", "text", "empty folder"])
async def test_what_holds_no_image_is_refused(tmp_path: Path, what: str):
    path = tmp_path / "source"
    if what == "text":
        path.write_text("hello")
    elif what == "empty folder":
        path.mkdir()
    with pytest.raises((InvalidArgument, NotFound), match=str(path)):
        await import_path(tmp_path / "images", path)


# -- pause ------------------------------------------------------------------------------------------------------------


async def test_the_pause_image_is_the_same_everywhere_and_its_program_waits(tmp_path: Path):
    reference = await build_pause_image(tmp_path / "one")
    assert await build_pause_image(tmp_path / "two") == reference == await build_pause_image(tmp_path / "one")
    async with open_asyncio_room() as room:
        found = await ImageStore(tmp_path / "one", room).ensure(reference)
    assert found.config["config"]["Entrypoint"] == ["/pause"]
    process = await trio.to_thread.run_sync(lambda: subprocess.Popen([found.layers[0] / "pause"]))
    try:
        for _ in range(200):
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            running = Path(f"/proc/{process.pid}/exe").readlink().name
            if state == "S" and running == "pause":
                break
            await trio.sleep(0.01)
        assert (state, running) == ("S", "pause")
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGCONT)  # interrupts pause(2): it waits again
        await trio.sleep(0.1)
        assert process.poll() is None
        assert int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) < 10**9
    finally:
        process.kill()
        process.wait()
    assert len(program("arm64")) == 64 + 56 + 32


# -- collection -------------------------------------------------------------------------------------------------------


async def test_unused_images_are_collected_oldest_first_and_shared_layers_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    layers = [tar([Item(f"file{number}", value="x" * 100_000)]) for number in range(4)]
    directory = tmp_path / "images"
    references = []
    for number, stack in enumerate(([0, 1], [0, 2], [3])):
        source = layout(image([layers[index] for index in stack]), tmp_path / f"layout{number}", f"x.y/i{number}")
        references += await import_path(directory, source)
    async with open_asyncio_room() as room:
        store = ImageStore(directory, room)
        for number, reference in enumerate(references):
            await store.ensure(reference)
            os.utime(ImageDirectory(directory).blob(reference.partition("@")[2]), (number + 1, number + 1))
        assert await store.collect(set(), 0) == 0  # all of them were asked for just now
        later = time.time() + 3600
        monkeypatch.setattr("ate.node.images.store.time.time", lambda: later)
        assert await store.collect(set(), 0) == 0  # all of them were imported: nobody could give them again
        for mark in (directory / "imported").iterdir():
            mark.unlink()  # as if they had been pulled
        assert await store.collect({references[0]}, 300_000) == 100_000
        await store.ensure(references[0])
        await store.ensure(references[2])
        with pytest.raises(Unavailable):
            await store.ensure(references[1])
        later += 3600
        assert await store.collect({references[2]}, 0) == 200_000
        assert len((await store.ensure(references[2])).layers) == 1
    assert len(list((directory / "layers/sha256").iterdir())) == 1
    assert len(list((directory / "blobs/sha256").iterdir())) == 2


async def test_a_killed_unpacking_is_swept_and_a_running_one_is_not(tmp_path: Path):
    disk = ImageDirectory(tmp_path)
    (tmp_path / "staging/killed/fs").mkdir(parents=True)
    with disk.stage() as ours:
        async with open_asyncio_room() as room:
            ImageStore(tmp_path, room)
        assert leftovers(tmp_path) == [ours]
