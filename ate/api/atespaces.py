"""Atespaces: the tenant boundary. Global resources; one can only go when nothing is left in it."""

from __future__ import annotations

from typing import Any

from ate.api import paging
from ate.api.access import policies
from ate.api.context import Context
from ate.api.kinds import ACTORS, ATESPACES, TAGS, TEMPLATES
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.errors import AlreadyExists, FailedPrecondition, NotFound
from ate.names import GOLDEN_ATESPACE
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Kind, Row, Tx


async def create(ctx: Context, request: pb.CreateAtespaceRequest) -> pb.Atespace:
    problems = Problems()
    rules.metadata(problems, "atespace.metadata", request.atespace.metadata, scoped=False)
    problems.raise_if_any()
    name = request.atespace.metadata.name
    value = pb.Atespace(metadata=pb.ResourceMetadata(name=name))
    return (await ctx.store.transact(lambda tx: tx.insert(ATESPACES, Key("", name), value))).value


async def ensure_golden(ctx: Context) -> None:
    """The reserved atespace of golden actors and tags, made at start."""
    value = pb.Atespace(metadata=pb.ResourceMetadata(name=GOLDEN_ATESPACE))
    try:
        await ctx.store.transact(lambda tx: tx.insert(ATESPACES, Key("", GOLDEN_ATESPACE), value))
    except AlreadyExists:
        pass


async def get(ctx: Context, request: pb.GetAtespaceRequest) -> pb.Atespace:
    problems = Problems()
    rules.ref(problems, "atespace", request.HasField("atespace"), request.atespace, scoped=False)
    problems.raise_if_any()
    row = await ctx.store.get(ATESPACES, Key("", request.atespace.name))
    if row is None:
        raise NotFound(f"atespace {request.atespace.name} not found")
    return row.value


async def delete(ctx: Context, request: pb.DeleteAtespaceRequest) -> pb.Atespace:
    problems = Problems()
    rules.ref(problems, "atespace", request.HasField("atespace"), request.atespace, scoped=False)
    rules.delete_options(problems, "options", request.options)
    problems.check("atespace.name", request.atespace.name != GOLDEN_ATESPACE, f"{GOLDEN_ATESPACE} is reserved")
    problems.raise_if_any()
    name = request.atespace.name

    def remove(tx: Tx) -> Row[pb.Atespace]:
        row = tx.get(ATESPACES, Key("", name))
        if row is None:
            raise NotFound(f"atespace {name} not found")
        steps.check_guards(f"atespace {name}", row, request.options)
        kinds: tuple[Kind[Any], ...] = (ACTORS, TEMPLATES, TAGS)
        for kind in kinds:
            if tx.scan(kind, scope=name, limit=1):
                raise FailedPrecondition(f"Atespace {name} is not empty: it still has an {kind.name}")
        policies.drop(tx, name)
        return tx.delete(ATESPACES, row.key)

    return (await ctx.store.transact(remove)).value


async def list_(ctx: Context, request: pb.ListAtespacesRequest) -> pb.ListAtespacesResponse:
    items, token = await paging.page(
        Problems(),
        ctx.store.page_key,
        "atespaces",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(ATESPACES, after=after, limit=limit),
    )
    return pb.ListAtespacesResponse(atespaces=items, next_page_token=token)
