"""The command line: `ate VERB …`. Parses, runs one verb, and turns an error into one clear line and an exit status.

Nothing heavy is imported before the verb is known, so that `ate --version` is instant.
"""

from __future__ import annotations

import argparse
import sys

from ate import __version__

FORMATS = ("table", "wide", "json", "yaml", "name")


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 done, 1 the operation failed, 2 the words were wrong."""
    argv = sys.argv[1:] if argv is None else argv
    if argv in (["--version"], ["version"]):
        print(f"ate {__version__}")
        return 0
    parser = _parser()
    from ate.config import resolve
    from ate.errors import AteError, InvalidArgument

    try:
        for subparser in _with_subparsers(parser):
            resolve(subparser, argv)
        options = parser.parse_args(argv)
        return _dispatch(options)
    except InvalidArgument as error:
        print(f"ate: {error.message}", file=sys.stderr)
        return 2
    except AteError as error:
        print(f"ate: {error.message} ({error.code.name})", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        found = _single(group)
        if isinstance(found, AteError):
            print(f"ate: {found.message} ({found.code.name})", file=sys.stderr)
            return 1
        if isinstance(found, KeyboardInterrupt):
            return 130
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The one error in a group of one, however deep."""
    inner: BaseException = group
    while isinstance(inner, BaseExceptionGroup):
        if len(inner.exceptions) != 1:
            return None
        inner = inner.exceptions[0]
    return inner


