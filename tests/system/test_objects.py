"""Promises of object stores: the same five calls on a folder and on an S3 server, and faults that name the object."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from ate import objects
from ate.errors import InvalidArgument, NotFound, PermissionDenied, ResourceExhausted, Unavailable
from ate.objects import Location, open_location
from tests.system import servers
from tests.system.disks import small_disk
from tests.system.servers import Running, make_bucket
from tests.unit.power import disk

ACCOUNT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = servers.s3(tmp_path_factory.mktemp("s3"))
    server.start()
    make_bucket(server, "bucket")
    yield server
    server.kill()


@pytest.fixture(params=["file", "s3"])
def base(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix in each kind of store."""
    if request.param == "file":
        return f"file://{tmp_path}/objects"
    server: Running = request.getfixturevalue("s3_server")
    for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    return f"s3://bucket/{tmp_path.name}"


async def read(location: Location, key: str) -> bytes:
    data = bytearray()
    await location.store.get(key, data.extend)
    return bytes(data)


async def keys(uri: str) -> list[str]:
    return [info.key for info in await open_location(uri).store.list(partial=True)]


async def test_what_is_put_is_listed_read_replaced_and_deleted(base: str):
    store = open_location(base).store
    await store.put("a/one", [b"1", b"", b"23"])
    await store.put("two", [])
    await store.put("a/one", [b"456"])
    assert [(info.key, info.size) for info in await store.list()] == [("a/one", 3), ("two", 0)]
    assert await read(open_location(base), "a/one") == b"456"
    assert await read(open_location(f"{base}/a"), "one") == b"456"
    await store.delete(["a/one", "never there"])
    assert await keys(base) == ["two"]


async def test_large_objects_pass_in_pieces(base: str):
    piece = os.urandom(1 << 20)
    location = open_location(base)
    await location.store.put("large", (piece for _ in range(20)))
    sizes: list[int] = []
    await location.store.get("large", lambda chunk: sizes.append(len(chunk)))
    assert sum(sizes) == 20 << 20 and max(sizes) < 20 << 20
    assert (await read(location, "large")) == piece * 20


async def test_a_prefix_is_deleted_and_its_neighbour_is_not(base: str):
    for key in ("snap/manifest.json", "snap/deep/er/file", "snap-other/manifest.json", "snap2"):
        await open_location(base).store.put(key, [b"x"])
    await objects.delete_prefix(f"{base}/snap")
    await objects.delete_prefix(f"{base}/snap")
    await objects.delete_prefix(f"{base}/nothing")
    assert await keys(base) == ["snap-other/manifest.json", "snap2"]


async def test_a_prefix_is_copied_the_manifest_last_and_again(base: str):
    source = open_location(f"{base}/source").store
    for key in ("manifest.json", "pages.img.zstd", "deep/file"):
        await source.put(key, [key.encode()])
    for _ in range(2):
        await objects.copy_prefix(f"{base}/source", f"{base}/tags/1")
    assert await keys(f"{base}/tags/1") == ["deep/file", "manifest.json", "pages.img.zstd"]
    assert await read(open_location(f"{base}/tags/1"), "deep/file") == b"deep/file"
    with pytest.raises(NotFound, match=f"{base}/nothing"):
        await objects.copy_prefix(f"{base}/nothing", f"{base}/tags/2")


async def test_a_prefix_is_copied_from_one_kind_of_store_to_another(base: str, tmp_path: Path):
    await open_location(base).store.put("manifest.json", [b"x"])
    await objects.copy_prefix(base, f"file://{tmp_path}/elsewhere")
    assert await keys(f"file://{tmp_path}/elsewhere") == ["manifest.json"]


