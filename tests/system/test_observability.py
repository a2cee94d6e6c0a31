"""Promises of observability on a whole install: one trace from the router into the worker, ids in the logs, metrics of
every role, and the history of an actor that outlives the api role and ends with the actor."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from ate import install as installs
from ate.proto import ateapi_pb2 as pb
from tests.system.collector import Collector, Span, running_collector
from tests.system.conftest import RUNSC_BUILDS
from tests.system.install import REPOSITORY, Install, joined, running

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not RUNSC_BUILDS, reason="needs root and runsc")

Platform = tuple[Path, subprocess.Popen[bytes], Collector]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """An install that exports to a collector and samples what its callers sample, and nothing else."""
    root = tmp_path_factory.mktemp("o") / "root"
    with running_collector() as collector, pytest.MonkeyPatch.context() as environment:
        for name, value in (
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url),
            ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
        ):
            environment.setenv(name, value)
        with running(root, "--metrics") as process:

            async def prepare() -> None:
                async with joined(root, process) as install:
                    await install.set_up(replicas=1)

            trio.run(prepare)
            yield root, process, collector


@pytest.fixture
async def install(platform: Platform) -> AsyncIterator[Install]:
    async with joined(*platform[:2]) as found:
        yield found
        listed = await found.api.control.ListActors(pb.ListActorsRequest(atespace="demo"), timeout=30)
        for actor in listed.actors:
            await found.delete(actor.metadata.name)


@pytest.fixture
def collector(platform: Platform) -> Collector:
    return platform[2]


def traceparent(number: int, *, sampled: bool = True) -> tuple[str, str]:
    """A trace id, and the header of a client in that trace."""
    trace_id = f"{number:032x}"
    return trace_id, f"00-{trace_id}-{number:016x}-{'01' if sampled else '00'}"


async def ate(install: Install, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ate", *words, f"--root={install.root}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False, env=environment, cwd="/")
    assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
    return subprocess.CompletedProcess(argv, done.returncode, done.stdout.decode(), done.stderr.decode())


async def fetch(install: Install, role: str, path: str) -> tuple[int, str]:
    url = f"http://{installs.endpoints(install.root)[f'metrics-{role}']}{path}"

    def get() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    return await trio.to_thread.run_sync(get)


def logged(install: Install, trace_id: str) -> dict[str, list[dict[str, Any]]]:
    """Lines of a trace by the file they are in."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in [*(install.root / "logs").glob("*.log"), *(install.root / "ateoms").rglob("*.log")]:
        for line in path.read_text(errors="replace").splitlines():
            if trace_id in line and line.startswith("{"):
                found.setdefault(path.stem, []).append(json.loads(line))
    return found


async def test_one_trace_runs_from_the_router_into_the_worker(install: Install, collector: Collector) -> None:
    trace_id, header = traceparent(0xABC)
    await install.add_actor("traced")
    status, _ = await install.raw("traced", headers={"traceparent": header})
    assert status == 200
    wanted = {"ate-router", "ate-api", "ate-atelet", "ate-ateom"}

    async def there() -> bool:
        seen = collector.trace(trace_id)
        return wanted <= {span.service for span in seen} and header.split("-")[2] in {span.parent for span in seen}

    await install.until(there)
    await trio.sleep(1)  # what was under way when the last of them ended
    spans = {span.span_id: span for span in collector.trace(trace_id)}
    restore = next(s for s in spans.values() if s.service == "ate-ateom" and s.name == "ateom.Ateom/RestoreWorkload")
    chain: list[Span] = [restore]
    while chain[-1].parent in spans:
        chain.append(spans[chain[-1].parent])
    hops = [(span.service.removeprefix("ate-"), span.name) for span in reversed(chain)]
    assert chain[-1].parent == header.split("-")[2], "the client's own span is the first one's parent"
    assert hops == [
        ("router", "route"),
        ("router", "ateapi.Control/ResumeActor"),
        ("api", "ateapi.Control/ResumeActor"),
        ("api", "operation.resume"),
        ("api", "step.StartOnNode"),
        ("api", "atelet.AteomHerder/Restore"),
        ("atelet", "atelet.AteomHerder/Restore"),
        ("atelet", "phase.total"),
        ("atelet", "phase.ateom_restore"),
        ("atelet", "ateom.Ateom/RestoreWorkload"),
        ("ateom", "ateom.Ateom/RestoreWorkload"),
    ], hops
    assert {"step.AssignWorker", "step.FinalizeRunning", "phase.download"} <= {s.name for s in spans.values()}
    assert restore.resource["ate.otlp.relay"] == "atelet" and restore.attributes["rpc.response.status_code"] == "OK"
    lines = logged(install, trace_id)
    assert {"api", "atelet", "router"} <= set(lines), lines
    running_line = next(line for line in lines["api"] if line.get("state") == "RUNNING")
    assert running_line["operation"] == "resume" and running_line["actor"] == "demo/traced" and running_line["worker"]
    started = next(line for line in lines["atelet"] if line["message"] == "Actor restored")
    assert started["worker"] == running_line["worker"] and started["operation_id"] and started["span_id"]


async def test_what_a_client_does_not_sample_is_not_exported_and_still_logged(
    install: Install, collector: Collector
) -> None:
    trace_id, header = traceparent(0xDEF, sampled=False)
    await install.add_actor("quiet")
    assert (await install.raw("quiet", headers={"traceparent": header}))[0] == 200
    assert {"api", "atelet", "router"} <= set(logged(install, trace_id))
    await trio.sleep(1)
    assert not collector.trace(trace_id)


