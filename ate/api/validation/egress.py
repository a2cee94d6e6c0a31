"""Rules for egress policies. Pure: messages in, problems out.

A request is judged by the most specific rule that matches it: an exact host beats `*.suffix`, which beats `*`; then a
listed port beats all ports. Two rules that could win the same request with the same rank are refused. Clear text and
TLS never compete: what arrives tells which of the two it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ate.api.validation.problems import Problems
from ate.names import is_long
from ate.proto import ateapi_pb2 as pb

POLICY_NAME = "default"
_KINDS = ("http", "https", "tls_passthrough")
_DEFAULT_PORT = {"http": 80, "https": 443}
_ALL = 0
"""Stands for all ports where a rule's ports are compared."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_PREFIX = re.compile(r"[\x20-\x7e]{0,256}")
_SECRET = re.compile(r"ate-secret://([^/]+)/([^/?#]+)/([^?#]+)")
_NOT_OURS = frozenset({"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade"})
"""Headers that say how a message travels: replacing one would break it."""


def policy(problems: Problems, path: str, value: pb.EgressPolicy, atespace: str) -> None:
    """A policy of an actor of `atespace`, as it is created or replaced."""
    metadata = value.metadata
    where = f"{path}.metadata.atespace"
    problems.check(where, metadata.atespace in ("", atespace), f"must be the actor's, {atespace!r}, or empty")
    problems.check(
        f"{path}.metadata.name", metadata.name == POLICY_NAME, f"must be {POLICY_NAME!r}: an actor has one policy"
    )
    problems.at_most(f"{path}.rules", value.rules, 256)
    taken: dict[tuple[bool, str, int], str] = {}
    for index, rule in enumerate(value.rules):
        where = f"{path}.rules[{index}]"
        kind = problems.one_of(where, rule, _KINDS)
        if kind is None:
            continue
        where = f"{where}.{kind}"
        _rule(problems, where, kind, getattr(rule, kind))
        for rank in dict.fromkeys(_ranks(kind, getattr(rule, kind))):
            other = taken.setdefault(rank, where)
            if other != where:
                _, host, port = rank
                ports = f"port {port}" if port != _ALL else "all ports"
                problems.add(
                    where, f"is as good a match for {host} at {ports} as {other}: merge them, or make one narrower"
                )


def _ranks(kind: str, rule: pb.HTTPRule | pb.HTTPSRule | pb.TLSPassthroughRule) -> Iterator[tuple[bool, str, int]]:
    """(TLS or not, host pattern, listed port or all) of everything the rule matches."""
    ports = [_ALL] if rule.ports.HasField("all") else list(rule.ports.numbers)
    if not rule.HasField("ports") and kind in _DEFAULT_PORT:
        ports = [_DEFAULT_PORT[kind]]
    for host in rule.hostnames:
        for port in ports:
            yield kind != "http", host, port


def _rule(problems: Problems, path: str, kind: str, rule: pb.HTTPRule | pb.HTTPSRule | pb.TLSPassthroughRule) -> None:
    problems.check(f"{path}.hostnames", len(rule.hostnames) >= 1, "needs at least one entry")
    problems.at_most(f"{path}.hostnames", rule.hostnames, 256)
    problems.unique(f"{path}.hostnames", rule.hostnames, "host")
    for index, host in enumerate(rule.hostnames):
        name = host.removeprefix("*.")
        ok = host == "*" or is_long(name)
        problems.check(
            f"{path}.hostnames[{index}]", ok, f"{host!r} is not a lower-case DNS name, '*.' and such a name, or '*'"
        )
    if rule.HasField("ports"):
        _ports(problems, f"{path}.ports", rule.ports)
    elif kind == "tls_passthrough":
        problems.add(f"{path}.ports", "is required")
    if isinstance(rule, pb.TLSPassthroughRule):
        return
    headers = rule.effects.replace_headers
    where = f"{path}.effects.replace_headers"
    if kind == "http":
        problems.check(where, not headers, "must be empty: a credential never travels in clear text; use an https rule")
    problems.at_most(where, headers, 16)
    problems.unique(where, (header.header.lower() for header in headers), "header")
    for index, header in enumerate(headers):
        _credential(problems, f"{where}[{index}]", header)


def _ports(problems: Problems, path: str, ports: pb.Ports) -> None:
    exactly_one = ports.HasField("all") != bool(ports.numbers)
    problems.check(path, exactly_one, "exactly one of all, numbers must be set")
    problems.at_most(f"{path}.numbers", ports.numbers, 16)
    problems.unique(f"{path}.numbers", ports.numbers, "port")
    for index, number in enumerate(ports.numbers):
        problems.check(f"{path}.numbers[{index}]", 1 <= number <= 65535, f"{number} is not a port (1..65535)")


def _credential(problems: Problems, path: str, value: pb.CredentialHeader) -> None:
    if value.header == "":
        problems.add(f"{path}.header", "is required")
    else:
        ok = _HEADER.fullmatch(value.header) is not None and value.header.lower() not in _NOT_OURS
        problems.check(f"{path}.header", ok, f"{value.header!r} is not the name of a header that can be replaced")
    ok = _PREFIX.fullmatch(value.prefix) is not None
    problems.check(f"{path}.prefix", ok, "must be at most 256 printable ASCII characters")
    by_uri, by_token = value.credential_uri != "", value.HasField("actor_jwt")
    if not problems.check(path, by_uri != by_token, "exactly one of credential_uri, actor_jwt must be set"):
        return
    if by_uri:
        parts = _SECRET.fullmatch(value.credential_uri)
        ok = parts is not None and is_long(parts[1]) and len(value.credential_uri) <= 2048
        problems.check(
            f"{path}.credential_uri", ok, f"{value.credential_uri!r} is not ate-secret://<class>/<name>/<rest>"
        )
        return
    audiences = value.actor_jwt.audiences
    where = f"{path}.actor_jwt"
    problems.check(f"{where}.audiences", len(audiences) >= 1, "needs at least one entry")
    problems.at_most(f"{where}.audiences", audiences, 16)
    problems.unique(f"{where}.audiences", audiences, "audience")
    for index, audience in enumerate(audiences):
        problems.length(f"{where}.audiences[{index}]", audience, 512, required=True)
    seconds = value.actor_jwt.expiration_seconds
    problems.check(f"{where}.expiration_seconds", 300 <= seconds <= 3600, "must be 300..3600")
