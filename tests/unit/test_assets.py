"""Promises of runtime binaries: kept by content, whole after power loss, looked at again, mended when damaged."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from ate.errors import DataLoss, NotFound
from ate.node import assets as module
from ate.node.assets import Assets, architecture
from ate.proto import atelet_pb2 as pb
from tests.unit.power import disk

OWN = pb.SandboxAssets(sandbox_class="gvisor")


def named(name: str, path: Path) -> pb.SandboxAssets:
    """What a SandboxConfig says about one asset that lies at `path`."""
    file = pb.AssetFile(url=f"file://{path}", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    return pb.SandboxAssets(sandbox_class="gvisor", assets={architecture(): pb.ArchAssets(files={name: file})})


def archive(path: Path, content: bytes) -> Path:
    """A tar with a runsc and a file beside it."""
    with tarfile.open(path, "w") as tar:
        for name in ("runsc", "lib/other"):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def runsc(tmp_path: Path) -> Path:
    path = tmp_path / "source/runsc"
    path.parent.mkdir()
    path.write_bytes(os.urandom(200_000))
    return path


DAMAGES = {
    "emptied": lambda path: os.truncate(path, 0),
    "torn": lambda path: os.truncate(path, 70_000),
    "rotten": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("whose", ["the node's", "a config's"])
async def test_a_damaged_binary_is_noticed_after_a_start_and_fetched_again(
    tmp_path: Path, runsc: Path, whose: str, damage: str
) -> None:
    wanted = OWN if whose == "the node's" else named("runsc", runsc)
    kept = (await Assets(tmp_path / "assets", str(runsc)).ensure(wanted)).runsc
    assert kept.read_bytes() == runsc.read_bytes() and os.access(kept, os.X_OK)
    DAMAGES[damage](kept)
    again = (await Assets(tmp_path / "assets", str(runsc)).ensure(wanted)).runsc
    assert again == kept and kept.read_bytes() == runsc.read_bytes() and os.access(kept, os.X_OK)
    assert sorted(path.name for path in (tmp_path / "assets").iterdir()) == ["sha256"], "nothing else stays"


async def test_a_damaged_binary_that_cannot_be_had_again_is_refused(tmp_path: Path, runsc: Path) -> None:
    wanted = named("runsc", runsc)
    kept = (await Assets(tmp_path / "assets").ensure(wanted)).runsc
    os.truncate(kept, 0)
    runsc.unlink()
    with pytest.raises(NotFound, match="source/runsc"):
        await Assets(tmp_path / "assets").ensure(wanted)
    runsc.write_bytes(b"something else")
    with pytest.raises(DataLoss, match="source/runsc"):
        await Assets(tmp_path / "assets").ensure(wanted)


async def test_a_binary_is_read_once_in_the_life_of_a_process(
    tmp_path: Path, runsc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    digest = module._digest
    monkeypatch.setattr(module, "_digest", lambda path: read.append(path) or digest(path))
    wanted = named("runsc", runsc)
    await Assets(tmp_path / "assets").ensure(wanted)
    assets = Assets(tmp_path / "assets")
    read.clear()
    for _ in range(5):
        kept = (await assets.ensure(wanted)).runsc
    assert read == [kept]
    os.truncate(kept, 5)
    assert (await assets.ensure(wanted)).runsc.read_bytes() == runsc.read_bytes(), "a file that changed is read again"


async def test_an_upgraded_node_keeps_the_old_binary_for_who_sleeps_in_it(tmp_path: Path, runsc: Path) -> None:
    assets = Assets(tmp_path / "assets", str(runsc))
    old = await assets.ensure(OWN)
    before = runsc.read_bytes()
    runsc.write_bytes(b"newer")
    new = await assets.ensure(OWN)
    assert new.runsc.read_bytes() == b"newer" and old.runsc.read_bytes() == before
    url, sha256 = old.sources["runsc"]
    files = {"runsc": pb.AssetFile(url=url, sha256=sha256)}
    pinned = pb.SandboxAssets(sandbox_class="gvisor", assets={architecture(): pb.ArchAssets(files=files)})
    assert (await Assets(tmp_path / "assets", str(runsc)).ensure(pinned)).runsc.read_bytes() == before


async def test_a_tree_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    wanted = named("gvisor", archive(tmp_path / "gvisor.tar", b"content"))
    tree = (await Assets(tmp_path / "assets").ensure(wanted)).runsc.parent
    (marks,) = [path for path in tree.parent.iterdir() if path != tree]
    marks.unlink()
    (tree / "runsc").write_bytes(b"")
    shutil.rmtree(tree / "lib")
    again = (await Assets(tmp_path / "assets").ensure(wanted)).runsc
    assert again.read_bytes() == (tree / "lib/other").read_bytes() == b"content"
    (tmp_path / "gvisor.tar").unlink()
    assert (await Assets(tmp_path / "assets").ensure(wanted)).runsc == again, "a finished one is used as it is"


async def test_what_a_killed_process_was_fetching_is_removed(tmp_path: Path, runsc: Path) -> None:
    (tmp_path / "assets/.fetch-killed").mkdir(parents=True)
    (tmp_path / "assets/.fetch-killed/file").write_bytes(b"half")
    await Assets(tmp_path / "assets").ensure(named("runsc", runsc))
    assert [path.name for path in (tmp_path / "assets").iterdir()] == ["sha256"]


@pytest.mark.parametrize("form", ["runsc", "gvisor"])
async def test_after_power_loss_a_binary_is_there_and_whole(tmp_path: Path, runsc: Path, form: str) -> None:
    content = runsc.read_bytes()
    source = runsc if form == "runsc" else archive(tmp_path / "gvisor.tar", content)
    wanted = named(form, source)
    with disk(tmp_path / "d") as it:
        kept = (await Assets(it.path / "node/assets").ensure(wanted)).runsc
        source.unlink()  # it cannot be had again
        (it.path / "other").touch()
        with (it.path / "other").open("r+b") as file:
            os.fsync(file)  # which commits names that were given before, whatever became of their content
        with it.after_power_loss() as found:
            assert (found / kept.relative_to(it.path)).read_bytes() == content
            assert (await Assets(found / "node/assets").ensure(wanted)).runsc.read_bytes() == content
