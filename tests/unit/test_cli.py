"""Promises of the command line that need no server: manifests, tables, settings, exit statuses."""

from __future__ import annotations

import argparse
import re
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


POOL_HEAD = "kind: WorkerPool\nmetadata: {name: x}\n"
TEMPLATE_HEAD = "kind: ActorTemplate\nmetadata: {name: x, atespace: a}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Actor\nnope: 1", r"nope: there is no such field: it takes metadata, actorTemplate, workerSelector, .*"),
        ("kind: Actor\nmetadata: {nam: x}", r"metadata\.nam: there is no such field, did you mean name\?"),
        ("kind: Actor\nmetadata: {name: 5}", r"metadata\.name: must be text, not 5: put it into quotes"),
        ("kind: Actor\nmetadata: {name: yes}", r"metadata\.name: must be text, not true: put it into quotes"),
        ("kind: Actor\nmetadata: [x]", r"metadata: must be a mapping, not a list"),
        ("kind: Actor\nwakeTime: soon", r"wakeTime: must be a time, as 2026-01-31T08:00:00Z, not 'soon'"),
        ("kind: Actor\nspec: {wakeTime: 5}", r"spec\.wakeTime: must be a time, as .*, not 5"),
        (
            "kind: Actor\nworkerSelector: {matchLabels: {a: 1}}",
            r"workerSelector\.matchLabels\.a: must be text, not 1.*",
        ),
        (
            "kind: Actor\nworkerSelector: {matchLabels: {1: a}}",
            r"workerSelector\.matchLabels: the key 1 must be text.*",
        ),
        ("kind: Tag\nscope: mine", r"scope: must be one of TAG_SCOPE_ATESPACE, TAG_SCOPE_PUBLISHED, not 'mine'"),
        (TEMPLATE_HEAD + "containers: 5", r"containers: must be a list, not 5"),
        (TEMPLATE_HEAD + "spec: {containers: [{nme: c}]}", r"spec\.containers\[0\]\.nme: .* did you mean name\?"),
        (TEMPLATE_HEAD + "containers: [{command: sh}]", r"containers\[0\]\.command: must be a list, not 'sh'"),
        (TEMPLATE_HEAD + "containers: [{}, {env: [{value: 1}]}]", r"containers\[1\]\.env\[0\]\.value: must be text.*"),
        (
            TEMPLATE_HEAD + "containers: [{wakeupProbe: {httpGet: {port: http}}}]",
            r"containers\[0\]\.wakeupProbe\.httpGet\.port: must be a whole number, not 'http'",
        ),
        (
            TEMPLATE_HEAD + "containers: [{readyz: {httpGet: {port: 3000000000}}}]",
            r"containers\[0\]\.readyz\.httpGet\.port: must be a number of at most 32 bits, not 3000000000",
        ),
        (TEMPLATE_HEAD + "snapshotConfig: {where: x}", r"snapshotConfig\.where: there is no such field: .*onPause.*"),
        (
            TEMPLATE_HEAD + "lifecycle: {idleTimeout: 5m}",
            r"lifecycle\.idleTimeout: must be a duration in seconds.*'5m'",
        ),
        (
            TEMPLATE_HEAD + "snapshotsConfig: {storageLocation: a, storage_location: b}",
            r"snapshotsConfig\.storage_location: is the same field as storageLocation: give one of them",
        ),
        (POOL_HEAD + "replicas: 1", r"replicas: there is no such field: WorkerPool takes .*spec.*"),
        (POOL_HEAD + "spec: {replicas: many}", r"spec\.replicas: must be a whole number, not 'many'"),
        (POOL_HEAD + "spec: {replicas: 1.5}", r"spec\.replicas: must be a whole number, not 1\.5"),
        (POOL_HEAD + "spec: {replicas: true}", r"spec\.replicas: must be a whole number, not true"),
        (POOL_HEAD + "spec: {replicas: .inf}", r"spec\.replicas: must be a whole number, not inf"),
        (POOL_HEAD + "spec: {replicas: 1, ateomImage: [x]}", r"spec\.ateomImage: must be text, not a list"),
        (
            POOL_HEAD + "spec: {replicas: 1, template: {nodeAffinity: x}}",
            r"spec\.template\.nodeAffinity: must be a mapping.*",
        ),
        (
            "kind: WorkerPool\nmetadata: {name: x, labels: {a: 1}}\nspec: {replicas: 1}",
            r"metadata\.labels\.a: must be text.*",
        ),
        (
            "kind: SandboxConfig\nmetadata: {name: x}\nspec: {assets: {amd64: {runsc: {uri: x}}}}",
            r"spec\.assets\.amd64\.runsc\.uri: there is no such field, did you mean url\?",
        ),
        (
            "kind: List\nitems: [{kind: Atespace}, {kind: Actor, nope: 1}]",
            r"items\[1\]\.nope: there is no such field.*",
        ),
    ],
)
def test_a_wrong_field_is_named_as_it_was_written_with_what_is_expected_there(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        list(manifests.read(f"kind: Atespace\nmetadata: {{name: fine}}\n---\n{text}", "my.yaml"))
    assert re.fullmatch(rf"my\.yaml, document 2: {said}", caught.value.message), caught.value.message


def test_what_yaml_and_protojson_allow_for_a_value_is_taken() -> None:
    (actor,) = manifests.read(
        "kind: Actor\nwakeTime: 2026-01-31T08:00:00Z\nmetadata: {name: a, version: '3'}", "a.yaml"
    )
    assert isinstance(actor, pb.Actor) and actor.wake_time.seconds == 1769846400 and actor.metadata.version == 3
    text = (
        TEMPLATE_HEAD
        + "lifecycle: {idle_timeout: 90s, onCrash: 1}\nvolumes: null\ncontainers: [{readyz: {timeoutSeconds: 5.0}}]"
    )
    (template,) = manifests.read(text, "t.yaml")
    assert isinstance(template, pb.ActorTemplate) and template.lifecycle.idle_timeout.seconds == 90
    assert template.containers[0].readyz.timeout_seconds == 5 and template.lifecycle.on_crash == 1
    (pool,) = manifests.read(POOL_HEAD + "spec: {replicas: 1, template: {nodeAffinity: {a: [1, null]}}}", "p.yaml")
    assert isinstance(pool, pb.WorkerPool) and pool.spec.template.node_affinity["a"][0] == 1


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
