"""ActorTemplates: created once, never changed, deleted together with their golden tag and actor."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.kinds import ACTORS, ATESPACES, CONFIGS, TAGS, TEMPLATES, TRANSITION, awake_of, key_of
from ate.api.validation import resources as rules
from ate.api.validation import template as template_rules
from ate.api.validation.problems import Problems
from ate.api.workflows import revert, steps
from ate.api.workflows import tags as tag_workflows
from ate.errors import FailedPrecondition, NotFound
from ate.names import GOLDEN_ATESPACE, Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row, Tx

_MOST_IN_TRANSITION = 10_000
"""Far more than there are workers to be in transition on."""


async def create(ctx: Context, request: pb.CreateActorTemplateRequest) -> pb.ActorTemplate:
    template = pb.ActorTemplate()
    template.CopyFrom(request.actor_template)
    template.ClearField("status")
    template_rules.apply_defaults(template)
    problems = Problems()
    template_rules.check(problems, "actor_template", template)
    problems.raise_if_any()
    metadata = template.metadata
    template.metadata.CopyFrom(pb.ResourceMetadata(atespace=metadata.atespace, name=metadata.name))

    def insert(tx: Tx) -> Row[pb.ActorTemplate]:
        if tx.get(ATESPACES, Key("", template.metadata.atespace)) is None:
            raise FailedPrecondition(f"atespace {template.metadata.atespace} not found: create it first")
        name = template.sandbox_config.config_name
        config = tx.get(CONFIGS, Key("", name))
        if config is None:
            raise FailedPrecondition(
                f"actor_template.sandbox_config.config_name: there is no SandboxConfig {name!r}: apply it first"
            )
        if config.value.spec.sandbox_class != template.sandbox_config.sandbox_class:
            wanted = pb.SandboxClass.Name(template.sandbox_config.sandbox_class)
            raise FailedPrecondition(f"actor_template.sandbox_config: SandboxConfig {name!r} is not of class {wanted}")
        return tx.insert(TEMPLATES, Key(template.metadata.atespace, template.metadata.name), template)

    return (await ctx.store.transact(insert)).value


async def get(ctx: Context, request: pb.GetActorTemplateRequest) -> pb.ActorTemplate:
    problems = Problems()
    rules.ref(problems, "actor_template", request.HasField("actor_template"), request.actor_template, scoped=True)
    problems.raise_if_any()
    return (await _load(ctx, Ref(request.actor_template.atespace, request.actor_template.name))).value


async def _load(ctx: Context, ref: Ref) -> Row[pb.ActorTemplate]:
    row = await ctx.store.get(TEMPLATES, Key(ref.atespace, ref.name))
    if row is None:
        raise NotFound(f"actor template {ref} not found")
    return row


async def delete(ctx: Context, request: pb.DeleteActorTemplateRequest) -> pb.ActorTemplate:
    """Golden tag and unfinished golden actor go with it. Sleeping actors stay, and can be given another template.

    FailedPrecondition while one of its actors is awake: without its template it could not be saved.
    """
    problems = Problems()
    rules.ref(problems, "actor_template", request.HasField("actor_template"), request.actor_template, scoped=True)
    rules.delete_options(problems, "options", request.options)
    problems.raise_if_any()
    ref = Ref(request.actor_template.atespace, request.actor_template.name)
    row = await _load(ctx, ref)
    steps.check_guards(f"actor template {ref}", row, request.options)

    def none_awake(tx: Tx) -> None:
        rows = tx.scan_owned(ACTORS, awake_of(row.value.metadata), limit=2)
        rows += tx.scan_owned(ACTORS, TRANSITION, limit=_MOST_IN_TRANSITION)
        for actor in rows:
            mine = key_of(actor.value.actor_template) == row.key and actor.key.scope != GOLDEN_ATESPACE
            if mine and actor.value.status.state != pb.ACTOR_STATE_DELETING:
                raise FailedPrecondition(
                    f"actor template {ref} has actors that are awake ({actor.key} is one), which could not be saved "
                    "without it: suspend or delete them first"
                )

    def remove(tx: Tx) -> Row[pb.ActorTemplate]:
        none_awake(tx)
        return tx.delete(TEMPLATES, row.key, uid=row.uid)

    async def work(lease: object) -> pb.ActorTemplate:
        await ctx.store.transact(none_awake)
        golden = Ref(GOLDEN_ATESPACE, row.uid)
        key = Key(golden.atespace, golden.name)
        if await ctx.store.get(ACTORS, key) is not None:
            await revert.delete(ctx, golden, any_state=True, options=pb.DeleteOptions())
        if await ctx.store.get(TAGS, key) is not None:
            await tag_workflows.delete(ctx, golden, pb.DeleteOptions())
        return (await ctx.store.transact(remove)).value

    return await ctx.operations.run(f"lease:actortemplate:{ref}", "delete", work)


async def list_(ctx: Context, request: pb.ListActorTemplatesRequest) -> pb.ListActorTemplatesResponse:
    problems = Problems()
    problems.short("atespace", request.atespace, required=False)
    items, token = await paging.page(
        problems,
        ctx.store.page_key,
        f"templates:{request.atespace}",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(TEMPLATES, scope=request.atespace or None, after=after, limit=limit),
    )
    return pb.ListActorTemplatesResponse(actor_templates=items, next_page_token=token)
