"""Promises of unpacking a layer: nothing leaves its folder, and whiteouts mean what the OCI image spec says."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ate.errors import AteError, DataLoss, InvalidArgument
from ate.node.images.reference import parse
from ate.node.images.unpack import unpack
from tests.image_tars import Item, digest, tar

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="owners, whiteouts and trusted attributes need root")


def unpacked(folder: Path, *items: Item, data: bytes | None = None) -> Path:
    layer = tar(items)
    unpack(io.BytesIO(layer if data is None else data), folder / "fs", "sha256:layer", digest(layer))
    return folder / "fs"


def is_whiteout(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(path: Path) -> bool:
    try:
        return os.getxattr(path, "trusted.overlay.opaque") == b"y"
    except OSError:
        return False


@root_only
def test_owners_modes_times_attributes_and_links_are_kept(tmp_path: Path):
    fs = unpacked(
        tmp_path,
        Item("usr", "dir", mode=0o1777, mtime=77.25),
        Item("usr/tool", value="#!", mode=0o4755, uid=12, mtime=1700000000.123456, xattrs={"user.note": "x"}),
        Item("usr/same", "hardlink", "usr/tool"),
        Item("usr/link", "symlink", "/anywhere/at/all"),
        Item("usr/pipe", "fifo"),
    )
    status = (fs / "usr/tool").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_nlink) == (0o4755, 12, 2)
    assert status.st_mtime_ns // 1000 == 1700000000123456
    assert os.getxattr(fs / "usr/tool", "user.note") == b"x"
    assert (fs / "usr").stat().st_mtime == 77.25 and stat.S_IMODE((fs / "usr").stat().st_mode) == 0o1777
    assert (fs / "usr/link").readlink() == Path("/anywhere/at/all")
    assert stat.S_ISFIFO((fs / "usr/pipe").stat().st_mode)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, bytes])
def test_gzip_zstd_and_plain_layers_are_told_apart(tmp_path: Path, pack):
    fs = unpacked(tmp_path, Item("a", value="x"), data=pack(tar([Item("a", value="x")])))
    assert (fs / "a").read_text() == "x"


@pytest.mark.parametrize(
    "items",
    [
        [Item("../evil", value="x")],
        [Item("a/../../evil", value="x")],
        [Item("/../evil", value="x")],
        [Item("link", "symlink", "/etc"), Item("link/evil", value="x")],
        [Item("link", "symlink", "../.."), Item("link/evil", value="x")],
        [Item("a", "symlink", "b"), Item("b", "symlink", ".."), Item("a/evil", value="x")],
        [Item("loop", "symlink", "loop"), Item("loop/evil", value="x")],
        [Item("evil", "hardlink", "../canary")],
        [Item("evil", "hardlink", "/etc/passwd")],
        [Item("link", "symlink", ".."), Item("evil", "hardlink", "link/canary")],
        [Item("link", "symlink", "/"), Item("link/.wh.canary")],
        [Item("../.wh.canary")],
        [Item(".wh...")],
        [Item("file", value="x"), Item("file/below", value="x")],
    ],
)
def test_an_entry_that_leads_out_is_refused_and_named(tmp_path: Path, items: list[Item]):
    (tmp_path / "canary").write_text("alive")
    with pytest.raises(InvalidArgument, match=r"sha256:layer.*entry") as caught:
        unpacked(tmp_path, *items)
    assert repr(items[-1].name) in caught.value.message
    assert (tmp_path / "canary").read_text() == "alive"
    assert not (tmp_path / "evil").exists()


def test_absolute_names_lie_in_the_layer(tmp_path: Path):
    assert (unpacked(tmp_path, Item("/abs/file", value="x")) / "abs/file").read_text() == "x"


def test_an_entry_below_a_link_inside_the_layer_goes_where_the_link_leads(tmp_path: Path):
    fs = unpacked(tmp_path, Item("lib", "symlink", "usr/lib"), Item("usr/lib", "dir"), Item("lib/x", value="1"))
    assert (fs / "usr/lib/x").read_text() == "1" and (fs / "lib").is_symlink()


def test_a_file_never_goes_through_a_link_of_its_own_name(tmp_path: Path):
    (tmp_path / "canary").write_text("alive")
    fs = unpacked(tmp_path, Item("a", "symlink", "../canary"), Item("a", value="x"))
    assert (tmp_path / "canary").read_text() == "alive"
    assert not (fs / "a").is_symlink() and (fs / "a").read_text() == "x"


@root_only
def test_devices_are_left_out_and_attributes_that_steer_overlayfs_too(tmp_path: Path):
    fs = unpacked(tmp_path, Item("dev/null", "char"), Item("d", "dir", xattrs={"trusted.overlay.redirect": "/other"}))
    assert list((fs / "dev").iterdir()) == []
    assert os.listxattr(fs / "d") == []


@root_only
def test_a_whiteout_removes_nothing_of_its_own_layer_wherever_it_stands(tmp_path: Path):
    # moby/moby#17819, google/go-containerregistry#2372
    fs = unpacked(
        tmp_path,
        Item("d/first", value="1"),
        Item("d/.wh.first"),
        Item("d/.wh.second"),
        Item("d/second", value="2"),
        Item("d/.wh.gone"),
        Item("d/third", value="3"),
        Item(".wh.new"),
        Item("new/file", value="4"),
    )
    assert [(fs / "d" / name).read_text() for name in ("first", "second", "third")] == ["1", "2", "3"]
    assert is_whiteout(fs / "d/gone")
    assert (fs / "new/file").read_text() == "4" and is_opaque(fs / "new")


@root_only
def test_an_opaque_folder_hides_what_is_below_and_keeps_its_own(tmp_path: Path):
    fs = unpacked(tmp_path, Item("d/own", value="1"), Item("d/.wh..wh..opq"), Item("d/later", value="2"))
    assert is_opaque(fs / "d")
    assert sorted(path.name for path in (fs / "d").iterdir()) == ["later", "own"]


@root_only
def test_a_whiteout_written_as_a_hard_link_is_one_and_aufs_bookkeeping_is_none(tmp_path: Path):
    # smol-machines/smolvm#401
    fs = unpacked(tmp_path, Item(".wh.gone", "hardlink", ".wh..wh.aufs"), Item(".wh..wh.plnk", "dir"))
    assert [path.name for path in fs.iterdir()] == ["gone"] and is_whiteout(fs / "gone")


def test_a_hard_link_replaces_what_is_at_its_name(tmp_path: Path):
    # A3S-Lab/Box#78
    fs = unpacked(
        tmp_path,
        Item("a", value="new"),
        Item("b", value="old"),
        Item("b", "hardlink", "a"),
        Item("c/x", value="1"),
        Item("c", "hardlink", "a"),
        Item("a", "hardlink", "a"),
    )
    assert (fs / "b").read_text() == (fs / "c").read_text() == "new" and (fs / "a").stat().st_nlink == 3


def test_another_diff_id_and_a_broken_stream_are_data_loss(tmp_path: Path):
    layer = tar([Item("a", value="x" * 5000)])
    with pytest.raises(DataLoss, match="unpacks to"):
        unpack(io.BytesIO(layer), tmp_path / "1", "sha256:layer", "sha256:" + "0" * 64)
    for number, broken in enumerate((layer[:1500], gzip.compress(layer)[:-20], b"\x28\xb5\x2f\xfdxxxx", b"?" * 600)):
        with pytest.raises(DataLoss, match="sha256:layer"):
            unpack(io.BytesIO(broken), tmp_path / f"b{number}", "sha256:layer", digest(layer))


def test_a_header_that_claims_gigabytes_is_refused_before_it_is_read(tmp_path: Path):
    import tarfile

    entry = tarfile.TarInfo("pax")
    entry.type, entry.size = tarfile.XHDTYPE, 4 << 30
    with pytest.raises(DataLoss, match="header of 4294967296 bytes"):
        unpack(io.BytesIO(entry.tobuf() + bytes(4096)), tmp_path / "fs", "sha256:layer", "sha256:" + "0" * 64)


NAMES = st.lists(st.sampled_from(["a", "b", "..", ".", "", ".wh.a", ".wh..wh..opq"]), min_size=1, max_size=4).map(
    "/".join
)
ITEMS = st.builds(
    Item,
    NAMES.filter(lambda name: "\0" not in name),
    st.sampled_from(["dir", "file", "symlink", "hardlink", "fifo", "char"]),
    st.one_of(NAMES, NAMES.map(lambda name: f"/{name}"), st.sampled_from(["../canary", "../../canary", ".."])),
)


@root_only
@settings(max_examples=300, deadline=None)
@given(st.lists(ITEMS, max_size=12))
def test_whatever_a_layer_says_nothing_beside_its_folder_changes(items: list[Item]):
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        (base / "canary").write_text("alive")
        (base / "canary").chmod(0o640)
        before = (base / "canary").stat()
        try:
            unpacked(base, *items)
        except AteError:
            pass
        assert sorted(path.name for path in base.iterdir()) == ["canary", "fs"]
        assert (base / "canary").stat()[:9] == before[:9]
        assert (base / "canary").stat().st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize(
    ("text", "registry", "repository"),
    [
        ("busybox@sha256:" + "a" * 64, "registry-1.docker.io", "library/busybox"),
        ("team/app:v1@sha256:" + "a" * 64, "registry-1.docker.io", "team/app"),
        ("docker.io/team/app@sha256:" + "a" * 64, "registry-1.docker.io", "team/app"),
        ("localhost:5000/app:v1@sha256:" + "a" * 64, "localhost:5000", "app"),
        ("[::1]:5000/a/b@sha256:" + "a" * 64, "[::1]:5000", "a/b"),
        ("ghcr.io/a/b@sha256:" + "a" * 64, "ghcr.io", "a/b"),
    ],
)
def test_references_name_registry_and_repository(text: str, registry: str, repository: str):
    parsed = parse(text)
    assert (parsed.registry, parsed.repository, parsed.digest) == (registry, repository, "sha256:" + "a" * 64)


@pytest.mark.parametrize(
    "text",
    [
        "busybox",
        "busybox:latest",
        "x@sha256:12",
        "x@sha512:" + "a" * 64,
        "Ü@sha256:" + "a" * 64,
        "a/../b@sha256:" + "a" * 64,
    ],
)
def test_a_reference_without_digest_or_with_a_strange_name_is_refused(text: str):
    with pytest.raises(InvalidArgument):
        parse(text)
