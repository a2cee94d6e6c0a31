"""Promises of the api's pure parts: validation, paging, quantities."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from ate import names, quantity
from ate.api import paging
from ate.api.validation import resources as rules
from ate.api.validation import template as template_rules
from ate.api.validation.problems import Problems, reject_unknown_fields
from ate.errors import InvalidArgument
from ate.proto import ateapi_pb2 as pb
from ate.store import Key
from tests.simulation.cluster import template


def problems_of(value: pb.ActorTemplate) -> list[str]:
    template_rules.apply_defaults(value)
    problems = Problems()
    template_rules.check(problems, "actor_template", value)
    return [f"{path}: {message}" for path, message in problems.found]


def changed(change: Any) -> pb.ActorTemplate:
    value = template()
    change(value)
    return value


def test_a_sound_template_has_no_problems_and_gets_its_defaults() -> None:
    value = template()
    assert problems_of(value) == []
    assert value.snapshots_config.on_pause == value.snapshots_config.on_commit == pb.SNAPSHOT_CONTENT_SCOPE_FULL
    assert value.containers[0].readyz.http_get.path == "/readyz"


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("metadata.name", lambda t: setattr(t.metadata, "name", "Upper")),
        ("metadata.name", lambda t: setattr(t.metadata, "name", "x" * 64)),
        ("metadata.atespace", lambda t: setattr(t.metadata, "atespace", "")),
        ("containers:", lambda t: t.ClearField("containers")),
        ("containers[1]:", lambda t: t.containers.add().CopyFrom(t.containers[0])),
        ("containers[0].name", lambda t: setattr(t.containers[0], "name", "pause")),
        ("containers[0].image", lambda t: setattr(t.containers[0], "image", "busybox:latest")),
        ("containers[0].readyz.http_get.port", lambda t: setattr(t.containers[0].readyz.http_get, "port", 0)),
        ("containers[0].readyz.http_get.path", lambda t: setattr(t.containers[0].readyz.http_get, "path", "/a?b")),
        ("containers[0].readyz.timeout", lambda t: setattr(t.containers[0].readyz, "timeout_seconds", 3601)),
        ("containers[0].env[0].name", lambda t: t.containers[0].env.add(name="A=B")),
        ("containers[0].env[1]", lambda t: [t.containers[0].env.add(name="A") for _ in range(2)]),
        (
            "containers[0].volume_mounts[0].name",
            lambda t: t.containers[0].volume_mounts.add(name="no", mount_path="/a"),
        ),
        ("containers[0].resources", lambda t: t.containers[0].resources.limits.add(name="cpu", quantity="1")),
        ("capabilities.add[0]", lambda t: t.containers[0].security_context.capabilities.add.append("CAP_KILL")),
        ("capabilities.add[0]", lambda t: t.containers[0].security_context.capabilities.add.append("ALL")),
        ("volumes[0]", lambda t: t.volumes.add(name="unused").durable_dir.SetInParent()),
        ("sandbox_config.sandbox_class", lambda t: t.sandbox_config.ClearField("sandbox_class")),
        ("sandbox_config.config_name", lambda t: setattr(t.sandbox_config, "config_name", "")),
        ("snapshots_config:", lambda t: t.ClearField("snapshots_config")),
        ("snapshots_config.storage_location", lambda t: setattr(t.snapshots_config, "storage_location", "/tmp/x")),
        (
            "snapshots_config.storage_location",
            lambda t: setattr(t.snapshots_config, "storage_location", "file:///a/../b"),
        ),
        (
            "snapshots_config.on_commit",
            lambda t: t.snapshots_config.MergeFrom(pb.SnapshotsConfig(on_pause=2, on_commit=1)),
        ),
        ("resources.limits[0].quantity", lambda t: t.resources.limits.add(name="cpu", quantity="1000")),
        ("resources.limits[0].quantity", lambda t: t.resources.limits.add(name="memory", quantity="-1")),
        ("resources.limits[0].name", lambda t: t.resources.limits.add(name="gpu", quantity="1")),
        ("worker_selector.match_labels", lambda t: t.worker_selector.SetInParent()),
        ("lifecycle.idle_timeout", lambda t: t.lifecycle.idle_timeout.FromMilliseconds(10)),
    ],
)
def test_a_breach_is_told_with_the_path_of_its_field(path: str, change: Any) -> None:
    found = problems_of(changed(change))
    assert any(f"actor_template.{path}" in text or path in text for text in found), found


def test_mounts_may_not_nest_or_climb() -> None:
    for paths in (["/a", "/a/b"], ["/a/../b"], ["relative"], ["/"], ["/a//b"]):
        value = template(volumes=[pb.Volume(name=f"v{n}", durable_dir=pb.DurableDirVolume()) for n in range(1)])
        for path in paths:
            value.containers[0].volume_mounts.add(name="v0", mount_path=path)
        assert any("mount_path" in text for text in problems_of(value)), paths


def test_all_breaches_of_a_request_come_in_one_error_with_details() -> None:
    problems = Problems()
    rules.actor(problems, "actor", pb.Actor(metadata=pb.ResourceMetadata(name="Bad Name")))
    with pytest.raises(InvalidArgument) as caught:
        problems.raise_if_any()
    (detail,) = caught.value.details
    assert isinstance(detail, error_details_pb2.BadRequest)
    fields = {violation.field for violation in detail.field_violations}
    assert {"actor.metadata.atespace", "actor.metadata.name", "actor.actor_template"} <= fields


def test_unknown_fields_are_refused_with_the_message_that_holds_them() -> None:
    raw = pb.GetActorRequest(actor=pb.ObjectRef(name="x", atespace="y")).SerializeToString()
    reject_unknown_fields(pb.GetActorRequest.FromString(raw))
    inner = pb.ObjectRef(name="x").SerializeToString() + b"\x9a\x06\x01z"
    request = pb.GetActorRequest.FromString(b"\x0a" + bytes([len(inner)]) + inner)
    with pytest.raises(InvalidArgument, match="actor"):
        reject_unknown_fields(request)


def test_every_listed_capacity_label_and_asset_rule_of_pools_and_configs() -> None:
    pool = pb.WorkerPool(metadata=pb.ResourceMetadata(name="p"), spec=pb.WorkerPoolSpec(replicas=-1))
    pool.spec.template.labels["ate.dev/x"] = "y"
    pool.spec.template.labels["policy.ate.dev/x"] = "y"
    pool.spec.template.resources.limits["cpu"] = "1"
    pool.spec.template.resources.requests["cpu"] = "2"
    problems = Problems()
    rules.worker_pool(problems, "worker_pool", pool)
    assert {path for path, _ in problems.found} == {
        "worker_pool.spec.replicas",
        "worker_pool.spec.template.labels[ate.dev/x]",
        "worker_pool.spec.template.labels[policy.ate.dev/x]",
        "worker_pool.spec.template.resources.requests[cpu]",
    }
    config = pb.SandboxRuntimeConfig(metadata=pb.ResourceMetadata(name="c"))
    config.spec.pause_image = "pause:latest"
    config.spec.assets["riscv"].files["other"].url = "file:///x"
    problems = Problems()
    rules.sandbox_config(problems, "sandbox_config", config)
    assert {path.removeprefix("sandbox_config.spec.") for path, _ in problems.found} == {
        "pause_image",
        "assets[riscv]",
        "assets[riscv].other.sha256",
    }


@given(st.text(max_size=70))
def test_names_follow_the_dns_rules(text: str) -> None:
    expected = (
        0 < len(text) <= 63
        and all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in text)
        and not text.startswith("-")
        and not text.endswith("-")
    )
    assert names.is_short(text) == expected


@given(st.integers(1, 10**6), st.sampled_from(["", "m", "k", "Ki", "Mi", "Gi", "M", "G"]))
def test_quantities_are_what_kubernetes_says(number: int, suffix: str) -> None:
    scale = {"": 1, "m": Decimal("0.001"), "k": 1000, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "M": 10**6, "G": 10**9}
    assert quantity.parse(f"{number}{suffix}") == number * scale[suffix]


def test_quantities_round_up_and_refuse_nonsense() -> None:
    assert quantity.milli_cpu("0.1") == 100 and quantity.milli_cpu("1m") == 1 and quantity.milli_cpu("0.0001") == 1
    assert quantity.in_bytes("1.5Ki") == 1536
    for text in ("", "1 Gi", "Gi", "1gi", "0x10", "1e", "--1", "1" * 40):
        with pytest.raises(ValueError, match="quantity"):
            quantity.parse(text)


SHORT = st.from_regex(names.SHORT, fullmatch=True)


@given(SHORT, SHORT | st.just(""), st.binary(max_size=40))
def test_page_tokens_are_bound_to_their_query_and_cannot_be_forged(name: str, scope: str, junk: bytes) -> None:
    secret = b"s" * 32
    token = paging.encode(secret, "actors:demo", Key(scope, name))
    assert len(token) <= paging.MAX_TOKEN and paging.decode(secret, "actors:demo", token) == Key(scope, name)
    for bad_secret, query in ((secret, "actors:other"), (b"t" * 32, "actors:demo")):
        with pytest.raises(InvalidArgument, match="page_token"):
            paging.decode(bad_secret, query, token)
    with pytest.raises(InvalidArgument, match="page_token"):
        paging.decode(secret, "actors:demo", "!" + junk.hex())
