"""Promise: what was asked of the platform, and whether it was let, can be read afterwards; nothing is done untold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ate.api.access import audit
from ate.errors import Unavailable
from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, open_api, refused


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with open_api(tmp_path) as running:
        yield running


def records(api: Api) -> list[dict[str, Any]]:
    return [record for _, _, record in audit.read(api.folder / "audit")]


def test_changes_and_denials_are_told_with_who_what_and_why(api: Api) -> None:
    api.user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name="demo")))
    api.user("GetAtespace", atespace=pb.ObjectRef(name="demo"))
    with refused("PERMISSION_DENIED"):
        api.outsiders["an actor"]("DeleteAtespace", atespace=pb.ObjectRef(name="demo"))
    with refused("NOT_FOUND"):
        api.user("DeleteActor", actor=pb.ObjectRef(atespace="demo", name="a"))
    policy = pb.AccessPolicy(
        metadata=pb.ResourceMetadata(name="default"), bindings=[pb.Binding(role="owner", members=["user:bob"])]
    )
    api.user("CreateGlobalAccessPolicy", access_policy=policy)
    with refused("PERMISSION_DENIED"):
        api.user("DeleteActor", actor=pb.ObjectRef(atespace="demo", name="a"))
    told = [
        (record["caller"], record["method"].rpartition("/")[2], record["object"], record["allowed"])
        for record in records(api)
    ]
    eve = "spiffe://substrate-actor.local/atespace/demo/actor/a"
    assert told == [
        ("user:ann", "CreateAtespace", "atespace demo", True),
        (eve, "DeleteAtespace", "", False),
        ("user:ann", "DeleteActor", "actor demo/a", True),
        ("user:ann", "CreateGlobalAccessPolicy", "", True),
        ("user:ann", "DeleteActor", "actor demo/a", False),
    ]
    assert records(api)[-1]["reason"] == "is not editor in atespace demo, which DeleteActor needs"
    assert audit.verify(api.folder / "audit").records == 5


def test_what_cannot_be_told_is_not_done(api: Api) -> None:
    full = mock.patch.object(audit.AuditLog, "write", side_effect=Unavailable("the audit log cannot be written"))
    with full, refused("UNAVAILABLE", "audit log"):
        api.user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name="demo")))
    with refused("NOT_FOUND"):
        api.user("GetAtespace", atespace=pb.ObjectRef(name="demo"))


def test_no_secret_is_in_it(api: Api) -> None:
    api.user("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name="demo")))
    made = pb.ActorTemplate(metadata=pb.ResourceMetadata(atespace="demo", name="t"))
    made.containers.add(name="c", image="x").env.add(name="TOKEN", value="s3cr3t")
    with refused("INVALID_ARGUMENT"):
        api.user("CreateActorTemplate", actor_template=made)
    text = "".join(path.read_text() for path in audit.files_of(api.folder / "audit"))
    assert "actor_template demo/t" in text and "s3cr3t" not in text
