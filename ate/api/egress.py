"""Egress policies as resources: at most one an actor, kept under the actor's name and gone with it."""

from __future__ import annotations

from ate.api.actors import ref_of
from ate.api.context import Context
from ate.api.kinds import ACTORS, EGRESS, key_of
from ate.api.validation import egress as rules
from ate.api.validation import resources
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.errors import AlreadyExists, FailedPrecondition, NotFound
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.store import Row, Tx


def _checked(request: pb.CreateActorEgressPolicyRequest | pb.UpdateActorEgressPolicyRequest, *, guarded: bool) -> Ref:
    """The actor of a request whose policy is in order; all that is wrong with the request in one error."""
    problems = Problems()
    resources.ref(problems, "actor", request.HasField("actor"), request.actor, scoped=True)
    if request.HasField("egress_policy"):
        rules.policy(problems, "egress_policy", request.egress_policy, request.actor.atespace)
        if guarded:
            resources.guards(problems, "egress_policy.metadata", request.egress_policy.metadata)
    else:
        problems.add("egress_policy", "is required")
    problems.raise_if_any()
    return Ref(request.actor.atespace, request.actor.name)


async def create(ctx: Context, request: pb.CreateActorEgressPolicyRequest) -> pb.EgressPolicy:
    ref = _checked(request, guarded=False)

    def insert(tx: Tx) -> Row[pb.EgressPolicy]:
        actor = tx.get(ACTORS, key_of(ref))
        if actor is None:
            raise NotFound(f"actor {ref} not found")
        if actor.value.status.state == pb.ACTOR_STATE_DELETING:
            raise FailedPrecondition(f"actor {ref} is being deleted")
        policy = pb.EgressPolicy(
            metadata=pb.ResourceMetadata(atespace=ref.atespace, name=rules.POLICY_NAME),
            rules=request.egress_policy.rules,
        )
        try:
            return tx.insert(EGRESS, key_of(ref), policy)
        except AlreadyExists:
            raise AlreadyExists(f"actor {ref} has an egress policy already: update it")

    return (await ctx.store.transact(insert)).value


async def get(ctx: Context, request: pb.GetActorEgressPolicyRequest) -> pb.EgressPolicy:
    ref = ref_of(request.HasField("actor"), request.actor)
    await steps.load(ctx, ref)
    row = await ctx.store.get(EGRESS, key_of(ref))
    if row is None:
        raise NotFound(f"actor {ref} has no egress policy: everything it asks for outside is denied")
    return row.value


async def update(ctx: Context, request: pb.UpdateActorEgressPolicyRequest) -> pb.EgressPolicy:
    ref = _checked(request, guarded=True)
    expected = request.egress_policy.metadata

    def replace(tx: Tx) -> Row[pb.EgressPolicy]:
        row = _load(tx, ref)
        steps.check_guards(
            f"egress policy of actor {ref}", row, pb.DeleteOptions(uid=expected.uid, version=expected.version)
        )
        del row.value.rules[:]
        row.value.rules.extend(request.egress_policy.rules)
        return tx.update(EGRESS, row.key, row.value, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


async def delete(ctx: Context, request: pb.DeleteActorEgressPolicyRequest) -> pb.EgressPolicy:
    ref = ref_of(request.HasField("actor"), request.actor, request.options)

    def remove(tx: Tx) -> Row[pb.EgressPolicy]:
        row = _load(tx, ref)
        steps.check_guards(f"egress policy of actor {ref}", row, request.options)
        return tx.delete(EGRESS, row.key, uid=row.uid, version=row.version)

    return (await ctx.store.transact(remove)).value


def _load(tx: Tx, ref: Ref) -> Row[pb.EgressPolicy]:
    row = tx.get(EGRESS, key_of(ref))
    if row is None:
        raise NotFound(f"actor {ref} {'has no egress policy' if tx.get(ACTORS, key_of(ref)) else 'not found'}")
    return row
