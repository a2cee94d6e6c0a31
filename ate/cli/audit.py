"""`ate audit`: reads the audit log of an install on this machine, and says whether its chain is whole."""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from pathlib import Path
from typing import Any

from ate.api.access import audit
from ate.errors import NotFound

FOLDER = "audit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    verify = verbs.add_parser("verify", help="follow the chain of hashes from its beginning to its end")
    tail = verbs.add_parser("tail", help="show the newest records")
    tail.add_argument("-n", "--lines", type=int, default=20, help="how many (default %(default)s)")
    tail.add_argument("-f", "--follow", action="store_true", help="go on with those to come")
    tail.add_argument("-o", "--output", default="table", choices=("table", "json"))
    for each in (verify, tail):
        each.add_argument("--root", default="/var/lib/ate", help="folder of the install (default %(default)s)")


def run(options: argparse.Namespace) -> int:
    folder = Path(options.root).absolute() / FOLDER
    if not audit.files_of(folder):
        raise NotFound(f"there is no audit log in {folder}: the api role writes it where it runs")
    if options.action == "verify":
        verdict = audit.verify(folder)
        print(f"whole: {verdict.records} records, {verdict.first} to {verdict.last}")
        if verdict.first > 1:
            print(f"records before {verdict.first} are gone with files that were rotated out")
        print(f"last hash {verdict.last_hash}: kept somewhere else, it shows later that nothing was cut off")
        return 0
    last = 0
    for _, _, record in deque(audit.read(folder), maxlen=max(options.lines, 0)):
        _show(record, options.output)
        last = record["seq"]
    while options.follow:
        time.sleep(0.5)
        for _, _, record in audit.read(folder, after=last):
            _show(record, options.output)
            last = record["seq"]
    return 0


def _show(record: dict[str, Any], format_: str) -> None:
    if format_ == "json":
        print(json.dumps(record), flush=True)
        return
    verb = record.get("method", "").rpartition("/")[2]
    words = [record.get("time", ""), record.get("caller", ""), verb, record.get("object", "") or "-"]
    words.append("allowed" if record.get("allowed") else f"DENIED: {record.get('reason', '')}")
    print("  ".join(words), flush=True)
