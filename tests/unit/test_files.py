"""Promises of files and folders: what a call has acknowledged is there after power loss, whole."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ate import files
from tests.unit.power import disk


def test_a_whole_file_is_there_after_power_loss_under_its_name(tmp_path: Path) -> None:
    with disk(tmp_path / "d") as it:
        for text in ("first", "second"):
            files.write_whole(it.path / "note", text)
            with it.after_power_loss() as found:
                assert (found / "note").read_text() == text


def test_a_file_that_could_not_be_written_leaves_nothing_beside_the_old_one(tmp_path: Path) -> None:
    files.write_whole(tmp_path / "note", "first", mode=0o640)
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(tmp_path / "note", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["note"] and (tmp_path / "note").read_text() == "first"
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o640


def test_folders_and_trees_are_there_after_power_loss(tmp_path: Path) -> None:
    with disk(tmp_path / "d") as it:
        files.make_folders(it.path / "a/b/c")
        with it.after_power_loss() as found:
            assert (found / "a/b/c").is_dir()
        (it.path / "a/x").write_bytes(b"x" * 100_000)
        (it.path / "a/b/link").symlink_to("../x")
        files.sync_tree(it.path / "a")
        with it.after_power_loss() as found:
            assert (found / "a/b/link").read_bytes() == b"x" * 100_000


def test_a_folder_that_another_thread_makes_is_used_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    second_is_done = threading.Event()
    sync_folder = files.sync_folder

    def slow(folder: Path) -> None:
        if threading.current_thread().name == "first":
            second.start()
            second_is_done.wait(0.3)
            order.append("first synced")
        sync_folder(folder)

    def find() -> None:
        files.make_folders(tmp_path / "a")
        order.append("second goes on")
        second_is_done.set()

    monkeypatch.setattr(files, "sync_folder", slow)
    first = threading.Thread(target=files.make_folders, args=(tmp_path / "a",), name="first")
    second = threading.Thread(target=find, name="second")
    first.start()
    first.join()
    second.join()
    assert order == ["first synced", "second goes on"]