async def test_a_command_can_force_its_trace(install: Install, collector: Collector) -> None:
    await install.add_actor("forced")
    done = await ate(install, "resume", "actor", "forced", "-a", "demo", "--trace")
    found = re.fullmatch(r"trace ([0-9a-f]{32})", done.stderr.strip())
    assert found is not None, done.stderr

    async def there() -> bool:
        return {"ate-api", "ate-atelet", "ate-ateom"} <= {span.service for span in collector.trace(found[1])}

    await install.until(there)
    shown = await ate(install, "get", "events", "forced", "-a", "demo", "-o", "wide")
    assert found[1] in shown.stdout


async def test_every_role_serves_its_metrics_and_exports_them(install: Install, collector: Collector) -> None:
    await install.add_actor("counted")
    await install.count("counted")
    await install.suspend("counted")
    await install.count("counted")
    text = {}
    for role in ("api", "atelet", "router", "controller", "identity-broker"):
        status, text[role] = await fetch(install, role, "/metrics")
        assert status == 200 and "process_resident_memory_bytes" in text[role], role
        assert (await fetch(install, role, "/healthz"))[0] == (await fetch(install, role, "/readyz"))[0] == 200
        assert "counted" not in text[role], "metrics name no actors"
    for role, names in {
        "api": (
            'ate_actor_lifecycle_operation_duration_seconds_count{ate_actor_operation_name="resume"',
            "ate_scheduler_assignment_duration_seconds_bucket{",
            'ate_scheduler_eligible_workers_bucket{ate_sandbox_class="gvisor",ate_scheduling_constraint="none"',
            'ate_workerpool_workers{ate_sandbox_class="gvisor",ate_worker_state="at_capacity"',
            'rpc_server_call_duration_seconds_count{rpc_method="ateapi.Control/ResumeActor"',
        ),
        "atelet": (
            "ate_actor_restore_duration_seconds_bucket{",
            "ate_actor_checkpoint_duration_seconds_bucket{",
            "atelet_snapshot_size_bytes_bucket{",
            'ate_imagecache_requests_total{ate_imagecache_outcome="hit"',
            'rpc_client_call_duration_seconds_count{rpc_method="ateom.Ateom/RestoreWorkload"',
        ),
        "router": (
            'atenet_router_route_duration_seconds_count{ate_router_outcome="served"',
            "atenet_router_parking_active 0.0",
            'atenet_router_parking_wait_duration_seconds_count{outcome="served"}',
        ),
        "controller": (
            'rpc_client_call_duration_seconds_count{rpc_method="ateapi.Control/ListWorkers"',
            "ate_workerpool_desired_workers{",
            "ate_workerpool_ready_workers{",
        ),
    }.items():
        for name in names:
            assert name in text[role], (name, text[role])

    async def exported() -> bool:
        return "ate.workerpool.workers" in collector.metrics.get("ate-api", set())

    await install.until(exported)
    assert "ate.actor.restore.duration" in collector.metrics["ate-atelet"]


async def test_a_history_is_shown_in_every_form_and_outlives_the_api(install: Install) -> None:
    await install.add_actor("told")
    await install.count("told")
    await install.suspend("told")
    install.kill("api")

    async def shown() -> bool:
        return (await ate(install, "get", "events", "told", "-a", "demo", check=False)).returncode == 0

    await install.until(shown)
    header, *rows = (await ate(install, "get", "events", "told", "-a", "demo")).stdout.splitlines()
    assert header.split() == ["TIME", "ACTOR", "FROM", "TO", "OPERATION", "MESSAGE"]
    assert [row.split()[1:5] for row in rows] == [
        ["demo/told", "<none>", "SUSPENDED", "create"],
        ["demo/told", "SUSPENDED", "RESUMING", "resume"],
        ["demo/told", "RESUMING", "RUNNING", "resume"],
        ["demo/told", "RUNNING", "SUSPENDING", "suspend"],
        ["demo/told", "SUSPENDING", "SUSPENDED", "suspend"],
    ]
    wide = (await ate(install, "get", "events", "demo/told", "-o", "wide")).stdout.splitlines()
    assert wide[0].split()[-3:] == ["WORKER", "NODE", "TRACE"]
    as_json = json.loads((await ate(install, "get", "events", "told", "-a", "demo", "-o", "json")).stdout)
    as_yaml = yaml.safe_load((await ate(install, "get", "events", "told", "-a", "demo", "-o", "yaml")).stdout)
    assert as_json == as_yaml and as_json["items"][-1]["toState"] == "ACTOR_STATE_SUSPENDED"
    names = (await ate(install, "get", "events", "told", "-a", "demo", "-o", "name")).stdout.splitlines()
    assert names == [f"event/demo/told/{number}" for number in range(1, 6)]
    await install.delete("told")
    gone = await ate(install, "get", "events", "told", "-a", "demo", check=False)
    assert gone.returncode == 1 and "actor demo/told not found" in gone.stderr
    for words, expected in ((("get", "events"), "of which actor"), (("get", "events", "x"), "-a ATESPACE")):
        wrong = await ate(install, *words, check=False)
        assert wrong.returncode == 2 and expected in wrong.stderr and not wrong.stdout


async def test_a_crash_is_told_with_its_reason(install: Install) -> None:
    await install.add_actor("doomed")
    actor = await install.resume("doomed")
    for pid in install.worker_pids(actor.status.worker_assignment.worker.name):
        os.kill(pid, 9)

    async def crashed() -> bool:
        return (await install.get("doomed")).status.state == pb.ACTOR_STATE_CRASHED

    await install.until(crashed)
    last = (await ate(install, "get", "events", "doomed", "-a", "demo")).stdout.splitlines()[-1]
    assert last.split()[2:5] == ["RUNNING", "CRASHED", "<none>"] and "its worker restarted" in last
    await install.until(lambda: install.ready_workers(1))
