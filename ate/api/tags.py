"""Tags as resources: get, update of the scope, list. Making and collecting the copies is in workflows/tags.py."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.kinds import TAGS, key_of
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.api.workflows import tags as workflows
from ate.errors import FailedPrecondition, InvalidArgument, NotFound
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Row, Tx


def _ref(present: bool, value: pb.ObjectRef, *options: pb.DeleteOptions) -> Ref:
    problems = Problems()
    rules.ref(problems, "tag", present, value, scoped=True)
    for option in options:
        rules.delete_options(problems, "options", option)
    problems.raise_if_any()
    return Ref(value.atespace, value.name)


async def create(ctx: Context, request: pb.CreateTagRequest) -> pb.Tag:
    problems = Problems()
    rules.tag(problems, "tag", request.tag)
    problems.raise_if_any()
    given = request.tag
    tag = pb.Tag(
        metadata=pb.ResourceMetadata(atespace=given.metadata.atespace, name=given.metadata.name),
        scope=given.scope,
        source_actor=given.source_actor,
    )
    return await workflows.create(ctx, tag)


async def get(ctx: Context, request: pb.GetTagRequest) -> pb.Tag:
    ref = _ref(request.HasField("tag"), request.tag)
    row = await ctx.store.get(TAGS, key_of(ref))
    if row is None:
        raise NotFound(f"tag {ref} not found")
    return row.value


async def update(ctx: Context, request: pb.UpdateTagRequest) -> pb.Tag:
    problems = Problems()
    rules.tag(problems, "tag", request.tag)
    rules.guards(problems, "tag.metadata", request.tag.metadata)
    problems.raise_if_any()
    given = request.tag

    def replace(tx: Tx) -> Row[pb.Tag]:
        row = tx.get(TAGS, key_of(given.metadata))
        if row is None:
            raise NotFound(f"tag {given.metadata.atespace}/{given.metadata.name} not found")
        expected = pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        steps.check_guards(f"tag {row.key}", row, expected)
        if row.value.source_actor != given.source_actor:
            raise InvalidArgument("tag.source_actor: is fixed at creation")
        if row.value.status.state != pb.TAG_STATE_READY:
            raise FailedPrecondition(f"tag {row.key} is not ready: its scope can change once it is")
        row.value.scope = given.scope
        return tx.update(TAGS, row.key, row.value, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


async def delete(ctx: Context, request: pb.DeleteTagRequest) -> pb.Tag:
    ref = _ref(request.HasField("tag"), request.tag, request.options)
    return await workflows.delete(ctx, ref, request.options)


async def list_(ctx: Context, request: pb.ListTagsRequest) -> pb.ListTagsResponse:
    problems = Problems()
    problems.short("atespace", request.atespace, required=False)
    items, token = await paging.page(
        problems,
        ctx.store.page_key,
        f"tags:{request.atespace}",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(TAGS, scope=request.atespace or None, after=after, limit=limit),
    )
    return pb.ListTagsResponse(tags=items, next_page_token=token)
