"""Promises of the audit log: a chain that shows every change, files of bounded size, and nothing done untold."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ate.api.access import audit
from ate.cli.main import main
from ate.errors import DataLoss, Unavailable


def written(folder: Path, count: int, **options: int) -> audit.AuditLog:
    log = audit.AuditLog(folder, **options)  # type: ignore[arg-type]
    for number in range(count):
        log.write(caller="user:ann", method="/ateapi.Control/CreateActor", object=f"actor demo/a{number}")
    log.close()
    return log


def lines_of(folder: Path) -> list[str]:
    return [line for path in audit.files_of(folder) for line in path.read_text().splitlines()]


def test_a_chain_of_records_is_whole_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    written(tmp_path, 3)
    written(tmp_path, 2)
    verdict = audit.verify(tmp_path)
    assert (verdict.records, verdict.first, verdict.last) == (5, 1, 5)
    assert [json.loads(line)["seq"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in audit.files_of(tmp_path))


def swap(lines: list[str]) -> None:
    lines[1], lines[2] = lines[2], lines[1]


def forge(lines: list[str]) -> None:
    """Changes a record and its own hash with it."""
    record = json.loads(lines[2])
    record["caller"] = "user:eve"
    record["hash"] = audit.digest(record)
    lines[2] = json.dumps(record)


CHANGES: dict[str, Callable[[list[str]], object]] = {
    "a changed word": lambda lines: lines.__setitem__(2, lines[2].replace("user:ann", "user:eve")),
    "a record taken out": lambda lines: lines.pop(2),
    "the first taken out, and the next made to look like it": lambda lines: (
        lines.pop(0),
        lines.__setitem__(0, lines[0].replace('"seq":2', '"seq":1')),
    ),
    "two swapped": swap,
    "one there twice": lambda lines: lines.insert(2, lines[2]),
    "a forged one with a hash of its own": forge,
    "junk": lambda lines: lines.__setitem__(2, "{"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_change_goes_unnoticed_and_its_place_is_named(what: str, tmp_path: Path) -> None:
    written(tmp_path, 5)
    (path,) = audit.files_of(tmp_path)
    lines = path.read_text().splitlines()
    CHANGES[what](lines)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataLoss, match=r"audit-.*jsonl, line \d"):
        audit.verify(tmp_path)


def test_files_are_of_bounded_size_and_number_and_the_chain_goes_through_them(tmp_path: Path) -> None:
    written(tmp_path, 40, max_file=1500, kept=4)
    written(tmp_path, 40, max_file=1500, kept=4)
    files = audit.files_of(tmp_path)
    assert len(files) == 4 and all(path.stat().st_size <= 1500 for path in files)
    verdict = audit.verify(tmp_path)
    assert verdict.last == 80 and verdict.first > 1 and verdict.records == verdict.last - verdict.first + 1
    files[1].unlink()
    with pytest.raises(DataLoss, match="something is missing"):
        audit.verify(tmp_path)


def test_half_a_line_that_a_crash_left_is_dropped_and_the_chain_goes_on(tmp_path: Path) -> None:
    written(tmp_path, 2)
    (path,) = audit.files_of(tmp_path)
    with path.open("a") as file:
        file.write('{"seq":3,"time":"20')
    assert audit.verify(tmp_path).last == 2
    written(tmp_path, 1)
    assert audit.verify(tmp_path).last == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a small file system")
def test_a_log_that_cannot_be_written_lets_nothing_be_done(tmp_path: Path) -> None:
    from tests.system.disks import small_disk

    with small_disk(tmp_path / "disk", "64k") as disk:
        log = audit.AuditLog(disk / "audit")
        filler = disk / "filler"
        filler.write_bytes(b"x" * 40_000)
        with pytest.raises(Unavailable, match="nothing is done"):
            for _ in range(1000):
                log.write(caller="user:ann")
        filler.unlink()
        log.write(caller="user:ann", after=True)
        log.close()
        assert audit.verify(disk / "audit").records > 1


def test_reading_goes_on_where_it_was(tmp_path: Path) -> None:
    written(tmp_path, 40, max_file=1500)
    for after in (0, 1, 7, 39, 40, 41):
        assert [r["seq"] for _, _, r in audit.read(tmp_path, after=after)] == list(range(after + 1, 41))


def test_the_command_line_verifies_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "verify", f"--root={tmp_path}"]) == 1 and "no audit log" in capsys.readouterr().err
    written(tmp_path / "audit", 3)
    assert main(["audit", "verify", f"--root={tmp_path}"]) == 0
    assert "whole: 3 records, 1 to 3" in capsys.readouterr().out
    assert main(["audit", "tail", "-n", "2", f"--root={tmp_path}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and "user:ann  CreateActor  actor demo/a2" in shown[1]
    assert main(["audit", "tail", "-n", "1", "-o", "json", f"--root={tmp_path}"]) == 0
    assert json.loads(capsys.readouterr().out)["seq"] == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATE_ROOT", str(tmp_path))
        assert main(["audit", "verify"]) == 0, "settings of the environment count here, too"
    capsys.readouterr()
    (path,) = audit.files_of(tmp_path / "audit")
    path.write_text(path.read_text().replace("demo/a1", "demo/a9"))
    assert main(["audit", "verify", f"--root={tmp_path}"]) == 1
    assert "line 2: the record was changed" in capsys.readouterr().err


@given(st.dictionaries(st.sampled_from(["caller", "object", "reason"]), st.text(max_size=30), max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_whatever_callers_call_themselves_stays_one_line(tmp_path: Path, fields: dict[str, str]) -> None:
    log = audit.AuditLog(tmp_path)
    log.write(**fields)
    log.close()
    audit.verify(tmp_path)
    assert all(json.loads(line)["seq"] for line in lines_of(tmp_path))