def _with_subparsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """The parser and all below it."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found += _with_subparsers(below)
    return found


def _dispatch(options: argparse.Namespace) -> int:
    if options.verb == "serve":
        from ate.cli import serve

        return serve.run(options)
    if options.verb == "dev":
        from ate.cli import dev

        return dev.run(options)
    if options.verb == "audit":
        from ate.cli import audit

        return audit.run(options)
    if options.verb == "admin":
        from ate.cli import admin

        return admin.run(options)
    if options.verb == "image":
        from ate.cli import image

        return image.run(options)
    from ate.cli import verbs

    if options.trace:
        from ate.telemetry import trace

        context = trace.new(sampled=True)
        trace.enter(context)
        print(f"trace {context.trace_id}", file=sys.stderr)
    if options.verb == "get" and options.type in ("event", "events"):
        from ate.cli import events

        return verbs.run(events.get, options)
    if options.verb in ("get", "delete") and options.type in ("accesspolicy", *_NAMES["accesspolicy"]):
        from ate.cli import access

        return verbs.run(getattr(access, options.verb), options)
    if options.verb in ("resume", "suspend", "pause", "revert"):
        return verbs.run(verbs.lifecycle, options)
    return verbs.run(getattr(verbs, options.verb), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ate", description="Runs very many stateful, sandboxed, mostly idle programs on few warm workers."
    )
    parser.add_argument("--version", action="version", version=f"ate {__version__}")
    commands = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    from ate.cli import dev, serve

    dev.add_arguments(commands.add_parser("dev", help="the whole platform on this machine"))
    serve.add_arguments(commands.add_parser("serve", help="run one or more roles"))

    get = _client(commands, "get", "show resources")
    _type(get, *_NAMES)
    get.add_argument("names", nargs="*")
    get.add_argument("-A", "--all-atespaces", action="store_true")
    get.add_argument("-w", "--watch", action="store_true", help="go on with a line for every change")
    get.add_argument("-l", "--selector", default="", help="workers: labels, key=value[,key=value]")
    get.add_argument("--sandbox-class", default="", help="workers: class")

    create = _client(commands, "create", "make an atespace, actor, actor-template or tag")
    _type(create, "atespace", "actor", "actor-template", "tag", rest="ate apply -f FILE")
    create.add_argument("names", nargs="*", metavar="name")
    create.add_argument("-t", "--template", default="", help="actor: ATESPACE/NAME of its template")
    create.add_argument("--tag", default="", help="actor: ATESPACE/NAME of the tag to start from")
    create.add_argument(
        "--wake-at", default="", help="actor: when to wake it, as a time (…T08:00:00Z) or +90s, +5m, +2h"
    )
    create.add_argument("--actor", default="", help="tag: the actor to copy")
    create.add_argument("--scope", default="atespace", choices=("atespace", "published"), help="tag: who may use it")
    create.add_argument("-f", "--filename", action="append", default=[], help="actor-template: YAML file, - for stdin")

    update = _client(commands, "update", "change a tag's scope, or an actor's template or wake-up time")
    _type(update, "actor", "tag", rest="ate apply -f FILE")
    update.add_argument("names", nargs="*", metavar="name")
    update.add_argument("--scope", default="", choices=("atespace", "published"), help="tag: who may use it")
    update.add_argument("-t", "--template", default="", help="actor: ATESPACE/NAME of its new template")
    update.add_argument("--wake-at", default="", help="actor: a time (2026-01-31T08:00:00Z), +90s, +5m, +2h, or never")

    delete = _client(commands, "delete", "remove resources")
    _type(delete, *(name for name in _NAMES if name != "event"))
    delete.add_argument("names", nargs="*", metavar="name")
    delete.add_argument("--any-state", action="store_true", help="actor: also one that runs")
    delete.add_argument("--ignore-not-found", action="store_true")

    for verb, what in (
        ("resume", "wake actors"),
        ("suspend", "put actors to sleep, their state in object storage"),
        ("pause", "put actors to sleep, their state on the node"),
        ("revert", "take actors back to their last good snapshot"),
    ):
        lifecycle = _client(commands, verb, what)
        _type(lifecycle, "actor")
        lifecycle.add_argument("names", nargs="+", metavar="name")
        if verb == "resume":
            lifecycle.add_argument("--boot", action="store_true", help="start from the image, not the golden snapshot")

    logs = _client(commands, "logs", "show what an actor printed")
    _type(logs, "actor")
    logs.add_argument("name")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-c", "--container", default="")

    apply = _client(commands, "apply", "make or change what YAML files describe")
    apply.add_argument("-f", "--filename", action="append", default=[], required=True, help="file, or - for stdin")

    from ate.cli import admin, audit

    audit.add_arguments(commands.add_parser("audit", help="who asked for what: read the log, verify its chain"))
    admin.add_arguments(commands.add_parser("admin", help="pools of signing keys, and their rotation"))

    image = commands.add_parser("image", help="images of this machine")
    image.add_argument("action", choices=("import",))
    image.add_argument("path", help="OCI layout folder, or tar archive of one")
    image.add_argument("--name", default="", help="name to refer to it by")
    image.add_argument("--root", default="/var/lib/ate")
    return parser


_NAMES = {
    "actor": ("actors",),
    "atespace": ("atespaces",),
    "actor-template": ("actor-templates", "actortemplate", "actortemplates"),
    "tag": ("tags",),
    "worker": ("workers",),
    "workerpool": ("workerpools",),
    "sandboxconfig": ("sandboxconfigs",),
    "accesspolicy": ("accesspolicies", "access-policy", "access-policies"),
    "event": ("events",),
}
"""Types of resources and their other names; events are what happened to an actor."""


def _type(parser: argparse.ArgumentParser, *names: str, rest: str = "") -> None:
    """The argument that says of what type the resources are; `rest` is the command for the others."""
    listed = f"{', '.join(names)} (plurals do as well)" + (f"; the rest: `{rest}`" if rest else "")

    def known(given: str) -> str:
        if any(given == name or given in _NAMES[name] for name in names):
            return given
        raise argparse.ArgumentTypeError(f"{given!r} is not one of {listed}")

    parser.add_argument("type", type=known, metavar="TYPE", help=listed)


def _client(commands: argparse._SubParsersAction, name: str, what: str) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what)
    parser.add_argument("--root", default="/var/lib/ate", help="folder of the install (default %(default)s)")
    parser.add_argument("--endpoint", default="", help="host:port of the api role (default: from the root)")
    parser.add_argument("--trust-domain", default="cluster.local")
    parser.add_argument(
        "--token-file", default="", help="bearer token to call with, instead of a certificate; - for stdin"
    )
    parser.add_argument(
        "--ca-file", default="", help="with a token: PEM file of who vouches for the api (default: system)"
    )
    parser.add_argument("--server-name", default="", help="with a token: the api's DNS name (default: of the endpoint)")
    parser.add_argument("-a", "--atespace", default="")
    parser.add_argument("-o", "--output", default="table", choices=FORMATS)
    parser.add_argument("--trace", action="store_true", help="have the call traced, and print its trace id")
    return parser