async def test_all_snapshots_but_one_are_deleted(base: str):
    store = open_location(base).store
    for key in ("snapshots/a/manifest.json", "snapshots/a/x", "snapshots/ab/manifest.json", "snapshots/b/x", "other/x"):
        await store.put(key, [b"x"])
    await objects.delete_other_snapshots(f"{base}/snapshots", f"{base}/snapshots/a")
    assert await keys(base) == ["other/x", "snapshots/a/manifest.json", "snapshots/a/x"]
    for keep in (f"{base}/other/a", f"{base}/snapshots", f"{base}/snapshots/a/b", f"{base}/snapshots-a"):
        with pytest.raises(InvalidArgument):
            await objects.delete_other_snapshots(f"{base}/snapshots", keep)
    assert len(await keys(base)) == 3


async def test_a_missing_object_is_named(base: str, tmp_path: Path):
    with pytest.raises(NotFound, match=f"{base}/nope/it"):
        await read(open_location(base), "nope/it")
    with pytest.raises(NotFound, match=f"{base}/nope"):
        await objects.download(f"{base}/nope", tmp_path / "target", max_bytes=10)
    assert not (tmp_path / "target").exists()


async def test_a_download_is_bounded(base: str, tmp_path: Path):
    await open_location(base).store.put("tool", [b"x" * 100])
    await objects.download(f"{base}/tool", tmp_path / "target", max_bytes=100)
    assert (tmp_path / "target").read_bytes() == b"x" * 100
    with pytest.raises(ResourceExhausted, match="99 bytes"):
        await objects.download(f"{base}/tool", tmp_path / "other", max_bytes=99)
    assert not (tmp_path / "other").exists()


async def test_files_are_downloaded_over_http_and_faults_name_the_url(tmp_path: Path):
    answers = {
        "/good": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        "/secret": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        "/broken": b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        "/gone": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    }

    async def serve(stream: trio.SocketStream) -> None:
        request = await stream.receive_some(65536)
        await stream.send_all(answers[request.split(b" ")[1].decode()])
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        await objects.download(f"{url}/good", tmp_path / "target", max_bytes=5)
        assert (tmp_path / "target").read_bytes() == b"hello"
        faults = {"/short": Unavailable, "/secret": PermissionDenied, "/broken": Unavailable, "/gone": NotFound}
        for path, error in faults.items():
            with pytest.raises(error, match=url + path):
                await objects.download(url + path, tmp_path / "other", max_bytes=100)
            assert not (tmp_path / "other").exists()
        nursery.cancel_scope.cancel()


async def test_what_the_source_of_a_put_raises_arrives_and_nothing_is_stored(base: str):
    def failing() -> Iterator[bytes]:
        yield b"x" * (20 << 20)
        raise KeyError("broken source")

    await open_location(base).store.put("before", [b"x"])
    with pytest.raises(KeyError, match="broken source"):
        await open_location(base).store.put("key", failing())
    assert await keys(base) == ["before"]


async def test_a_cancelled_put_ends_soon_and_leaves_nothing(base: str):
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000

    await open_location(base).store.put("before", [b"x"])
    with trio.move_on_after(0.2) as scope:
        await open_location(base).store.put("key", endless())
    assert scope.cancelled_caught
    assert await keys(base) == ["before"]


@pytest.mark.parametrize(
    "uri",
    ["file://relative", "file:///a/../etc", "file:///", "/tmp/x", "s3://", "http://x/y", "s3://b/a//b", "gs:///x"],
)
def test_what_is_no_location_is_refused(uri: str):
    with pytest.raises(InvalidArgument):
        open_location(uri)


@pytest.mark.parametrize("key", ["../escape", "a/../../escape", "/etc/passwd", "a//b", "", "."])
async def test_a_key_never_leads_out_of_a_folder(tmp_path: Path, key: str):
    with pytest.raises(InvalidArgument):
        await open_location(f"file://{tmp_path}/base").store.put(key, [b"x"])
    assert list(tmp_path.iterdir()) == []


