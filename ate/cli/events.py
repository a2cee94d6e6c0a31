"""`ate get events ACTOR`: what happened to an actor, the newest last."""

from __future__ import annotations

import argparse
import sys

from ate.cli import output
from ate.cli.client import Api
from ate.cli.verbs import ref_of
from ate.errors import InvalidArgument
from ate.names import Ref
from ate.proto import events_pb2

TYPES = ("event", "events")
_TIMEOUT = 30.0
_PAGE = 1000


async def get(api: Api, options: argparse.Namespace) -> int:
    """Prints the histories of the actors named, one after the other."""
    if not options.names:
        raise InvalidArgument("of which actor? `ate get events ACTOR -a ATESPACE`")
    if options.watch:
        raise InvalidArgument("-w works for actors and workers: `ate get actors -w` shows changes as they happen")
    found: list[events_pb2.ActorEvent] = []
    for name in options.names:
        found += await _events(api, ref_of("Actor", name, options))
    if not found and options.output in ("table", "wide"):
        print("No events found", file=sys.stderr)
        return 0
    if options.output == "name":
        print("\n".join(f"event/{event.atespace}/{event.actor_name}/{event.sequence}" for event in found))
        return 0
    print(output.render(found, options.output, kind="ActorEvent"))
    return 0


async def _events(api: Api, ref: Ref) -> list[events_pb2.ActorEvent]:
    found: list[events_pb2.ActorEvent] = []
    token = ""
    while True:
        request = events_pb2.ListActorEventsRequest(
            atespace=ref.atespace, actor_name=ref.name, page_size=_PAGE, page_token=token
        )
        answer = await api.events.ListActorEvents(request, timeout=_TIMEOUT)
        found += answer.events
        token = answer.next_page_token
        if not token:
            return found
