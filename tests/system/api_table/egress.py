"""Egress policies: one an actor, guarded like any resource, and every bound of their rules at its edge and beyond."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.lifecycle import STATES
from tests.system.api_table.makers import ref, ref_of
from tests.system.api_table.resources import BAD_SHORT, BAD_UUID
from tests.system.api_table.rows import add, row

ALL = pb.Ports(all=pb.AllPorts())


def ports(*numbers: int) -> pb.Ports:
    return pb.Ports(numbers=numbers)


def http(*hosts: str, **fields: Any) -> pb.EgressRule:
    return pb.EgressRule(http=pb.HTTPRule(hostnames=hosts, **fields))


def https(*hosts: str, headers: list[pb.CredentialHeader] | None = None, **fields: Any) -> pb.EgressRule:
    effects = pb.HttpRuleEffects(replace_headers=headers or [])
    return pb.EgressRule(https=pb.HTTPSRule(hostnames=hosts, effects=effects, **fields))


def passed(*hosts: str, **fields: Any) -> pb.EgressRule:
    return pb.EgressRule(tls_passthrough=pb.TLSPassthroughRule(hostnames=hosts, **fields))


def secret(header: str = "Authorization", uri: str = "ate-secret://k8s.io/key/token") -> pb.CredentialHeader:
    return pb.CredentialHeader(header=header, prefix="Bearer ", credential_uri=uri)


def token(*audiences: str, seconds: int = 600) -> pb.CredentialHeader:
    source = pb.ActorJWTSource(audiences=audiences, expiration_seconds=seconds)
    return pb.CredentialHeader(header="X-Token", actor_jwt=source)


def policy(*rules: pb.EgressRule, **metadata: Any) -> pb.EgressPolicy:
    return pb.EgressPolicy(metadata=pb.ResourceMetadata(**{"name": "default", **metadata}), rules=rules)


def hosts(count: int) -> list[str]:
    return [f"h{number}.com" for number in range(count)]


@dataclass(frozen=True)
class Bound:
    """Rules at the edge of a bound, rules beyond it, and the path the breach is told with."""

    title: str
    path: str
    within: list[pb.EgressRule]
    beyond: list[pb.EgressRule]


_HEADERS = "rules[0].https.effects.replace_headers"
BOUNDS = (
    Bound("256 rules", "rules", [http(host) for host in hosts(256)], [http(host) for host in hosts(257)]),
    Bound("256 hostnames", "rules[0].http.hostnames", [http(*hosts(256))], [http(*hosts(257))]),
    Bound("at least one hostname", "rules[0].https.hostnames", [https("a.com")], [https()]),
    Bound("no hostname twice", "rules[0].http.hostnames[1]", [http("a.com", "b.com")], [http("a.com", "a.com")]),
    Bound("lower-case hostnames", "rules[0].http.hostnames[0]", [http("a.com")], [http("A.com")]),
    Bound("one label of wildcard", "rules[0].http.hostnames[0]", [http("*.a.com", "*")], [http("*.*.a.com")]),
    Bound("a wildcard at the front only", "rules[0].http.hostnames[0]", [http("*.a.com")], [http("a.*")]),
    Bound("exactly one kind", "rules[0]", [http("a.com")], [pb.EgressRule()]),
    Bound(
        "no two kinds",
        "rules[0]",
        [https("a.com")],
        [pb.EgressRule(http=pb.HTTPRule(hostnames=["a.com"]), https=pb.HTTPSRule(hostnames=["a.com"]))],
    ),
    Bound(
        "ports of a passthrough",
        "rules[0].tls_passthrough.ports",
        [passed("a.com", ports=ports(443))],
        [passed("a.com")],
    ),
    Bound(
        "16 ports",
        "rules[0].http.ports.numbers",
        [http("a.com", ports=ports(*range(1, 17)))],
        [http("a.com", ports=ports(*range(1, 18)))],
    ),
    Bound(
        "ports above 0",
        "rules[0].http.ports.numbers[0]",
        [http("a.com", ports=ports(1))],
        [http("a.com", ports=ports(0))],
    ),
    Bound(
        "ports up to 65535",
        "rules[0].http.ports.numbers[0]",
        [http("a.com", ports=ports(65535))],
        [http("a.com", ports=ports(65536))],
    ),
    Bound(
        "no port twice",
        "rules[0].http.ports.numbers[1]",
        [http("a.com", ports=ports(1, 2))],
        [http("a.com", ports=ports(1, 1))],
    ),
    Bound(
        "all ports or some",
        "rules[0].http.ports",
        [http("a.com", ports=ALL)],
        [http("a.com", ports=pb.Ports(all=pb.AllPorts(), numbers=[80]))],
    ),
    Bound(
        "no tie of two rules",
        "rules[1].http",
        [http("a.com"), http("a.com", ports=ports(81))],
        [http("a.com"), http("a.com", ports=ports(80))],
    ),
    Bound(
        "no tie of https and passthrough",
        "rules[1].tls_passthrough",
        [https("a.com"), passed("a.com", ports=ports(444))],
        [https("a.com"), passed("a.com", ports=ports(443))],
    ),
    Bound(
        "16 headers",
        _HEADERS,
        [https("a.com", headers=[secret(f"h{number}") for number in range(16)])],
        [https("a.com", headers=[secret(f"h{number}") for number in range(17)])],
    ),
    Bound(
        "no header twice, case ignored",
        f"{_HEADERS}[1]",
        [https("a.com", headers=[secret("a"), secret("b")])],
        [https("a.com", headers=[secret("a"), secret("A")])],
    ),
    Bound(
        "a header's name",
        f"{_HEADERS}[0].header",
        [https("a.com", headers=[secret("a")])],
        [https("a.com", headers=[secret("")])],
    ),
    Bound(
        "one source of a credential",
        f"{_HEADERS}[0]",
        [https("a.com", headers=[secret("a")])],
        [https("a.com", headers=[pb.CredentialHeader(header="a")])],
    ),
    Bound(
        "the form of a secret's URI",
        f"{_HEADERS}[0].credential_uri",
        [https("a.com", headers=[secret("a", "ate-secret://a/b/c/d")])],
        [https("a.com", headers=[secret("a", "ate-secret://a/b")])],
    ),
    Bound(
        "no secret in clear text",
        "rules[0].http.effects.replace_headers",
        [http("a.com")],
        [http("a.com", effects=pb.HttpRuleEffects(replace_headers=[secret()]))],
    ),
    Bound(
        "at least one audience",
        f"{_HEADERS}[0].actor_jwt.audiences",
        [https("a.com", headers=[token("a")])],
        [https("a.com", headers=[token()])],
    ),
    Bound(
        "16 audiences",
        f"{_HEADERS}[0].actor_jwt.audiences",
        [https("a.com", headers=[token(*hosts(16))])],
        [https("a.com", headers=[token(*hosts(17))])],
    ),
    Bound(
        "no audience twice",
        f"{_HEADERS}[0].actor_jwt.audiences[1]",
        [https("a.com", headers=[token("a", "b")])],
        [https("a.com", headers=[token("a", "a")])],
    ),
    Bound(
        "512 characters of an audience",
        f"{_HEADERS}[0].actor_jwt.audiences[0]",
        [https("a.com", headers=[token("a" * 512)])],
        [https("a.com", headers=[token("a" * 513)])],
    ),
    Bound(
        "at least 300 seconds",
        f"{_HEADERS}[0].actor_jwt.expiration_seconds",
        [https("a.com", headers=[token("a", seconds=300)])],
        [https("a.com", headers=[token("a", seconds=299)])],
    ),
    Bound(
        "at most 3600 seconds",
        f"{_HEADERS}[0].actor_jwt.expiration_seconds",
        [https("a.com", headers=[token("a", seconds=3600)])],
        [https("a.com", headers=[token("a", seconds=3601)])],
    ),
)


def bound(rpc: str, limit: Bound, api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    guards: dict[str, Any] = {}
    if rpc == "UpdateActorEgressPolicy":
        made = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy()).metadata
        guards = {"uid": made.uid, "version": made.version}
    with refused("INVALID_ARGUMENT", f"egress_policy.{limit.path}:"):
        api.user(rpc, actor=actor, egress_policy=policy(*limit.beyond, **guards))
    kept = api.user(rpc, actor=actor, egress_policy=policy(*limit.within, **guards))
    assert list(kept.rules) == limit.within


for one in BOUNDS:
    for name in ("CreateActorEgressPolicy", "UpdateActorEgressPolicy"):
        add(name, f"{one.title}: the edge is fine, one beyond INVALID_ARGUMENT", partial(bound, name, one))


# -- as a resource ------------------------------------------------------------------------------------------------


def actors(rpc: str, api: Api) -> None:
    body = {"egress_policy": policy(uid=str(uuid.uuid4()), version=1)} if rpc[:6] in ("Create", "Update") else {}
    with refused("INVALID_ARGUMENT", "actor"):
        api.user(rpc, **body)
    for name in BAD_SHORT:
        with refused("INVALID_ARGUMENT", "actor.name"):
            api.user(rpc, actor=ref("a", name), **body)
        with refused("INVALID_ARGUMENT", "actor.atespace"):
            api.user(rpc, actor=ref(name, "a"), **body)
    with refused("INVALID_ARGUMENT", "actor.name", "actor.atespace"):
        api.user(rpc, actor=ref("", ""), **body)
    with refused("NOT_FOUND", "no-such-actor"):
        api.user(rpc, actor=ref(makers.LAB, "no-such-actor"), **body)


def none_there(rpc: str, api: Api) -> None:
    body = {"egress_policy": policy(uid=str(uuid.uuid4()), version=1)} if rpc[:6] == "Update" else {}
    with refused("NOT_FOUND", "egress policy"):
        api.user(rpc, actor=ref_of(makers.add_actor(api)), **body)


for name in (f"{verb}ActorEgressPolicy" for verb in ("Create", "Get", "Update", "Delete")):
    add(name, "a missing or bad actor is INVALID_ARGUMENT, an unknown one NOT_FOUND", partial(actors, name))
    if not name.startswith("Create"):
        add(name, "an actor without a policy is NOT_FOUND", partial(none_there, name))


def bad_policy(rpc: str, api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    guards: dict[str, Any] = {"uid": str(uuid.uuid4()), "version": 1}
    with refused("INVALID_ARGUMENT", "egress_policy"):
        api.user(rpc, actor=actor)
    for name in ("", "other", "Default"):
        with refused("INVALID_ARGUMENT", "egress_policy.metadata.name"):
            api.user(rpc, actor=actor, egress_policy=policy(**{**guards, "name": name}))
    with refused("INVALID_ARGUMENT", "egress_policy.metadata.atespace"):
        api.user(rpc, actor=actor, egress_policy=policy(atespace="elsewhere", **guards))
    words = ["actor.name", "egress_policy.metadata.name", "egress_policy.rules[0].http.hostnames"]
    if rpc.startswith("Update"):
        words += ["egress_policy.metadata.uid", "egress_policy.metadata.version"]
    with refused("INVALID_ARGUMENT", *words):
        api.user(rpc, actor=ref("a", ""), egress_policy=policy(http(), name="other"))


for name in ("CreateActorEgressPolicy", "UpdateActorEgressPolicy"):
    add(
        name,
        "a missing, misnamed or foreign policy is INVALID_ARGUMENT, all breaches in one error",
        partial(bad_policy, name),
    )


@row("CreateActorEgressPolicy", "what the server sets is ignored; uid is a new UUID, version 1")
def _server_set(api: Api) -> None:
    actor = makers.add_actor(api)
    forged = policy(http("a.com"), uid="11111111-1111-4111-8111-111111111111", version=7)
    forged.metadata.create_time.seconds = 1
    made = api.user("CreateActorEgressPolicy", actor=ref_of(actor), egress_policy=forged)
    assert made.metadata.uid != forged.metadata.uid and uuid.UUID(made.metadata.uid).version == 4
    assert made.metadata.version == 1 and made.metadata.create_time.seconds > 1_000_000_000
    assert (made.metadata.atespace, made.metadata.name) == (actor.metadata.atespace, "default")


@row("CreateActorEgressPolicy", "a second one is ALREADY_EXISTS")
def _second(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy(http("a.com")))
    with refused("ALREADY_EXISTS", actor.name):
        api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy())
    assert len(api.user("GetActorEgressPolicy", actor=actor).rules) == 1


@row("CreateActorEgressPolicy", "an actor that is being deleted gets none: FAILED_PRECONDITION")
def _deleting(api: Api) -> None:
    with STATES["DELETING"](api) as actor, refused("FAILED_PRECONDITION", "being deleted"):
        api.user("CreateActorEgressPolicy", actor=ref_of(actor), egress_policy=policy())


@row("GetActorEgressPolicy", "answers what Create answered")
def _get(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    made = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy(http("a.com")))
    assert api.user("GetActorEgressPolicy", actor=actor) == made


@row("UpdateActorEgressPolicy", "uid and version are required, stale or foreign ones ABORTED")
def _guards(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    made = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy()).metadata

    def update(uid: str, version: int) -> pb.EgressPolicy:
        return api.user("UpdateActorEgressPolicy", actor=actor, egress_policy=policy(uid=uid, version=version))

    for wrong in ("", *BAD_UUID):
        with refused("INVALID_ARGUMENT", "egress_policy.metadata.uid"):
            update(wrong, 1)
    with refused("INVALID_ARGUMENT", "egress_policy.metadata.version"):
        update(made.uid, 0)
    with refused("ABORTED"):
        update(str(uuid.uuid4()), 1)
    assert update(made.uid, 1).metadata.version == 2
    with refused("ABORTED"):
        update(made.uid, 1)


@row("UpdateActorEgressPolicy", "replaces all rules; the version rises by one, uid and create_time stay")
def _replace(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    made = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy(http("a.com"), https("b.com")))
    new = policy(passed("c.com", ports=ALL), uid=made.metadata.uid, version=1)
    new.metadata.create_time.seconds = 1
    after = api.user("UpdateActorEgressPolicy", actor=actor, egress_policy=new)
    assert list(after.rules) == list(new.rules)
    assert after.metadata.version == 2 and after.metadata.uid == made.metadata.uid
    assert after.metadata.create_time == made.metadata.create_time
    empty = policy(uid=made.metadata.uid, version=2)
    assert not api.user("UpdateActorEgressPolicy", actor=actor, egress_policy=empty).rules


@row("DeleteActorEgressPolicy", "guards that do not match are ABORTED, malformed ones INVALID_ARGUMENT")
def _delete_guards(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy())
    for options in (pb.DeleteOptions(version=2), pb.DeleteOptions(uid=str(uuid.uuid4()))):
        with refused("ABORTED"):
            api.user("DeleteActorEgressPolicy", actor=actor, options=options)
    with refused("INVALID_ARGUMENT", "options.uid", "options.version"):
        api.user("DeleteActorEgressPolicy", actor=actor, options=pb.DeleteOptions(uid="x", version=-1))
    assert api.user("GetActorEgressPolicy", actor=actor).metadata.version == 1


@row("DeleteActorEgressPolicy", "answers the policy; the next one has another uid")
def _delete(api: Api) -> None:
    actor = ref_of(makers.add_actor(api))
    made = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy(http("a.com")))
    options = pb.DeleteOptions(uid=made.metadata.uid, version=1)
    assert api.user("DeleteActorEgressPolicy", actor=actor, options=options) == made
    with refused("NOT_FOUND"):
        api.user("GetActorEgressPolicy", actor=actor)
    again = api.user("CreateActorEgressPolicy", actor=actor, egress_policy=policy())
    assert again.metadata.uid != made.metadata.uid


@row("DeleteActor", "takes the actor's egress policy along: a namesake has none")
def _with_the_actor(api: Api) -> None:
    actor = makers.add_actor(api)
    api.user("CreateActorEgressPolicy", actor=ref_of(actor), egress_policy=policy())
    api.user("DeleteActor", actor=ref_of(actor))
    api.user("CreateActor", actor=makers.actor(actor.metadata.atespace, actor.metadata.name))
    with refused("NOT_FOUND"):
        api.user("GetActorEgressPolicy", actor=ref_of(actor))
