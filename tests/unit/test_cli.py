"""Promises of the command line that need no server: manifests, tables, settings, exit statuses."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ate.cli import manifests, output
from ate.cli.main import main
from ate.config import host_port, resolve
from ate.errors import InvalidArgument
from ate.proto import ateapi_pb2 as pb

POOL = """
apiVersion: ate.dev/v1alpha1
kind: WorkerPool
metadata: {name: agents, labels: {workload: x}}
spec:
  replicas: 3
  ateomImage: old/spelling
  template: {resources: {limits: {cpu: 1, memory: 512Mi}}}
"""


def test_a_kubernetes_pool_becomes_a_pool_record_and_back() -> None:
    (pool,) = manifests.read(POOL, "pool.yaml")
    assert isinstance(pool, pb.WorkerPool)
    assert pool.spec.replicas == 3 and pool.spec.worker_image == "old/spelling"
    assert pool.spec.sandbox_class == pb.SANDBOX_CLASS_GVISOR and pool.labels == {"workload": "x"}
    assert dict(pool.spec.template.resources.limits) == {"cpu": "1", "memory": "512Mi"}
    assert manifests.to_message(manifests.to_document(pool)) == pool


def test_the_other_spellings_of_the_sources_are_taken() -> None:
    text = """
metadata: {atespace: a, name: t}
containers:
- name: c
  image: x@sha256:aa
  wakeupProbe: {httpGet: {port: 80}, timeoutSeconds: 5}
snapshotConfig: {storageLocation: "file:///x"}
resources: {limits: {cpu: 500m}}
sandboxConfig: {sandboxClass: SANDBOX_CLASS_GVISOR, configName: c}
"""
    (template,) = manifests.read(text, "t.yaml")
    assert isinstance(template, pb.ActorTemplate)
    assert template.containers[0].readyz.timeout_seconds == 5
    assert template.snapshots_config.storage_location == "file:///x"
    assert template.resources.limits[0].quantity == "500m"


@pytest.mark.parametrize(
    "text",
    [
        "kind: Nope",
        "- 1",
        "{",
        "kind: WorkerPool\nmetadata: {name: x}",
        "kind: Actor\nnope: 1",
        "apiVersion: v1\nkind: Pod",
        "kind: [a]",
        "kind: {a: b}",
        "kind: List\nitems: [1]",
        "kind: List\nitems: {a: b}",
        "kind: ActorTemplate\ncontainers: 5",
        "kind: ActorTemplate\nmetadata: {name: x}\ncontainers: [5]",
        "kind: WorkerPool\nmetadata: {name: x}\nspec: {replicas: 1, sandboxClass: [a]}",
        "kind: WorkerPool\nmetadata: {name: x}\nspec: many",
        "kind: WorkerPool\nmetadata: {name: x}\nspec: [1]",
        "kind: WorkerPool\nmetadata: {name: x}\nspec: {replicas: 1, template: {resources: {limits: [a]}}}",
        "kind: SandboxConfig\nmetadata: {name: x}\nspec: 1",
        "kind: SandboxConfig\nmetadata: {name: x}\nspec: {assets: [1]}",
        "metadata: 2024-99-99",
        "kind: Actor\nmetadata: " + "{a: " * 3000 + "1" + "}" * 3000,
    ],
)
def test_a_bad_document_is_named_by_file_and_number(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"bad\.yaml"):
        list(manifests.read(text, "bad.yaml"))


def test_tables_show_the_columns_of_the_reference() -> None:
    actor = pb.Actor(metadata=pb.ResourceMetadata(atespace="a", name="n", version=3))
    actor.status.state = pb.ACTOR_STATE_SUSPENDED
    header, row = output.render([actor], "table", kind="Actor").splitlines()
    assert header.split("   ")[0].strip() == "ATESPACE" and "WORKER POD" in header
    assert row.split()[:2] == ["a", "n"] and "SUSPENDED" in row and "<none>" in row
    assert output.render([actor], "name", kind="Actor") == "actor/a/n"


def test_a_flag_beats_the_environment_beats_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("api-port: 3\nlog-level: debug\n")

    def parse(*argv: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        parser.add_argument("--config")
        parser.add_argument("--api-port", default="1")
        parser.add_argument("--log-level", default="info")
        resolve(parser, list(argv))
        return parser.parse_args(list(argv))

    assert parse().api_port == "1"
    assert parse("--config", str(config)).api_port == "3"
    monkeypatch.setenv("ATE_API_PORT", "4")
    assert parse(f"--config={config}").api_port == "4"
    assert parse(f"--config={config}", "--api-port=5").api_port == "5"
    assert parse(f"--config={config}").log_level == "debug"


def test_addresses_are_checked() -> None:
    assert host_port("[::1]:80") == ("::1", 80) and host_port("h", 7) == ("h", 7)
    for bad in ("h:x", "h:70000", "h:"):
        with pytest.raises(InvalidArgument):
            host_port(bad)


def test_the_version_needs_nothing_and_errors_have_their_exit_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out.startswith("ate ")
    assert main(["get", "actors", "-A", f"--root={tmp_path}"]) == 1
    assert "ate dev" in capsys.readouterr().err
    assert main(["serve", "--role=ateom", "--role=api", f"--root={tmp_path}"]) == 2
