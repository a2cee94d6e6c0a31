"""The command line's connection to the api role: by mutual TLS as the person who runs it, or by a token alone.

With `--token-file` no broker and no folder of an install is needed: every call carries the token that the file holds
then, and the api is known by its DNS name and `--ca-file`, as any server on the web is.
"""

from __future__ import annotations

import argparse
import getpass
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ate import install, names
from ate.config import API_PORT, host_port
from ate.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unavailable
from ate.identity import client as identity_client
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.proto.ateapi_grpc import ControlStub, ProviderStub
from ate.proto.events_grpc import EventLogStub
from ate.proto.node_grpc import ActorLogsStub
from ate.rpc import Channel, ClientStream, Peer


@dataclass(frozen=True)
class Api:
    """Stubs of the api role's services over one channel."""

    control: ControlStub
    provider: ProviderStub
    logs: ActorLogsStub
    events: EventLogStub


def _stubs(channel: Channel) -> Api:
    return Api(ControlStub(channel), ProviderStub(channel), ActorLogsStub(channel), EventLogStub(channel))


@asynccontextmanager
async def open_api(options: argparse.Namespace) -> AsyncIterator[Api]:
    """The channel that the flags of a verb ask for."""
    root = Path(options.root).absolute()
    if options.token_file:
        connection = connect_by_token(
            _address(root, options.endpoint), _token_source(options), options.ca_file, options.server_name
        )
    elif options.ca_file or options.server_name:
        raise InvalidArgument(
            "--ca-file and --server-name go with --token-file: with a certificate the install's authority is trusted"
        )
    else:
        connection = connect(root, options.endpoint, options.trust_domain)
    async with connection as api:
        yield api


def _address(root: Path, endpoint: str) -> str:
    address = endpoint or install.endpoints(root).get("api", "")
    if not address:
        raise FailedPrecondition(
            f"no running install found at {root}: start one with `ate dev --root {root}`, or give --endpoint HOST:PORT"
        )
    return address


@asynccontextmanager
async def connect(root: Path, endpoint: str, trust_domain: str) -> AsyncIterator[Api]:
    """Asks the broker of `root` for a user certificate, then opens the channel. `endpoint` empty: from the root."""
    address = _address(root, endpoint)
    request = identity_client.Request(root / "identity", f"user:{getpass.getuser().lower()}", trust_domain=trust_domain)
    try:
        identity = Identity(await identity_client.obtain(request, patience=3))
    except Unavailable:
        raise Unavailable(
            f"the install at {root} does not answer: start it with `ate dev --root {root}`, or, where roles run alone, "
            "see whether its identity broker runs"
        )
    except PermissionError:
        raise PermissionDenied(
            f"{root / 'identity'} is not yours to use: run as root, or ask for a --grant of the broker"
        )
    check = spiffe.demand({names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["api"])})

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    host, port = host_port(address, API_PORT)
    async with Channel.tcp(host, port, tls=identity, verify_peer=verify) as channel:
        yield _stubs(channel)


@asynccontextmanager
async def connect_by_token(
    address: str, token: Callable[[], str], ca_file: str = "", server_name: str = ""
) -> AsyncIterator[Api]:
    """Opens a channel whose calls carry what `token` gives. `ca_file` empty: the system's authorities."""
    host, port = host_port(address, API_PORT)
    tls = _ByName(ca_file)
    async with _TokenChannel.tcp(host, port, tls=tls, server_hostname=server_name or None) as channel:
        channel.token = token
        yield _stubs(channel)


class _TokenChannel(Channel):
    """Its calls carry a token, asked for anew for each."""

    token: Callable[[], str]

    def request(self, *what: Any, metadata: Any = None, **options: Any) -> ClientStream:
        given = dict(metadata or {})
        return super().request(*what, metadata={**given, "authorization": f"Bearer {self.token()}"}, **options)


class _ByName:
    """Servers are verified by authority and DNS name before they get to see a token."""

    def __init__(self, ca_file: str) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the name
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        if not ca_file:
            self._context.load_default_certs()
            return
        try:
            self._context.load_verify_locations(cafile=ca_file)
        except ssl.SSLError:
            raise InvalidArgument(f"--ca-file {ca_file}: holds no certificate in PEM form")
        except OSError as error:
            raise InvalidArgument(f"--ca-file {ca_file}: {error.strerror}")

    def client_context(self) -> ssl.SSLContext:
        return self._context

    def server_context(self) -> ssl.SSLContext:
        raise NotImplementedError("the command line serves nobody")


def _token_source(options: argparse.Namespace) -> Callable[[], str]:
    """Reads `--token-file` for each call; standard input once, as it has no second time."""
    if options.token_file != "-":
        return lambda: _one_token(f"--token-file {options.token_file}", _read(options.token_file))
    if "-" in getattr(options, "filename", ()):
        raise InvalidArgument("--token-file - and -f - both want standard input: put one of them into a file")
    token = _one_token("--token-file -", sys.stdin.read())
    return lambda: token


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise InvalidArgument(f"--token-file {path}: {error.strerror}")
    except UnicodeDecodeError:
        return ""


def _one_token(what: str, text: str) -> str:
    token = text.strip()
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise InvalidArgument(f"{what}: does not hold a token, and nothing else")
    return token
