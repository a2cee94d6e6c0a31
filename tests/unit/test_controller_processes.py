"""Promises of the controller's processes: it ends what is its own, and nothing of a worker stays behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from ate.controller import processes as module
from ate.controller.processes import Processes

UID = "00000000-0000-4000-8000-00000000c0de"


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program that sleeps, with these words on its command line."""
    program = "import time; print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def workers(root: Path) -> Processes:
    found = Processes(root, 8443, ())
    found.load()
    return found


def note(root: Path, uid: str) -> None:
    folder = root / "ateoms" / uid
    folder.mkdir(parents=True)
    text = '{"uid": "%s", "pool": "p", "sandbox_class": "gvisor", "ip": "127.64.0.1", "port": 8443, "epoch": 1}'
    (folder / "worker.json").write_text(text % uid)


async def test_a_worker_is_adopted_and_ended_with_its_folder(tmp_path: Path) -> None:
    note(tmp_path, UID)
    with process("--role=ateom", f"--worker-uid={UID}") as child:
        found = workers(tmp_path)
        assert found.all()[UID].alive
        async with trio.open_nursery() as nursery:
            nursery.start_soon(found.stop, UID)
            await trio.to_thread.run_sync(child.wait)  # reaps it, as init does
        assert not (tmp_path / "ateoms" / UID).exists() and not found.all()


async def test_a_process_that_took_over_a_worker_s_number_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note(tmp_path, UID)
    with process() as stranger, process("--role=ateom", "--worker-uid=another") as other:
        for child in (stranger, other):
            with monkeypatch.context() as patch:
                patch.setattr(module, "_running", lambda pid=child.pid: {UID: pid})
                found = workers(tmp_path)
            (tmp_path / "ateoms" / UID).mkdir(exist_ok=True)
            await found.stop(UID)
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.2)
            note(tmp_path, UID)


async def test_folders_that_no_note_makes_a_worker_of_are_collected(tmp_path: Path) -> None:
    note(tmp_path, UID)
    (tmp_path / "ateoms/died-before-the-note").mkdir()
    for name, text in (("torn", ""), ("half", '{"uid": "half"}')):
        (tmp_path / "ateoms" / name).mkdir()
        (tmp_path / "ateoms" / name / "worker.json").write_text(text)
    (tmp_path / "ateoms/retiring").mkdir()
    (tmp_path / "ateoms/by-hand").mkdir()
    with process("--role=ateom", "--worker-uid=by-hand"):
        found = workers(tmp_path)
        await found.collect(busy={"retiring"})
        assert {path.name for path in (tmp_path / "ateoms").iterdir()} == {UID, "retiring", "by-hand"}
    await found.collect()
    assert [path.name for path in (tmp_path / "ateoms").iterdir()] == [UID]


async def test_a_worker_whose_note_cannot_be_written_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = workers(tmp_path)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        found.add("p", "gvisor", 0, 0)
    await found.collect()
    assert not list((tmp_path / "ateoms").iterdir())
