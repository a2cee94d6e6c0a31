"""The table of who may call what, an RPC a row. The gate enforces exactly this; an RPC without a row does not start.

A person needs a role, in one atespace or in all (global); a machine is let in by name. `where` is the field of the
request that names the atespace, dotted; a field that is empty there asks for all atespaces.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class Role(enum.IntEnum):
    """What a person may do; each includes those before it."""

    NONE = 0
    VIEWER = 1
    """Sees everything, logs included."""
    EDITOR = 2
    """Makes, changes, runs and deletes what is in an atespace."""
    OWNER = 3
    """Decides who may do what, and what may leave an actor."""


class Machine(enum.StrEnum):
    """Roles of this platform as callers, by the account in their certificates."""

    ATELET = "atelet"
    CONTROLLER = "controller"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Rule:
    """`people` None: no person may call it."""

    people: Role | None
    machines: frozenset[Machine] = frozenset()
    where: str = ""
    """Empty: the role must be global."""


def _row(people: Role | None, *machines: Machine, where: str = "") -> Rule:
    return Rule(people, frozenset(machines), where)


_V, _E, _O = Role.VIEWER, Role.EDITOR, Role.OWNER
_A, _C, _R = Machine.ATELET, Machine.CONTROLLER, Machine.ROUTER

TABLE: Final = {
    # Control: atespaces
    "/ateapi.Control/CreateAtespace": _row(_O),
    "/ateapi.Control/GetAtespace": _row(_V, where="atespace.name"),
    "/ateapi.Control/DeleteAtespace": _row(_O),
    "/ateapi.Control/ListAtespaces": _row(_V),
    # templates
    "/ateapi.Control/CreateActorTemplate": _row(_E, where="actor_template.metadata.atespace"),
    "/ateapi.Control/GetActorTemplate": _row(_V, where="actor_template.atespace"),
    "/ateapi.Control/DeleteActorTemplate": _row(_E, where="actor_template.atespace"),
    "/ateapi.Control/ListActorTemplates": _row(_V, where="atespace"),
    # actors
    "/ateapi.Control/CreateActor": _row(_E, where="actor.metadata.atespace"),
    "/ateapi.Control/GetActor": _row(_V, where="actor.atespace"),
    "/ateapi.Control/UpdateActor": _row(_E, where="actor.metadata.atespace"),
    "/ateapi.Control/DeleteActor": _row(_E, where="actor.atespace"),
    "/ateapi.Control/ListActors": _row(_V, where="atespace"),
    "/ateapi.Control/WatchActors": _row(_V, where="atespace"),
    "/ateapi.Control/ResumeActor": _row(_E, _R, where="actor.atespace"),
    "/ateapi.Control/SuspendActor": _row(_E, _C, where="actor.atespace"),
    "/ateapi.Control/PauseActor": _row(_E, where="actor.atespace"),
    "/ateapi.Control/RevertActor": _row(_E, where="actor.atespace"),
    # egress
    "/ateapi.Control/CreateActorEgressPolicy": _row(_O, where="actor.atespace"),
    "/ateapi.Control/GetActorEgressPolicy": _row(_V, where="actor.atespace"),
    "/ateapi.Control/UpdateActorEgressPolicy": _row(_O, where="actor.atespace"),
    "/ateapi.Control/DeleteActorEgressPolicy": _row(_O, where="actor.atespace"),
    # credentials of actors
    "/ateapi.Control/MintActorJWT": _row(None, _A),
    "/ateapi.Control/MintActorCertificate": _row(None, _A),
    # tags
    "/ateapi.Control/CreateTag": _row(_E, where="tag.metadata.atespace"),
    "/ateapi.Control/GetTag": _row(_V, where="tag.atespace"),
    "/ateapi.Control/UpdateTag": _row(_E, where="tag.metadata.atespace"),
    "/ateapi.Control/DeleteTag": _row(_E, where="tag.atespace"),
    "/ateapi.Control/ListTags": _row(_V, where="atespace"),
    # workers
    "/ateapi.Control/CreateWorker": _row(_O, _C),
    "/ateapi.Control/GetWorker": _row(_V, _C),
    "/ateapi.Control/UpdateWorker": _row(_O, _C),
    "/ateapi.Control/DeleteWorker": _row(_O, _C),
    "/ateapi.Control/DrainWorker": _row(_O, _C),
    "/ateapi.Control/ListWorkers": _row(_V, _C),
    "/ateapi.Control/WatchWorkers": _row(_V, _R),
    "/ateapi.Control/ListWorkerActorAssignments": _row(_V, _C),
    # access policies
    "/ateapi.Control/CreateGlobalAccessPolicy": _row(_O),
    "/ateapi.Control/GetGlobalAccessPolicy": _row(_V),
    "/ateapi.Control/UpdateGlobalAccessPolicy": _row(_O),
    "/ateapi.Control/CreateAtespaceAccessPolicy": _row(_O, where="atespace.name"),
    "/ateapi.Control/GetAtespaceAccessPolicy": _row(_V, where="atespace.name"),
    "/ateapi.Control/UpdateAtespaceAccessPolicy": _row(_O, where="atespace.name"),
    "/ateapi.Control/DeleteAtespaceAccessPolicy": _row(_O, where="atespace.name"),
    # Provider
    "/ateapi.Provider/CreateWorkerPool": _row(_O),
    "/ateapi.Provider/GetWorkerPool": _row(_V),
    "/ateapi.Provider/UpdateWorkerPool": _row(_O, _C),
    "/ateapi.Provider/DeleteWorkerPool": _row(_O),
    "/ateapi.Provider/ListWorkerPools": _row(_V, _C),
    "/ateapi.Provider/CreateSandboxConfig": _row(_O),
    "/ateapi.Provider/GetSandboxConfig": _row(_V),
    "/ateapi.Provider/UpdateSandboxConfig": _row(_O),
    "/ateapi.Provider/DeleteSandboxConfig": _row(_O),
    "/ateapi.Provider/ListSandboxConfigs": _row(_V),
    # what actors printed and what happened to them
    "/ate.node.v1.ActorLogs/ReadActorLogs": _row(_V, where="atespace"),
    "/ate.events.v1.EventLog/ListActorEvents": _row(_V, where="atespace"),
    # node agents
    "/ateapi.WorkerService/SetWorkerCapacity": _row(None, _A),
    "/ateapi.WorkerService/MintAteomActorCertificate": _row(None, _A),
    "/ateapi.WorkerService/RequestActorSuspend": _row(None, _A),
    "/ateapi.ActorIdentity/MintJWT": _row(None, _A),
    "/ateapi.ActorIdentity/MintCert": _row(None, _A),
    "/ate.node.v1.ActorSvids/MintJwtSvid": _row(None, _A),
    "/ate.node.v1.ActorTrust/GetActorTrust": _row(Role.NONE, _A, _R, _C),
    "/ate.node.v1.NodeRegistry/RegisterNode": _row(None, _A),
    "/ate.node.v1.ActorCrashes/ReportActorCrash": _row(None, _A),
    # served where it was asked for
    "/ateapi.Debug/DebugClear": _row(_O),
}

QUIET: Final = ("Get", "List", "Watch", "Read", "Register", "Report", "SetWorkerCapacity")
"""Beginnings of the names of RPCs that change nothing people did: they are in the audit log only when denied."""

OPEN: Final = ("/grpc.health.", "/grpc.reflection.")
"""Services that every caller with one of our certificates may use: they tell nothing of anybody's resources."""
