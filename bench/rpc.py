"""Unary calls: our server beside grpcio's asyncio server, each under our client and under grpcio's.

Every server runs in a process of its own on a unix socket, every client in another; rounds of the servers alternate, so
that a noisy machine hurts both, and the median of the rounds is kept. Ends with one JSON line, whose ratio is that of
our worst cell.

Client and server share the machine: with 16 calls in flight on few cores this favours the server that needs less
processor time a call, and grpcio's server, which can use more than one core, is held back by a heavy client. Under a
light load generator (h2load, see the measured notes) C-core was ahead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import trio
from google.protobuf.wrappers_pb2 import BytesValue
from grpclib.client import UnaryUnaryMethod
from grpclib.const import Cardinality, Handler

sys.path.insert(0, str(Path(__file__).parents[1]))

from ate.rpc import Call, Channel, Server, open_unix_listener, unary

METHOD = "/bench.Echo/Unary"
BODY = BytesValue(value=bytes(541))  # size of an Actor record, as in the measured notes
AIM = 0.8  # of grpcio's throughput, in every cell; the prototype of the notes had 0.86 under grpcio's client
SERVERS = ("ours", "grpcio")
IN_FLIGHT = (1, 16)


class Echo:
    def __mapping__(self) -> dict[str, Handler]:
        return {METHOD: Handler(self.Unary, Cardinality.UNARY_UNARY, BytesValue, BytesValue)}

    @unary
    async def Unary(self, request: BytesValue, call: Call) -> BytesValue:
        return request


async def serve_ours(path: str) -> None:
    await Server([Echo()]).serve([await open_unix_listener(path)])


async def serve_grpcio(path: str) -> None:
    async def echo(request: BytesValue, context: Any) -> BytesValue:
        return request

    handler = grpc.unary_unary_rpc_method_handler(echo, BytesValue.FromString, BytesValue.SerializeToString)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Unary": handler}),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.wait_for_termination()


async def load_ours(path: str, in_flight: int, seconds: float) -> list[float]:
    took: list[float] = []
    async with Channel.unix(path) as channel:
        call = UnaryUnaryMethod(channel, METHOD, BytesValue, BytesValue)
        await call(BODY)
        end = time.perf_counter() + seconds

        async def caller() -> None:
            while (start := time.perf_counter()) < end:
                await call(BODY)
                took.append(time.perf_counter() - start)

        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(caller)
    return took


async def load_grpcio(path: str, in_flight: int, seconds: float) -> list[float]:
    took: list[float] = []
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        call = channel.unary_unary(METHOD, BytesValue.SerializeToString, BytesValue.FromString)
        await call(BODY, wait_for_ready=True)
        end = time.perf_counter() + seconds

        async def caller() -> None:
            while (start := time.perf_counter()) < end:
                await call(BODY)
                took.append(time.perf_counter() - start)

        await asyncio.gather(*(caller() for _ in range(in_flight)))
    return took


def load(client: str, path: str, in_flight: int, seconds: float) -> tuple[float, float, float]:
    """Calls a second, p50 and p99 in microseconds, measured in a fresh process."""
    command = [sys.executable, __file__, "--load", client, path, str(in_flight), str(seconds)]
    rate, p50, p99 = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return rate, p50, p99


def wait_for_socket(path: Path) -> None:
    end = time.monotonic() + 20
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"the server did not open {path}")
        time.sleep(0.02)


def measure(seconds: float, rounds: int) -> dict[str, Any]:
    seen: dict[str, list[tuple[float, float, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: Path(directory) / f"{name}.sock" for name in SERVERS}
        processes = [subprocess.Popen([sys.executable, __file__, "--serve", name, paths[name]]) for name in SERVERS]
        try:
            for path in paths.values():
                wait_for_socket(path)
            for _ in range(rounds):
                for in_flight in IN_FLIGHT:
                    for client in SERVERS:
                        for server in SERVERS:
                            key = f"server={server} client={client} in_flight={in_flight}"
                            seen.setdefault(key, []).append(load(client, str(paths[server]), in_flight, seconds))
        finally:
            for process in processes:
                process.terminate()
                process.wait()
    figures = {}
    for key, runs in seen.items():
        rate, p50, p99 = (statistics.median(column) for column in zip(*runs, strict=True))
        figures[key] = {"rps": round(rate), "p50_us": round(p50), "p99_us": round(p99)}
        print(f"{key:45} {rate:7.0f} rps   p50 {p50:6.0f} us   p99 {p99:6.0f} us")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, metavar=("SERVER", "SOCKET"), help=argparse.SUPPRESS)
    parser.add_argument("--load", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        name, path = options.serve
        trio.run(serve_ours, path) if name == "ours" else asyncio.run(serve_grpcio(path))
        return
    if options.load:
        name, path, in_flight, seconds = options.load
        run = trio.run if name == "ours" else lambda function: asyncio.run(function())
        started = time.perf_counter()
        took = sorted(run(partial(load_ours if name == "ours" else load_grpcio, path, int(in_flight), float(seconds))))
        assert time.perf_counter() - started >= float(seconds)
        print(json.dumps([len(took) / float(seconds), took[len(took) // 2] * 1e6, took[len(took) * 99 // 100] * 1e6]))
        return
    figures = measure(options.seconds, options.rounds)
    ratios = {
        f"client={client} in_flight={n}": round(
            figures[f"server=ours client={client} in_flight={n}"]["rps"]
            / figures[f"server=grpcio client={client} in_flight={n}"]["rps"],
            3,
        )
        for client in SERVERS
        for n in IN_FLIGHT
    }
    worst = min(ratios, key=lambda cell: ratios[cell])
    print("ours / grpcio:", "  ".join(f"{cell}: {value}" for cell, value in ratios.items()))
    line = {
        "bench": "rpc",
        "figures": figures,
        "peer": f"grpcio {grpc.__version__} asyncio server; worst of {len(ratios)} cells: {worst}",
        "ratio": ratios[worst],
        "aim": AIM,
        "holds": ratios[worst] >= AIM,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
