"""Tags: what they are made of, who may start from them, and what changes once they are ready."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, Snapshots, refused
from tests.system.api_table import makers
from tests.system.api_table.lifecycle import STATES
from tests.system.api_table.makers import OTHER_TEMPLATE, add_actor, add_suspended, add_tag, ref, ref_of
from tests.system.api_table.resources import BAD_SHORT
from tests.system.api_table.rows import add, row


def bad_tag(verb: str, api: Api) -> None:
    sound = add_tag(api)

    def tried(path: str, change: Callable[[pb.Tag], Any]) -> None:
        wrong = pb.Tag()
        wrong.CopyFrom(sound)
        change(wrong)
        with refused("INVALID_ARGUMENT", f"tag.{path}"):
            api.user(f"{verb}Tag", tag=wrong)

    tried("scope", lambda tag: tag.ClearField("scope"))
    tried("scope", lambda tag: setattr(tag, "scope", 3))
    tried("source_actor", lambda tag: tag.ClearField("source_actor"))
    for name in BAD_SHORT:
        tried("source_actor.name", lambda tag: setattr(tag.source_actor, "name", name))
        tried("source_actor.atespace", lambda tag: setattr(tag.source_actor, "atespace", name))


add("CreateTag", "a bad scope or source is INVALID_ARGUMENT", partial(bad_tag, "Create"))
add("UpdateTag", "a bad scope or source is INVALID_ARGUMENT", partial(bad_tag, "Update"))


@row("CreateTag", "copies the snapshot to where the tag owns it, with its template's uid")
def _copy(api: Api) -> None:
    source = add_suspended(api)
    tag = api.user("CreateTag", tag=makers.tag(source.metadata.atespace, "t", ref_of(source)))
    assert tag.status.state == pb.TAG_STATE_READY and tag.status.storage_location == api.location
    prefix = f"{api.location}/atespaces/{tag.metadata.atespace}/tags/{tag.metadata.uid}"
    assert tag.status.snapshot.snapshot_uri.startswith(prefix)
    assert tag.status.snapshot.snapshot_uri != source.status.external_snapshot.snapshot_uri
    template = source.status.external_snapshot.actor_template_uid
    assert tag.status.actor_template_uid == tag.status.snapshot.actor_template_uid == template
    assert api.user("GetTag", tag=ref_of(tag)) == tag


@row("CreateTag", "an unknown source is NOT_FOUND")
def _unknown(api: Api) -> None:
    space = api.atespace()
    with refused("NOT_FOUND", "no-such-actor"):
        api.user("CreateTag", tag=makers.tag(space, "t", ref(space, "no-such-actor")))


def wrong_state(state: str, api: Api) -> None:
    with STATES[state](api) as actor:
        with refused("FAILED_PRECONDITION", state):
            api.user("CreateTag", tag=makers.tag(actor.metadata.atespace, "t", ref_of(actor)))
    with refused("NOT_FOUND"):
        api.user("GetTag", tag=ref(actor.metadata.atespace, "t"))


for state in STATES:
    if state != "SUSPENDED":
        add("CreateTag", f"a source that is {state} is FAILED_PRECONDITION", partial(wrong_state, state))


@row("CreateTag", "a source without a snapshot is FAILED_PRECONDITION")
def _no_snapshot(api: Api) -> None:
    actor = add_actor(api, actor_template=OTHER_TEMPLATE)
    with refused("FAILED_PRECONDITION", "no snapshot"):
        api.user("CreateTag", tag=makers.tag(actor.metadata.atespace, "t", ref_of(actor)))


def pending(api: Api) -> pb.Tag:
    """A tag whose copy failed."""
    source = add_suspended(api)
    shutil.rmtree(Snapshots.folder(source.status.external_snapshot.snapshot_uri))
    tag = makers.tag(source.metadata.atespace, "t", ref_of(source))
    with refused("NOT_FOUND", "nothing to copy"):
        api.user("CreateTag", tag=tag)
    found = api.user("GetTag", tag=ref_of(tag))
    assert found.status.state == pb.TAG_STATE_CREATING and not found.status.HasField("snapshot")
    return found


@row("CreateTag", "a copy that fails leaves a pending tag: ALREADY_EXISTS until it is deleted")
def _pending(api: Api) -> None:
    tag = pending(api)
    with refused("ALREADY_EXISTS"):
        api.user("CreateTag", tag=tag)
    assert api.user("DeleteTag", tag=ref_of(tag)).metadata.uid == tag.metadata.uid
    source = add_suspended(api)
    again = makers.tag(tag.metadata.atespace, "t", ref_of(source))
    assert api.user("CreateTag", tag=again).status.state == pb.TAG_STATE_READY


@row("UpdateTag", "a pending tag is FAILED_PRECONDITION")
def _update_pending(api: Api) -> None:
    tag = pending(api)
    tag.scope = pb.TAG_SCOPE_PUBLISHED
    with refused("FAILED_PRECONDITION", "not ready"):
        api.user("UpdateTag", tag=tag)


@row("UpdateTag", "changes the scope both ways and nothing else")
def _scope(api: Api) -> None:
    tag = add_tag(api)
    for scope in (pb.TAG_SCOPE_PUBLISHED, pb.TAG_SCOPE_ATESPACE):
        tag.scope = scope
        after = api.user("UpdateTag", tag=tag)
        assert after.scope == scope and after.status == tag.status
        tag = after


def start_from(api: Api, tag: pb.Tag, space: str = "", **fields: Any) -> pb.Actor:
    return add_actor(api, space=space or tag.metadata.atespace, source_tag=ref_of(tag), **fields)


@row("CreateActor", "starts from a tag of its own atespace, and borrows its snapshot")
def _from_tag(api: Api) -> None:
    tag = add_tag(api)
    actor = start_from(api, tag)
    assert actor.source_tag == ref_of(tag) and actor.status.external_snapshot == tag.status.snapshot
    assert api.user("ResumeActor", actor=ref_of(actor)).resumed


@row("UpdateActor", "source_tag cannot be cleared or changed: INVALID_ARGUMENT")
def _source_tag_stays(api: Api) -> None:
    actor = start_from(api, add_tag(api))
    for change in (lambda: actor.source_tag.MergeFrom(ref("", "another")), lambda: actor.ClearField("source_tag")):
        change()
        with refused("INVALID_ARGUMENT", "actor.source_tag"):
            api.user("UpdateActor", actor=actor)


@row("CreateActor", "a tag of another atespace is FAILED_PRECONDITION until it is PUBLISHED")
def _from_other_atespace(api: Api) -> None:
    tag, space = add_tag(api), api.atespace()
    with refused("FAILED_PRECONDITION", "publish"):
        start_from(api, tag, space)
    tag.scope = pb.TAG_SCOPE_PUBLISHED
    tag = api.user("UpdateTag", tag=tag)
    assert start_from(api, tag, space).status.external_snapshot == tag.status.snapshot


@row("CreateActor", "an unknown tag is NOT_FOUND, a pending one or one of another template FAILED_PRECONDITION")
def _from_bad_tag(api: Api) -> None:
    with refused("NOT_FOUND", "no-such-tag"):
        add_actor(api, source_tag=ref(makers.LAB, "no-such-tag"))
    with refused("FAILED_PRECONDITION", "not ready"):
        start_from(api, pending(api))
    with refused("FAILED_PRECONDITION", "another actor template"):
        start_from(api, add_tag(api), actor_template=OTHER_TEMPLATE)


@row("CreateActor", "a tag and external volumes together are FAILED_PRECONDITION")
def _from_tag_with_volumes(api: Api) -> None:
    tag = add_tag(api, pb.TAG_SCOPE_PUBLISHED)
    space = api.atespace()
    template = makers.template(api.location, space, "t")
    volume = pb.ExternalVolumeTemplate(capacity="1Gi", storage_class_name="fast")
    template.volumes.add(name="v", external_volume_template=volume)
    template.containers[0].volume_mounts.add(name="v", mount_path="/v")
    made = api.user("CreateActorTemplate", actor_template=template)
    with refused("FAILED_PRECONDITION", "external volumes"):
        start_from(api, tag, space, actor_template=ref_of(made))
    [pending_volume] = add_actor(api, space=space, actor_template=ref_of(made)).status.actor_volumes
    assert (pending_volume.volume_name, pending_volume.status) == ("v", pb.ExternalVolume.STATUS_PENDING)


@row("DeleteTag", "removes what it copied, and nothing of the source")
def _delete(api: Api) -> None:
    tag = add_tag(api)
    source = api.user("GetActor", actor=tag.source_actor)
    copy, original = (Snapshots.folder(s.snapshot_uri) for s in (tag.status.snapshot, source.status.external_snapshot))
    assert any(copy.iterdir())
    api.user("DeleteTag", tag=ref_of(tag))
    assert not copy.exists() or not any(copy.iterdir())
    assert any(original.iterdir())
