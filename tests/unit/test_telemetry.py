"""Promises of telemetry: W3C trace context is read and passed on as written, metrics have the reference's names, labels
and buckets, the endpoint tells of draining, and without anybody who asked for it nothing is loaded or recorded."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from google.protobuf.wrappers_pb2 import BytesValue, StringValue

from ate import http_framing as framing
from ate import log
from ate.errors import NotFound
from ate.rpc import Call, Server
from ate.telemetry import endpoint, metrics, sdk, trace
from tests.rpc_echo import Echo, EchoStub, memory_channel

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
SECTION_9 = {
    # Prometheus name: (upper bounds, labels) of the reference's section 9
    "ate_actor_lifecycle_operation_duration_seconds": (
        ".005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 20 30",
        "ate_actor_operation_name ate_template_atespace ate_template_name ate_workerpool_namespace "
        "ate_workerpool_name ate_sandbox_class ate_snapshot_kind ate_snapshot_scope error_type",
    ),
    "ate_scheduler_assignment_duration_seconds": (
        ".0005 .001 .0025 .005 .01 .025 .05 .1 .25 .5 1 2.5 5",
        "ate_scheduler_outcome ate_workerpool_namespace ate_workerpool_name ate_sandbox_class error_type",
    ),
    "atelet_snapshot_size_bytes": (
        "1e6 1e7 1e8 2.5e8 5e8 1e9 2.5e9 5e9 1e10",
        "file_name ate_template_atespace ate_template_name",
    ),
    "atenet_router_route_duration_seconds": (
        ".001 .0025 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30",
        "ate_template_atespace ate_template_name ate_router_outcome ate_router_resume",
    ),
    "atenet_router_parking_wait_duration_seconds": (
        ".001 .005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60",
        "outcome",
    ),
    "ate_actor_restore_duration_seconds": (
        ".005 .01 .025 .05 .1 .25 .5 1 2.5 5 10 30 60",
        "ate_template_atespace ate_template_name ate_snapshot_scope ate_snapshot_phase ate_snapshot_kind "
        "ate_sandbox_class",
    ),
}
OTHERS = {
    "ate_actor_crashes_total": "ate_actor_operation_name ate_template_atespace ate_template_name "
    "ate_workerpool_namespace ate_workerpool_name ate_sandbox_class",
    "ate_workerpool_workers": "ate_workerpool_namespace ate_workerpool_name ate_worker_state ate_sandbox_class",
    "atenet_router_parking_active": "",
    "atenet_router_parking_rejected_total": "",
    "ate_imagecache_requests_total": "ate_imagecache_outcome error_type",
    "rpc_server_call_duration_seconds_count": "rpc_method rpc_response_status_code",
    "rpc_client_call_duration_seconds_count": "rpc_method rpc_response_status_code",
}


@pytest.fixture
def running() -> Iterator[sdk.Sdk]:
    started = sdk.start("ate-test", ratio=0.1, prometheus=True, attributes={})
    yield started
    started.shut_down()


@pytest.fixture
def spans() -> Iterator[list[trace.Span]]:
    """Spans that would be exported, all traces sampled."""
    found: list[trace.Span] = []
    trace.install(found.append, trace.Sampler(1.0))
    yield found
    trace.install(None, trace.Sampler())


def exposed(running: sdk.Sdk) -> dict[str, float]:
    """The samples of the Prometheus text, by name and labels as they are written."""
    lines = [line for line in running.exposition()[0].decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def labels_of(sample: str) -> set[str]:
    return set(re.findall(r'([a-z_]+)="', sample))


# -- trace context --------------------------------------------------------------------------------------------------


def test_a_traceparent_is_read_and_written_as_it_is():
    context = trace.parse(SAMPLED, "vendor=1")
    assert context == trace.TraceContext(TRACE, SPAN, True, "vendor=1")
    assert context.traceparent() == SAMPLED
    assert trace.parse(f"00-{TRACE}-{SPAN}-00").sampled is False
    assert trace.parse(SAMPLED, "v=\xff").state == trace.parse(SAMPLED, "x" * 600).state == ""
    assert trace.parse(f"cc-{TRACE}-{SPAN}-01-more").sampled, "later versions may say more"


@pytest.mark.parametrize(
    "text",
    [
        "", "00", f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01-more", f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE}-{SPAN}", f"0-{TRACE}-{SPAN}-01",
    ],
)  # fmt: skip
def test_what_is_no_traceparent_is_left_alone(text):
    assert trace.parse(text) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, trace.Sampler(0.01, True)),
        ({"OTEL_TRACES_SAMPLER": "always_on"}, trace.Sampler(1.0, False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, trace.Sampler(0.0, True)),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"}, trace.Sampler(0.25, False)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}, trace.Sampler(1.0, True)),
        ({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"}, trace.Sampler(1.0, True)),
        ({"OTEL_TRACES_SAMPLER": "nonsense"}, trace.Sampler(0.01, True)),
    ],
)
def test_the_sampler_is_what_the_environment_says(environment, expected):
    assert trace.Sampler.from_environment(environment, 0.01) == expected


def test_a_tenth_of_new_traces_is_sampled_and_a_share_is_the_same_everywhere():
    chosen = sum(trace.new().sampled for _ in range(5000))
    assert 350 < chosen < 650
    assert not trace.Sampler(0.0).chooses(TRACE) and trace.Sampler(1.0).chooses("f" * 32)


def test_spans_nest_and_tell_errors(spans):
    with trace.span("outer", a__b=1) as outer, pytest.raises(ValueError), trace.span("inner"):
        raise ValueError("bad")
    inner, outer_seen = spans
    assert outer_seen is outer and outer.attributes == {"a.b": 1} and outer.parent is None and not outer.error
    assert inner.parent == outer.context and inner.context.trace_id == outer.context.trace_id
    assert inner.error == "ValueError: bad" and outer.start <= inner.start <= inner.end <= outer.end
    assert trace.current() is None


def test_what_is_not_sampled_makes_no_spans_and_is_passed_on(spans):
    token = trace.enter(trace.parse(f"00-{TRACE}-{SPAN}-00"))
    with trace.span("unseen"):
        assert trace.current().span_id == SPAN
    trace.leave(token)
    assert not spans


async def test_one_trace_runs_through_calls_and_their_calls(spans):
    seen: list[trace.TraceContext | None] = []

    class Relay(Echo):
        async def forward(self, call: Call, proceed) -> None:
            seen.append(trace.current())
            async with memory_channel(Server([Echo()])) as channel:
                await EchoStub(channel).Unary(BytesValue())
            await proceed()

    relay = Relay()
    async with memory_channel(Server([relay], interceptors=[relay.forward])) as channel:
        with trace.span("client's work"):
            await EchoStub(channel).Unary(BytesValue())
    assert len({span.context.trace_id for span in spans}) == 1
    by_id = {span.context.span_id: span for span in spans}
    inner_server = next(span for span in spans if span.kind == "server")  # the innermost ends first
    chain = [inner_server]
    while chain[-1].parent is not None:
        chain.append(by_id[chain[-1].parent.span_id])
    assert [span.kind for span in chain] == ["server", "client", "server", "client", "internal"]
    assert chain[0].attributes == {
        "rpc.system.name": "grpc", "rpc.method": "test.Echo/Unary", "rpc.response.status_code": "OK",
    }  # fmt: skip


async def test_a_failed_call_is_an_error_for_the_client_only_when_the_server_did_right(spans):
    async with memory_channel(Server([Echo()])) as channel:
        with trace.span("work"), pytest.raises(NotFound):
            await EchoStub(channel).Fail(StringValue())
    errors = {span.kind: span.error for span in spans if span.kind != "internal"}
    assert errors["server"] == "" and errors["client"].startswith("NOT_FOUND")


async def test_a_trace_passes_through_a_process_that_exports_nothing():
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(log._JsonFormatter().format(record))

    seen: list[trace.TraceContext | None] = []

    async def look(call: Call, proceed) -> None:
        seen.append(trace.current())
        log.Logger("ate.test").warning("inside")
        await proceed()

    handler = Lines()
    logging.getLogger("ate.test").addHandler(handler)
    try:
        async with memory_channel(Server([Echo()], interceptors=[look])) as channel:
            await EchoStub(channel).Unary(BytesValue())
            token = trace.enter(trace.parse(SAMPLED, "vendor=1"))
            await EchoStub(channel).Unary(BytesValue())
            trace.leave(token)
    finally:
        logging.getLogger("ate.test").removeHandler(handler)
    assert seen == [None, trace.TraceContext(TRACE, SPAN, True, "vendor=1")]
    untraced, traced = map(json.loads, lines)
    assert "trace_id" not in untraced
    assert (traced["trace_id"], traced["span_id"], traced["trace_flags"]) == (TRACE, SPAN, "01")


# -- metrics --------------------------------------------------------------------------------------------------------


def _dotted(label: str) -> str:
    dotted = {name.replace(".", "_"): name for name in vars(metrics).values() if isinstance(name, str)}
    return dotted[label]


@pytest.mark.parametrize("name", SECTION_9)
def test_histograms_have_the_buckets_and_labels_of_the_reference(running, name):
    bounds, labels = SECTION_9[name]
    instrument = _by_prometheus_name(name)
    instrument.record(0.3, {_dotted(label): "x" for label in labels.split()})
    buckets = [sample for sample in exposed(running) if sample.startswith(name + "_bucket")]
    assert [float(re.search(r'le="([^"]+)"', sample)[1]) for sample in buckets[:-1]] == [
        float(bound) for bound in bounds.split()
    ]
    assert labels_of(buckets[0]) == {"le", *labels.split()}


def _by_prometheus_name(name: str) -> metrics.Histogram:
    suffix = {"s": "_seconds", "By": "_bytes"}
    found = [m for m in metrics.ALL if m.name.replace(".", "_") + suffix.get(m.unit, "") == name]
    assert len(found) == 1 and isinstance(found[0], metrics.Histogram), name
    return found[0]


def test_counters_and_levels_have_the_names_and_labels_of_the_reference(running):
    for instrument in metrics.ALL:
        labels = next(
            (found for name, found in OTHERS.items() if name.startswith(instrument.name.replace(".", "_"))), None
        )
        if labels is None:
            continue
        given = {_dotted(label): "x" for label in labels.split()}
        if isinstance(instrument, metrics.Counter):
            instrument.add(given, 2)
        elif isinstance(instrument, metrics.Histogram):
            instrument.record(2, given)
    with (
        metrics.WORKERPOOL_WORKERS.by(
            lambda: [(3, {_dotted(x): "x" for x in OTHERS["ate_workerpool_workers"].split()})]
        ),
        metrics.PARKING_ACTIVE.by(lambda: [(4, {})]),
    ):
        found = exposed(running)
    for name, labels in OTHERS.items():
        samples = [sample for sample in found if re.match(name + r"(\{|$)", sample)]
        assert len(samples) == 1, (name, sorted(found))
        assert labels_of(samples[0]) == set(labels.split())


async def test_calls_are_counted_by_method_and_status_and_made_up_methods_as_one(running):
    async with memory_channel(Server([Echo()])) as channel:
        stub = EchoStub(channel)
        await stub.Unary(BytesValue())
        with pytest.raises(NotFound):
            await stub.Fail(StringValue())
        for made_up in ("X", "Y"):
            method = type(stub.Fail)(channel, f"/made.Up/{made_up}", StringValue, StringValue)
            with pytest.raises(Exception, match="not known"):
                await method(StringValue())
    found = exposed(running)
    for side in ("server", "client"):
        for method, status in (("test.Echo/Unary", "OK"), ("test.Echo/Fail", "NOT_FOUND")):
            name = (
                f'rpc_{side}_call_duration_seconds_count{{rpc_method="{method}",rpc_response_status_code="{status}"}}'
            )
            assert found[name] == 1
    other = 'rpc_server_call_duration_seconds_count{rpc_method="_OTHER",rpc_response_status_code="UNIMPLEMENTED"}'
    assert found[other] == 2


def test_after_the_end_nothing_is_recorded():
    started = sdk.start("ate-test", ratio=0.1, prometheus=True, attributes={})
    started.shut_down()
    assert all(instrument.write is None for instrument in metrics.ALL)
    metrics.ACTOR_CRASHES.add({})


async def test_the_endpoint_says_when_the_role_drains():
    draining = trio.Event()

    async def get(path: str, method: str = "GET") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        request = framing.parse_request(head)
        reply = await endpoint.answer(request, lambda: (b"x 1\n", "text/plain"), draining)
        status, body = reply.status, reply.body
        return status, body

    assert await get("/metrics?a=b") == (200, b"x 1\n")
    assert await get("/readyz") == (200, b"ok\n")
    assert (await get("/nothing"))[0] == 404 and (await get("/metrics", "POST"))[0] == 405
    draining.set()
    assert (await get("/readyz"))[0] == 503
    assert (await get("/healthz"))[0] == 200


def test_nothing_of_the_sdk_is_loaded_by_those_who_did_not_ask():
    modules = "ate.cli.main ate.cli.verbs ate.cli.serve ate.cli.dev ate.api.server ate.router.server ate.node.atelet"
    imports = "".join(f"import {module}\n" for module in modules.split())
    code = f"import sys\n{imports}print([name for name in sys.modules if 'opentelemetry' in name])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert done.stdout.strip() == "[]"