async def test_an_interrupted_put_is_not_listed_but_deleted_with_its_prefix(tmp_path: Path):
    await open_location(f"file://{tmp_path}/a/s").store.put("x", [b"x"])
    (tmp_path / "a/s/.part-killed").write_bytes(b"half")
    assert [info.key for info in await open_location(f"file://{tmp_path}/a/s").store.list()] == ["x"]
    await objects.delete_prefix(f"file://{tmp_path}/a/s")
    assert list((tmp_path / "a").iterdir()) == []


async def test_what_a_put_copy_or_delete_acknowledged_holds_after_power_loss(tmp_path: Path):
    data = os.urandom(300_000)
    with disk(tmp_path / "d") as it:

        def found() -> dict[str, bytes]:
            with it.after_power_loss() as left:
                return {
                    str(path.relative_to(left)): path.read_bytes() for path in left.rglob("s/**/*") if path.is_file()
                }

        where = f"file://{it.path}/s/deep"
        store = open_location(where).store
        await store.put("one/two/key", [data])
        assert found() == {"s/deep/one/two/key": data}
        await store.copy("one/two/key", "three/copy")
        assert found() == {"s/deep/one/two/key": data, "s/deep/three/copy": data}
        await store.put("three/copy", [b"new"])
        await store.put("three/other", [b"x"])
        assert found() == {"s/deep/one/two/key": data, "s/deep/three/copy": b"new", "s/deep/three/other": b"x"}
        await store.delete(["three/copy", "one/two/key"])
        assert found() == {"s/deep/three/other": b"x"}, "in a folder that stays, and with a folder that goes"
        await objects.delete_prefix(where)
        assert found() == {}
        assert not (it.path / "s").exists() or not list((it.path / "s").iterdir())


async def test_a_full_disk_is_told_plainly(tmp_path: Path):
    with small_disk(tmp_path / "small", "256k") as small:
        with pytest.raises(ResourceExhausted, match=rf"no space left.*{small}.*free some"):
            await open_location(f"file://{small}/base").store.put("key", [os.urandom(1 << 20)])
        assert await keys(f"file://{small}/base") == []


async def test_a_bucket_that_does_not_exist_is_named(base: str):
    if not base.startswith("s3"):
        pytest.skip("folders have no buckets")
    with pytest.raises(Unavailable, match="s3://no-such-bucket"):
        await open_location("s3://no-such-bucket/a").store.put("key", [b"x"])
    with pytest.raises(Unavailable, match="s3://no-such-bucket"):
        await open_location("s3://no-such-bucket/a").store.list()


async def test_refused_credentials_are_said_and_worth_waiting_for(monkeypatch: pytest.MonkeyPatch):
    """A server of ours answers 403 as S3 does: the emulator checks no credentials."""

    async def refuse(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        await stream.send_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, refuse, 0)
        port = listeners[0].socket.getsockname()[1]
        for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Unavailable, match=r"s3://bucket/a/key.*credentials"):
            await read(open_location("s3://bucket/a"), "key")
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_down_is_reported_and_used_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    server = servers.s3(tmp_path)
    for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": server.url}.items():
        monkeypatch.setenv(name, value)
    location = open_location("s3://bucket/a")

    server.start()
    try:
        make_bucket(server, "bucket")
        await location.store.put("key", [b"1"])
        server.kill()
        with trio.fail_after(30):
            for call in (
                lambda: location.store.put("key", [b"2"]),
                lambda: read(location, "key"),
                lambda: objects.delete_prefix("s3://bucket/a"),
                lambda: objects.copy_prefix("s3://bucket/a", "s3://bucket/b"),
            ):
                with pytest.raises(Unavailable, match="s3://bucket/a"):
                    await call()
        server.start()
        make_bucket(server, "bucket")
        await location.store.put("key", [b"3"])
        assert await read(location, "key") == b"3"
    finally:
        server.kill()


async def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        port = silent.getsockname()[1]
        for name, value in {**ACCOUNT, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(name, value)
        with trio.fail_after(60):
            with pytest.raises(Unavailable, match="s3://bucket/a/key"):
                await read(open_location("s3://bucket/a"), "key")
