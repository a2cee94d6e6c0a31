"""Promises of the snapshot formats: any file comes back, equal content has one digest, nonsense is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import struct
import tempfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ate.errors import DataLoss
from ate.node.snapshots import AssetSource, Manifest, StoredObject
from ate.node.snapshots.sparse import MAGIC, Compressor, content_digest, restore

KIB = 1 << 10
# Extents around the borders that matter: blocks of 64 KiB, windows of 1 MiB, the end of the file.
OFFSETS = st.sampled_from(
    [0, 1, 4 * KIB, 63 * KIB, 64 * KIB, 65 * KIB, 1000 * KIB, 1024 * KIB, 1025 * KIB, 2048 * KIB - 1]
)
EXTENTS = st.lists(st.tuples(OFFSETS, st.sampled_from([0, 7]), st.sampled_from([1, 4096, 70_000])), max_size=5)
SIZES = st.sampled_from([0, 1, 4095, 64 * KIB, 64 * KIB + 1, 1024 * KIB, 3000 * KIB])


def build(path: Path, size: int, extents: list[tuple[int, int, int]]) -> bytes:
    """A file with holes, and its content. The byte 0 writes real zeros, which are no hole."""
    content = bytearray(size)
    with path.open("wb") as file:
        file.truncate(size)
        for offset, byte, length in extents:
            data = bytes([byte]) * max(0, min(length, size - offset))
            file.seek(offset)
            file.write(data)
            content[offset : offset + len(data)] = data
    return bytes(content[:size])


def stored(path: Path) -> tuple[bytes, Compressor]:
    with path.open("rb", buffering=0) as file:
        compressor = Compressor(file.fileno())
        return b"".join(compressor), compressor


@settings(deadline=None, max_examples=80)
@given(SIZES, EXTENTS)
def test_a_file_with_holes_comes_back_and_its_digest_is_of_its_content(size: int, extents: list[tuple[int, int, int]]):
    with tempfile.TemporaryDirectory() as name:
        source, dense, target = (Path(name) / part for part in ("source", "dense", "target"))
        content = build(source, size, extents)
        dense.write_bytes(content)
        data, compressor = stored(source)
        assert (size, compressor.raw.hexdigest()) == content_digest(source) == content_digest(dense)
        assert compressor.stored_size == len(data)
        with target.open("xb", buffering=0) as file:
            assert restore(io.BytesIO(data), file.fileno(), size) == compressor.raw.hexdigest()
        assert target.read_bytes() == content
        assert target.stat().st_blocks <= dense.stat().st_blocks


def test_other_content_or_another_length_has_another_digest(tmp_path: Path):
    digests = set()
    for number, content in enumerate([b"", b"\0", b"\0\0", b"\1", b"\0\1", b"\1\0", bytes(70_000), bytes(70_001)]):
        path = tmp_path / str(number)
        path.write_bytes(content)
        digests.add(content_digest(path))
    assert len(digests) == 8


def packed(stream: bytes) -> bytes:
    return MAGIC + zstandard.compress(stream)


def integers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"ATESPRSE",
        b"ATESPRSE\1\0\0\0" + zstandard.compress(integers(4, -1)),
        MAGIC,
        MAGIC + b"no zstd at all",
        packed(integers(5, -1)),
        packed(integers(4)),
        packed(integers(4, 0, 4) + b"abc"),
        packed(integers(4, 0, 5) + b"abcde" + integers(-1)),
        packed(integers(4, 2, 1) + b"a" + integers(0, 1) + b"b" + integers(-1)),
        packed(integers(4, -2, 1) + b"a" + integers(-1)),
        packed(integers(4, 0, 0) + integers(-1)),
        packed(integers(4, 0, 1 << 60)),
        packed(integers(4, 0, 4) + b"abcd" + integers(-1) + b"more"),
        packed(integers(4, 0, 4) + b"abcd" + integers(-1))[:-3],
    ],
)
def test_what_is_no_canonical_stream_is_refused(tmp_path: Path, data: bytes):
    with (tmp_path / "target").open("xb", buffering=0) as file, pytest.raises(ValueError):
        restore(io.BytesIO(data), file.fileno(), 4)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_no_flipped_bit_restores_to_the_same_digest_unnoticed(data: st.DataObject):
    """The stored digest catches it first; the second line of defence must not crash or agree either."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "source"
        content = build(path, 70_000, [(0, 7, 5000)])
        packed_file, compressor = stored(path)
        at = data.draw(st.integers(0, len(packed_file) - 1))
        broken = bytearray(packed_file)
        broken[at] ^= 1 << data.draw(st.integers(0, 7))
        target = Path(name) / "target"
        with target.open("xb", buffering=0) as file:
            try:
                digest = restore(io.BytesIO(bytes(broken)), file.fileno(), 70_000)
            except ValueError:
                return
        assert digest != compressor.raw.hexdigest() or target.read_bytes() == content


