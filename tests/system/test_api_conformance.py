"""Promise: every RPC keeps every rule of the contract that applies to it, told by a client that is not ours.

The rows are in `tests/system/api_table/`, a module a topic. They run against one real api role (SQLite, mutual TLS,
a node whose sandboxes are a model) and come in any order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.api_peer import METHODS, Api, open_api
from tests.system.api_table import (
    access,
    callers,
    debug,
    egress,
    events,
    every_rpc,
    lifecycle,
    lists,
    minting,
    nodes,
    provider,
    resources,
    tags,
    template_containers,
    template_volumes,
    templates,
    watches,
    workers,
)
from tests.system.api_table.makers import build_lab
from tests.system.api_table.rows import ROWS, Row

TOPICS = (
    callers,
    debug,
    egress,
    events,
    every_rpc,
    lifecycle,
    lists,
    minting,
    nodes,
    access,
    provider,
    resources,
    tags,
    template_containers,
    template_volumes,
    templates,
    watches,
    workers,
)
BY_ITSELF = {every_rpc, callers}
"""Topics whose rows are made from the descriptors: they alone do not make an RPC covered."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with open_api(tmp_path_factory.mktemp("api")) as running:
        build_lab(running)
        yield running


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_api(row: Row, api: Api):
    row.check(api)


def test_every_rpc_of_the_descriptors_has_rows_of_its_own_and_no_row_is_there_twice():
    generated = {topic.__name__ for topic in BY_ITSELF}
    covered = {row.rpc for row in ROWS if row.topic not in generated}
    assert covered == set(METHODS), "write rows for what is missing, drop those of what is gone"
    titles = [str(row) for row in ROWS]
    assert len(titles) == len(set(titles)), sorted(title for title in titles if titles.count(title) > 1)
