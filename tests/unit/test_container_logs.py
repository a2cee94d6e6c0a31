"""Promises of container logs: every line becomes one valid JSON line with our labels, and files stay bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from ate.node.container_logs import MAX_FILE, MAX_LINE, ContainerLog, LineSplitter, to_json

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LABELS = {"ate.actor.uid": "u"}


def test_a_json_object_is_kept_and_augmented() -> None:
    line = json.dumps({"msg": "hi", "time": "theirs", "ate.x": 1, "labels": {"own": "1", "ate.actor.uid": "forged"}})
    assert json.loads(to_json(line.encode(), LABELS, NOW)) == {
        "msg": "hi",
        "time": "theirs",
        "labels": {"own": "1", "ate.actor.uid": "u"},
    }


def test_any_other_line_becomes_a_message_with_the_time() -> None:
    for text in ("plain", "[1, 2]", "{not json", '"text"', ""):
        assert json.loads(to_json(text.encode(), LABELS, NOW)) == {
            "time": "2026-01-02T00:00:00.000000+00:00",
            "message": text,
            "labels": LABELS,
        }


@given(st.binary(max_size=300))
@example(b'{"a": NaN}')
@example(b'{"a": "\\ud800"}')
@example(b'{"labels": 5}')
@example(b"{" * 5000)
def test_whatever_is_printed_gives_one_line_of_valid_json_with_our_labels(line: bytes) -> None:
    encoded = to_json(line, LABELS, NOW)
    assert "\n" not in encoded
    record = json.loads(encoded.encode(), parse_constant=lambda name: 1 / 0)
    assert record["labels"]["ate.actor.uid"] == "u" and record["time"]


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))), st.integers(1, 7))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], step: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter, got = LineSplitter(), []
    for start in range(0, len(stream), step):
        got += splitter.feed(stream[start : start + step])
    assert got + splitter.finish() == lines


def test_an_endless_line_is_cut_and_nothing_of_it_is_lost() -> None:
    splitter = LineSplitter()
    got = splitter.feed(b"x" * (3 * MAX_LINE + 5)) + splitter.feed(b"y\nnext\n")
    assert [len(line) for line in got[:3]] == [MAX_LINE] * 3
    assert b"".join(got) == b"x" * (3 * MAX_LINE + 5) + b"ynext"


def test_files_are_bounded_and_the_newest_lines_are_there(tmp_path: Path) -> None:
    log = ContainerLog(tmp_path / "app.jsonl", LABELS)
    for number in range(300):
        log.write([b"%d " % number + b"z" * 50000])
    log.close()
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"app.jsonl", "app.jsonl.1"} and max(sizes.values()) < MAX_FILE + 60000
    assert json.loads((tmp_path / "app.jsonl").read_text().splitlines()[-1])["message"].startswith("299 ")
