"""The official C-core gRPC as a peer in tests: its client, its server of the Echo service, and certificates."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.wrappers_pb2 import BytesValue, DoubleValue, Int64Value, StringValue
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status
from grpclib.const import Cardinality

from tests.rpc_echo import METHODS

BIG = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]


class Authority:
    """A throw-away CA that writes key and certificate files."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key, ca=True)
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, into: Path, name: str) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = self._sign(subject, key, ca=False)
        return Files(
            into,
            self.pem,
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )

    def _sign(self, subject: x509.Name, key: Any, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


class Files:
    """A TlsProvider over three files in a directory; writing others there is a renewal."""

    def __init__(self, where: Path, ca: bytes, certificate: bytes, key: bytes) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self.where, self.ca, self.certificate, self.key = where, ca, certificate, key
        for name, content in (("ca.pem", ca), ("cert.pem", certificate), ("key.pem", key)):
            (where / name).write_bytes(content)

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        return self._load(context)

    def client_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        return self._load(context)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.load_verify_locations(self.where / "ca.pem")
        context.load_cert_chain(self.where / "cert.pem", self.where / "key.pem")
        return context


class CoreEcho:
    """The Echo service on C-core. `events` tells what its Sleep handler saw."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.sleeping = threading.Event()
        self.over = threading.Event()

    def handlers(self) -> grpc.GenericRpcHandler:
        kinds = {
            Cardinality.UNARY_UNARY: grpc.unary_unary_rpc_method_handler,
            Cardinality.UNARY_STREAM: grpc.unary_stream_rpc_method_handler,
            Cardinality.STREAM_UNARY: grpc.stream_unary_rpc_method_handler,
            Cardinality.STREAM_STREAM: grpc.stream_stream_rpc_method_handler,
        }
        methods = {
            name: kinds[kind](getattr(self, name), request.FromString, lambda reply: reply.SerializeToString())
            for name, (kind, request, _) in METHODS.items()
            if hasattr(self, name)
        }
        return grpc.method_handlers_generic_handler("test.Echo", methods)

    def Unary(self, request: BytesValue, context: Any) -> BytesValue:
        return request

    def Fail(self, request: StringValue, context: Any) -> StringValue:
        status = status_pb2.Status(code=code_pb2.NOT_FOUND, message=f"no such thing: {request.value}")
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason="GONE", domain="test"))
        context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("abort raises")

    def Sleep(self, request: DoubleValue, context: Any) -> DoubleValue:
        cancelled = threading.Event()
        context.add_callback(cancelled.set)
        self.sleeping.set()
        self.events.append("cancelled" if cancelled.wait(request.value) else "slept")
        self.over.set()
        return request

    def Metadata(self, request: StringValue, context: Any) -> StringValue:
        context.send_initial_metadata([("x-initial", "first")])
        context.set_trailing_metadata([("x-trailing-bin", b"\x00\xff")])
        return StringValue(value=dict(context.invocation_metadata())[request.value])

    def Count(self, request: Int64Value, context: Any) -> Iterator[Int64Value]:
        for n in range(request.value):
            yield Int64Value(value=n)

    def Flood(self, request: Int64Value, context: Any) -> Iterator[BytesValue]:
        while context.is_active():
            yield BytesValue(value=bytes(request.value))

    def Sum(self, requests: Iterator[Int64Value], context: Any) -> Int64Value:
        return Int64Value(value=sum(request.value for request in requests))

    def Chat(self, requests: Iterator[BytesValue], context: Any) -> Iterator[BytesValue]:
        yield from requests


@contextmanager
def core_server(
    address: str, echo: CoreEcho, tls: Files | None = None, options: list[tuple[str, Any]] | None = None
) -> Iterator[tuple[grpc.Server, int]]:
    """A C-core server on `address`, with its port (1 for a unix socket)."""
    with futures.ThreadPoolExecutor(8) as pool:
        server = grpc.server(pool, options=[*BIG, *(options or [])])
        server.add_generic_rpc_handlers((echo.handlers(),))
        if tls is None:
            port = server.add_insecure_port(address)
        else:
            credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)], tls.ca, require_client_auth=True)
            port = server.add_secure_port(address, credentials)
        server.start()
        try:
            yield server, port
        finally:
            server.stop(0).wait()


class CoreStub:
    """Calls of the Echo service by the C-core client. Blocking: used in threads."""

    def __init__(self, target: str, tls: Files | None = None, options: list[tuple[str, Any]] | None = None) -> None:
        options = [*BIG, ("grpc.use_local_subchannel_pool", 1), *(options or [])]
        if tls is None:
            self.channel = grpc.insecure_channel(target, options)
        else:
            credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
            self.channel = grpc.secure_channel(
                target, credentials, [*options, ("grpc.ssl_target_name_override", "localhost")]
            )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kind, request, reply = METHODS.get(name, (Cardinality.UNARY_UNARY, BytesValue, BytesValue))
        return self.call(f"/test.Echo/{name}", kind, request, reply)

    def call(self, path: str, kind: Cardinality, request: Any, reply: Any) -> Callable[..., Any]:
        make = {
            Cardinality.UNARY_UNARY: self.channel.unary_unary,
            Cardinality.UNARY_STREAM: self.channel.unary_stream,
            Cardinality.STREAM_UNARY: self.channel.stream_unary,
            Cardinality.STREAM_STREAM: self.channel.stream_stream,
        }[kind]
        return make(path, lambda message: message.SerializeToString(), reply.FromString)

    def __enter__(self) -> CoreStub:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Polls until `condition()`; for threads."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
