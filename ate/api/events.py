"""EventLog: the histories of actors, as `ate.api.workflows.history` keeps them."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.control import checked
from ate.api.kinds import ACTOR_EVENTS
from ate.api.validation.problems import Problems
from ate.api.workflows import history, steps
from ate.names import Ref
from ate.proto import events_pb2 as pb
from ate.proto.events_grpc import EventLogBase
from ate.rpc import Call
from ate.store import Key, Row


class EventLog(EventLogBase):
    """See events.proto."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @checked
    async def ListActorEvents(self, request: pb.ListActorEventsRequest, call: Call) -> pb.ListActorEventsResponse:
        problems = Problems()
        problems.short("atespace", request.atespace)
        problems.short("actor_name", request.actor_name)
        ref = Ref(request.atespace, request.actor_name)

        async def read(after: Key | None, limit: int) -> list[Row[pb.ActorEvent]]:
            actor = await steps.load(self._ctx, ref)
            row = await self._ctx.store.get(ACTOR_EVENTS, actor.key)
            if row is None or row.value.actor_uid != actor.uid:
                return []
            return [
                Row(Key("", str(event.sequence)), actor.uid, event.sequence, event)
                for event in history.events_of(row.value, actor.key)
                if after is None or event.sequence > int(after.name)
            ][:limit]

        events, token = await paging.page(
            problems, self._ctx.store.page_key, f"events:{ref}", request.page_size, request.page_token, read
        )
        return pb.ListActorEventsResponse(events=events, next_page_token=token)