# -- manifests --------------------------------------------------------------------------------------------------------

TEXT = st.text(max_size=20)
DIGEST = st.integers(0, 2**256 - 1).map(lambda value: f"{value:064x}")
NAME = st.from_regex(r"[a-z][a-z0-9._-]{0,10}", fullmatch=True)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = tuple(draw(st.lists(NAME, max_size=4, unique=True)))
    data = tuple(name for name in names if draw(st.booleans()))
    return Manifest(
        sandbox_class=draw(TEXT),
        assets=draw(st.dictionaries(TEXT, st.builds(AssetSource, TEXT, DIGEST), max_size=2)),
        pause_image=draw(TEXT),
        atespace=draw(TEXT),
        actor_name=draw(TEXT),
        actor_uid=draw(TEXT),
        template_atespace=draw(TEXT),
        template_name=draw(TEXT),
        file_names=names,
        data_file_names=data,
        scope=draw(st.sampled_from(["full", "data"])),
        objects=tuple(
            StoredObject(name, draw(st.integers(0, 1 << 40)), draw(DIGEST), f"{name}.zstd", 7, draw(DIGEST))
            for name in names
        ),
    )


@given(manifests())
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest):
    assert Manifest.from_json(manifest.to_json(), "here") == manifest


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(manifests(), st.data())
def test_a_manifest_with_any_part_replaced_is_read_or_refused_by_name(manifest: Manifest, data: st.DataObject):
    document = json.loads(manifest.to_json())
    document[data.draw(st.sampled_from(sorted(document)))] = data.draw(JSON)
    try:
        Manifest.from_json(json.dumps(document).encode(), "s3://bucket/snap/manifest.json")
    except DataLoss as error:
        assert "s3://bucket/snap/manifest.json" in error.message


@given(st.binary(max_size=50))
def test_garbage_is_no_manifest(data: bytes):
    with pytest.raises(DataLoss, match="here"):
        Manifest.from_json(data, "here")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "", ".", "..", ".part-x", "manifest.json", "x\0", "a\n"]
)
def test_a_file_name_that_leads_out_or_is_taken_is_refused(name: str):
    plain = Manifest("gvisor", {}, "", "", "", "", "", "", (), (), "full")
    stored_as = StoredObject(name, 1, "a" * 64, "x.zstd", 1, "a" * 64)
    evil = dataclasses.replace(plain, file_names=(name,), objects=(stored_as,))
    with pytest.raises(DataLoss):
        Manifest.from_json(evil.to_json(), "here")


def test_the_digest_is_of_the_stream_that_the_format_describes(tmp_path: Path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(b"hello")
        file.truncate(200_000)
    stream = integers(200_000, 0, 64 * KIB) + b"hello" + bytes(64 * KIB - 5) + integers(-1)
    assert content_digest(path) == (200_000, hashlib.sha256(stream).hexdigest())
