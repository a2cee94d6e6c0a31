"""Promise: an egress policy says one thing about every request, and whatever is wrong with it is said with its path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ate.api.validation import egress
from ate.api.validation.problems import Problems
from ate.proto import ateapi_pb2 as pb


def breaches(*rules: pb.EgressRule, name: str = "default", atespace: str = "demo") -> dict[str, str]:
    problems = Problems()
    metadata = pb.ResourceMetadata(atespace=atespace, name=name)
    egress.policy(problems, "p", pb.EgressPolicy(metadata=metadata, rules=rules), "demo")
    return dict(problems.found)


def ports(*numbers: int) -> pb.Ports:
    return pb.Ports(numbers=numbers) if numbers else pb.Ports(all=pb.AllPorts())


def http(*hosts: str, at: pb.Ports | None = None, **fields: object) -> pb.EgressRule:
    return pb.EgressRule(http=pb.HTTPRule(hostnames=hosts, ports=at, **fields))  # type: ignore[arg-type]


def https(*hosts: str, at: pb.Ports | None = None, headers: list[pb.CredentialHeader] | None = None) -> pb.EgressRule:
    effects = pb.HttpRuleEffects(replace_headers=headers) if headers else None
    return pb.EgressRule(https=pb.HTTPSRule(hostnames=hosts, ports=at, effects=effects))


def passed(*hosts: str, at: pb.Ports | None = None) -> pb.EgressRule:
    return pb.EgressRule(tls_passthrough=pb.TLSPassthroughRule(hostnames=hosts, ports=at))


def secret(header: str = "Authorization", uri: str = "ate-secret://k8s.io/api-key/token") -> pb.CredentialHeader:
    return pb.CredentialHeader(header=header, prefix="Bearer ", credential_uri=uri)


def token(*audiences: str, seconds: int = 600) -> pb.CredentialHeader:
    return pb.CredentialHeader(
        header="X-Token", actor_jwt=pb.ActorJWTSource(audiences=audiences, expiration_seconds=seconds)
    )


def test_a_usual_policy_is_accepted():
    assert not breaches(
        http("example.com", "*.example.com"),
        https("api.example.com", headers=[secret(), token("https://api.example.com")]),
        https("*", at=ports(443, 8443)),
        passed("git.example.com", at=ports(443)),
        passed("*.example.com", at=ports()),
    )
    assert not breaches(), "a policy without rules denies everything, and may be written down"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (http("a.com"), http("a.com", at=ports(80))),
        (https("a.com"), https("b.com", "a.com", at=ports(443, 444))),
        (https("a.com"), passed("a.com", at=ports(443))),
        (https("*.a.com", at=ports()), passed("*.a.com", at=ports())),
        (http("*"), http("*")),
    ],
)
def test_two_rules_that_could_win_the_same_request_are_refused(first: pb.EgressRule, second: pb.EgressRule):
    found = breaches(first, second)
    assert [path.split(".")[1] for path in found] == ["rules[1]"], found
    assert all("p.rules[0]." in text for text in found.values())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (http("a.com"), https("a.com", at=ports(80))),
        (http("a.com", at=ports(80)), http("a.com", at=ports())),
        (https("a.com"), https("*.com")),
        (https("*.com"), https("*")),
        (https("a.com", at=ports(1)), passed("a.com", at=ports(2))),
    ],
)
def test_a_narrower_rule_beside_a_wider_one_is_fine(first: pb.EgressRule, second: pb.EgressRule):
    assert not breaches(first, second)


@pytest.mark.parametrize(
    ("rule", "path", "words"),
    [
        (pb.EgressRule(), "p.rules[0]", "exactly one of http, https"),
        (
            pb.EgressRule(http=pb.HTTPRule(hostnames=["a"]), https=pb.HTTPSRule(hostnames=["a"])),
            "p.rules[0]",
            "exactly",
        ),
        (http(), "p.rules[0].http.hostnames", "at least one"),
        (http("A.com"), "p.rules[0].http.hostnames[0]", "lower-case"),
        (http("a.*.com"), "p.rules[0].http.hostnames[0]", "DNS name"),
        (http("*."), "p.rules[0].http.hostnames[0]", "DNS name"),
        (http("a.com", "a.com"), "p.rules[0].http.hostnames[1]", "twice"),
        (http(*(f"h{n}.com" for n in range(257))), "p.rules[0].http.hostnames", "at most 256"),
        (passed("a.com"), "p.rules[0].tls_passthrough.ports", "required"),
        (http("a.com", at=pb.Ports()), "p.rules[0].http.ports", "exactly one of all, numbers"),
        (http("a.com", at=pb.Ports(all=pb.AllPorts(), numbers=[1])), "p.rules[0].http.ports", "exactly one"),
        (http("a.com", at=ports(0)), "p.rules[0].http.ports.numbers[0]", "1..65535"),
        (http("a.com", at=ports(65536)), "p.rules[0].http.ports.numbers[0]", "1..65535"),
        (http("a.com", at=ports(5, 5)), "p.rules[0].http.ports.numbers[1]", "twice"),
        (http("a.com", at=ports(*range(1, 18))), "p.rules[0].http.ports.numbers", "at most 16"),
        (
            http("a.com", effects=pb.HttpRuleEffects(replace_headers=[secret()])),
            "p.rules[0].http.effects.replace_headers",
            "clear text",
        ),
        (
            https("a.com", headers=[secret(""), secret("b")]),
            "p.rules[0].https.effects.replace_headers[0].header",
            "req",
        ),
        (https("a.com", headers=[secret("a b")]), "p.rules[0].https.effects.replace_headers[0].header", "header"),
        (https("a.com", headers=[secret("Host")]), "p.rules[0].https.effects.replace_headers[0].header", "header"),
        (https("a.com", headers=[secret("A"), secret("a")]), "p.rules[0].https.effects.replace_headers[1]", "twice"),
        (
            https("a.com", headers=[pb.CredentialHeader(header="a")]),
            "p.rules[0].https.effects.replace_headers[0]",
            "exactly one of credential_uri, actor_jwt",
        ),
        (
            https("a.com", headers=[secret(uri="ate-secret://k8s.io/only")]),
            "p.rules[0].https.effects.replace_headers[0].credential_uri",
            "ate-secret://<class>/<name>/<rest>",
        ),
        (
            https("a.com", headers=[token(seconds=600)]),
            "p.rules[0].https.effects.replace_headers[0].actor_jwt.audiences",
            "at least one",
        ),
        (
            https("a.com", headers=[token("a", "a")]),
            "p.rules[0].https.effects.replace_headers[0].actor_jwt.audiences[1]",
            "twice",
        ),
        (
            https("a.com", headers=[token("a", seconds=299)]),
            "p.rules[0].https.effects.replace_headers[0].actor_jwt.expiration_seconds",
            "300..3600",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_path(rule: pb.EgressRule, path: str, words: str):
    found = breaches(rule)
    assert words in found.get(path, ""), found


def test_a_policy_is_called_default_and_belongs_to_its_actors_atespace():
    assert set(breaches(name="other", atespace="else")) == {"p.metadata.name", "p.metadata.atespace"}
    assert set(breaches(*[http("a.com")] * 0, atespace="")) == set()
    many = [http(f"h{n}.com") for n in range(257)]
    assert "p.rules" in breaches(*many)


HOSTS = st.sampled_from(["a.com", "b.a.com", "*.a.com", "*.com", "*"])
PORTS = st.one_of(
    st.none(), st.just(ports()), st.sets(st.sampled_from([80, 443, 8080]), min_size=1).map(lambda s: ports(*s))
)
RULES = st.builds(
    lambda make, hosts, at: make(*sorted(hosts), at=at),
    st.sampled_from([http, https]),
    st.sets(HOSTS, min_size=1),
    PORTS,
)


@given(st.lists(RULES, max_size=5))
def test_an_accepted_policy_has_one_best_rule_for_every_request(rules: list[pb.EgressRule]):
    if breaches(*rules):
        return
    for tls in (False, True):
        for host in ("a.com", "b.a.com", "c.a.com", "x.org"):
            for port in (80, 443, 8080, 9):
                ranks = [rank for rule in rules if (rank := rank_of(rule, tls, host, port)) is not None]
                assert ranks.count(max(ranks, default=None)) <= 1


def rank_of(rule: pb.EgressRule, tls: bool, host: str, port: int) -> tuple[int, bool] | None:
    """How well the rule matches, by the words of the proto; None when it does not."""
    if rule.HasField("https") != tls:
        return None
    inner = rule.https if tls else rule.http
    listed = port in inner.ports.numbers or (not inner.HasField("ports") and port == (443 if tls else 80))
    if not listed and not inner.ports.HasField("all"):
        return None
    found = [
        2 if pattern == host else 1 if pattern == "*." + host.partition(".")[2] else 0
        for pattern in inner.hostnames
        if pattern in (host, "*." + host.partition(".")[2], "*")
    ]
    return (max(found), listed) if found else None
