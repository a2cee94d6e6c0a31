"""Every list pages alike: sizes, tokens, scopes, and each item once whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ate.api import paging
from ate.proto import ateapi_pb2 as pb
from ate.store import Key
from tests.system.api_peer import Api, open_api, refused, request_of
from tests.system.api_table import makers
from tests.system.api_table.makers import ref, ref_of
from tests.system.api_table.rows import add, row


@dataclass(frozen=True)
class Listed:
    """One list RPC. A place is the fields of a request that choose what is listed; empty for global resources."""

    rpc: str
    items: str
    place: Callable[[Api], dict[str, Any]]
    create: Callable[[Api, dict[str, Any], str], Any]
    remove: Callable[[Api, Any], Any]
    title: Callable[[Any], str] = lambda item: str(item.metadata.name)

    @property
    def global_(self) -> bool:
        return self.place is nowhere


def nowhere(api: Api) -> dict[str, Any]:
    return {}


def space(api: Api) -> dict[str, Any]:
    return {"atespace": api.atespace()}


def roomy_worker(api: Api) -> dict[str, Any]:
    return {"worker": ref_of(makers.own_worker(api, actors=50))}


def add_template(api: Api, place: dict[str, Any], name: str) -> Any:
    template = makers.template(api.location, place["atespace"], name)
    return api.user("CreateActorTemplate", actor_template=template)


def add_tag(api: Api, place: dict[str, Any], name: str) -> Any:
    source = makers.add_suspended(api)
    return api.user("CreateTag", tag=makers.tag(place["atespace"], name, ref_of(source)))


def add_resident(api: Api, place: dict[str, Any], name: str) -> Any:
    """An actor on the worker, as its assignment shows it."""
    return makers.add_running(api, **makers.on(place["worker"].name))


LISTS = (
    Listed(
        "ListAtespaces",
        "atespaces",
        nowhere,
        lambda api, place, name: api.user("CreateAtespace", atespace=makers.atespace(name)),
        lambda api, item: api.user("DeleteAtespace", atespace=ref_of(item)),
    ),
    Listed(
        "ListActorTemplates",
        "actor_templates",
        space,
        add_template,
        lambda api, item: api.user("DeleteActorTemplate", actor_template=ref_of(item)),
    ),
    Listed(
        "ListActors",
        "actors",
        space,
        lambda api, place, name: api.user("CreateActor", actor=makers.actor(place["atespace"], name)),
        lambda api, item: api.user("DeleteActor", actor=ref_of(item)),
    ),
    Listed("ListTags", "tags", space, add_tag, lambda api, item: api.user("DeleteTag", tag=ref_of(item))),
    Listed(
        "ListWorkers",
        "workers",
        nowhere,
        lambda api, place, name: api.user("CreateWorker", worker=makers.worker(name)),
        lambda api, item: api.user("DeleteWorker", worker=ref_of(item)),
    ),
    Listed(
        "ListWorkerActorAssignments",
        "actor_assignments",
        roomy_worker,
        add_resident,
        lambda api, item: api.user("SuspendActor", actor=item.actor if hasattr(item, "actor") else ref_of(item)),
        lambda item: str(item.actor.name if hasattr(item, "actor") else item.metadata.name),
    ),
    Listed(
        "ListWorkerPools",
        "worker_pools",
        nowhere,
        lambda api, place, name: api.user("CreateWorkerPool", worker_pool=makers.pool(name)),
        lambda api, item: api.user("DeleteWorkerPool", worker_pool=ref_of(item)),
    ),
    Listed(
        "ListSandboxConfigs",
        "sandbox_configs",
        nowhere,
        lambda api, place, name: api.user("CreateSandboxConfig", sandbox_config=makers.config(name)),
        lambda api, item: api.user("DeleteSandboxConfig", sandbox_config=ref_of(item)),
    ),
)


def read_all(api: Api, listed: Listed, **fields: Any) -> list[str]:
    """The names of all items, over as many pages as it takes."""
    found: list[str] = []
    token = ""
    while True:
        page = api.user(listed.rpc, page_token=token, **fields)
        found += [listed.title(item) for item in getattr(page, listed.items)]
        token = page.next_page_token
        if not token:
            return found


def page_sizes(listed: Listed, api: Api) -> None:
    place = listed.place(api)
    names = {listed.title(listed.create(api, place, api.fresh("size"))) for _ in range(3)}
    with refused("INVALID_ARGUMENT", "page_size"):
        api.user(listed.rpc, page_size=-1, **place)
    for size in (0, 1000, 1001, 2**31 - 1):
        assert names <= set(read_all(api, listed, page_size=size, **place))
    page = api.user(listed.rpc, page_size=2, **place)
    assert len(getattr(page, listed.items)) == 2 and page.next_page_token


def several_breaches(listed: Listed, api: Api) -> None:
    fields: dict[str, Any] = {"page_size": -1, "page_token": "x" * 257}
    words = ["page_size", "page_token"]
    if listed.place is space:
        fields["atespace"] = "Not a name"
        words.append("atespace")
    if listed.place is roomy_worker:
        words.append("worker")
    with refused("INVALID_ARGUMENT", *words):
        api.user(listed.rpc, **fields)


def bad_tokens(listed: Listed, api: Api) -> None:
    place = listed.place(api)
    for _ in range(2):
        listed.create(api, place, api.fresh("token"))
    good = api.user(listed.rpc, page_size=1, **place).next_page_token
    assert 0 < len(good) <= 256
    flipped = good[:-3] + ("A" if good[-3] != "A" else "B") + good[-2:]
    elsewhere = "ListSandboxConfigs" if listed.rpc == "ListAtespaces" else "ListAtespaces"
    foreign = api.user(elsewhere, page_size=1).next_page_token
    other_store = paging.encode(b"k" * 32, "actors:", Key("", "a"))
    for token in (flipped, foreign, other_store, good + "A" * 257, "x" * 257, "!", "ключ", "AAAA", good[:-1]):
        assert token, "a token to try"
        with refused("INVALID_ARGUMENT", "page_token"):
            api.user(listed.rpc, page_token=token, **place)
    assert getattr(api.user(listed.rpc, page_token=good, **place), listed.items)


def other_place(listed: Listed, api: Api) -> None:
    here, there = listed.place(api), listed.place(api)
    for place in (here, there):
        for _ in range(2):
            listed.create(api, place, api.fresh("item"))
    token = api.user(listed.rpc, page_size=1, **here).next_page_token
    places = [there] if listed.place is roomy_worker else [there, {}]
    for place in places:
        with refused("INVALID_ARGUMENT", "page_token"):
            api.user(listed.rpc, page_token=token, **place)


def scopes(listed: Listed, api: Api) -> None:
    here, there, empty = listed.place(api), listed.place(api), listed.place(api)
    mine = {listed.title(listed.create(api, here, api.fresh("mine"))) for _ in range(2)}
    others = {listed.title(listed.create(api, there, api.fresh("other")))}
    assert set(read_all(api, listed, **here)) == mine
    assert set(read_all(api, listed, **there)) == others
    assert read_all(api, listed, **empty) == []
    everything = read_all(api, listed, page_size=7)
    assert mine | others <= set(everything)
    assert read_all(api, listed, atespace="no-such-atespace") == []


def bad_atespace(listed: Listed, api: Api) -> None:
    for name in ("Upper", "x" * 64, "a.b", "-a"):
        with refused("INVALID_ARGUMENT", "atespace"):
            api.user(listed.rpc, atespace=name)


def each_once(listed: Listed, api: Api) -> None:
    """Meanwhile the item a token speaks of is deleted, and others are created before and behind it."""
    place, prefix = listed.place(api), api.fresh("walk")
    made = [listed.create(api, place, f"{prefix}-m{number}") for number in range(6)]
    ours = {listed.title(item): item for item in made}
    seen: list[str] = []
    token, disturbed = "", False
    while True:
        page = api.user(listed.rpc, page_size=2, page_token=token, **place)
        items = list(getattr(page, listed.items))
        seen += [listed.title(item) for item in items]
        token = page.next_page_token
        if not token:
            break
        if not disturbed and listed.title(items[-1]) in ours:
            listed.remove(api, ours[listed.title(items[-1])])
            listed.create(api, place, f"{prefix}-a")
            listed.create(api, place, f"{prefix}-z")
            disturbed = True
    assert disturbed and len(seen) == len(set(seen))
    assert set(ours) <= set(seen)


for one in LISTS:
    add(
        one.rpc,
        "a negative page_size is INVALID_ARGUMENT, 0 is a default, more than 1000 is taken",
        partial(page_sizes, one),
    )
    add(one.rpc, "several breaches come in one error", partial(several_breaches, one))
    add(one.rpc, "a forged, foreign, cut or too long page_token is INVALID_ARGUMENT", partial(bad_tokens, one))
    add(
        one.rpc,
        "every item comes once while others come and go, and a token outlives its item",
        partial(each_once, one),
    )
    if not one.global_:
        add(one.rpc, "a token of another place is INVALID_ARGUMENT", partial(other_place, one))
    if one.place is space:
        add(one.rpc, "keeps to the atespace asked for; none means all", partial(scopes, one))
        add(one.rpc, "an atespace that is no short name is INVALID_ARGUMENT", partial(bad_atespace, one))


@row("ListWorkerPools", "a page_size above 1000 counts as 1000")
def _coerced(api: Api) -> None:
    folder = api.folder / api.fresh("many")
    folder.mkdir()
    with open_api(folder) as other:
        pools = [makers.pool(f"p-{number:04}") for number in range(1001)]
        other.user.at_once("CreateWorkerPool", [request_of("CreateWorkerPool", worker_pool=pool) for pool in pools])
        for size in (1001, 2**31 - 1):
            page = other.user("ListWorkerPools", page_size=size)
            assert len(page.worker_pools) == 1000
        rest = other.user("ListWorkerPools", page_token=page.next_page_token).worker_pools
        assert [pool.metadata.name for pool in rest] == ["p-1000"]
        assert 0 < len(other.user("ListWorkerPools").worker_pools) <= 1000


@row("ListWorkerActorAssignments", "a missing or unnamed worker is INVALID_ARGUMENT, an unknown one NOT_FOUND")
def _worker(api: Api) -> None:
    with refused("INVALID_ARGUMENT", "worker"):
        api.user("ListWorkerActorAssignments")
    with refused("INVALID_ARGUMENT", "worker.name"):
        api.user("ListWorkerActorAssignments", worker=pb.ObjectRef())
    with refused("INVALID_ARGUMENT", "worker.atespace"):
        api.user("ListWorkerActorAssignments", worker=ref("a", "b"))
    with refused("NOT_FOUND"):
        api.user("ListWorkerActorAssignments", worker=ref("", "no-such-worker"))


@row("ListWorkerActorAssignments", "tells the actor, its uid, template, room and the worker's epoch")
def _assignment(api: Api) -> None:
    place = roomy_worker(api)
    actor = add_resident(api, place, "")
    [found] = api.user("ListWorkerActorAssignments", **place).actor_assignments
    assert found.actor == ref_of(actor) and found.actor_uid == found.metadata.name == actor.metadata.uid
    assert found.actor_template_ref == actor.actor_template
    assert found.worker_epoch == actor.status.worker_assignment.worker_epoch == 1
