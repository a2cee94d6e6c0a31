"""Promises of the command line on a running platform: every verb through the real entry, errors that help, pools that
grow and shrink under running actors, logs, tags; and of its processes, together and alone, stopped and killed.
"""

from __future__ import annotations

import getpass
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import pytest
import trio
import yaml

from ate import install as installs
from ate.cli.main import main
from ate.node.images import build_pause_image, import_path
from tests.system import servers
from tests.system.install import REPOSITORY, counter_layout, joined, launch, running
from tests.system.workload import PROGRAM, PYTHON

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
SECONDS = 60


class Cli:
    """`ate …` against the install at `root`, each in a process of its own.

    Most of them are forked from this process, where everything is imported already; `entry` is `python -m ate` itself.
    """

    def __init__(self, root: Path, endpoint: str = "", router: str = "") -> None:
        self.root, self.endpoint = root, endpoint
        self.router = router or installs.endpoints(root)["router"]

    def argv(self, *words: str) -> list[str]:
        endpoint = [f"--endpoint={self.endpoint}"] if self.endpoint else []
        return [sys.executable, "-m", "ate", *words, f"--root={self.root}", *endpoint]

    def entry(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*words), input=given, capture_output=True, text=True, timeout=180, env=ENVIRONMENT, cwd="/"
        )

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        argv = self.argv(*words)[3:]
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            stdin.write(given.encode())
            stdin.seek(0)
            child = os.fork()
            if child == 0:
                _be_ate(argv, stdin.fileno(), stdout.fileno(), stderr.fileno())
            _, status = os.waitpid(child, 0)
            stdout.seek(0)
            stderr.seek(0)
            output, words_of_error = stdout.read().decode(), stderr.read().decode()
        return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(status), output, words_of_error)

    def __call__(self, *words: str, given: str = "") -> str:
        done = self.run(*words, given=given)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout.strip()

    def fails(self, status: int, *words: str, given: str = "") -> str:
        """The one line of an error: on stderr only, with that exit status, and no traceback."""
        done = self.run(*words, given=given)
        assert done.returncode == status, (words, done)
        assert not done.stdout and "Traceback" not in done.stderr
        return done.stderr.strip()

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "-o", "json"))

    def state(self, actor: str) -> str:
        return str(self.json("get", "actor", actor)["status"]["state"]).removeprefix("ACTOR_STATE_")

    def request(self, actor: str, path: str = "/") -> Any:
        """One request to an actor through the router."""
        host, _, port = self.router.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=90)
        try:
            connection.request("GET", path, headers={"ate-target-actor": actor})
            response = connection.getresponse()
            body = response.read().decode()
            assert response.status == 200, (response.status, body)
            return json.loads(body)
        finally:
            connection.close()

    def worker_of(self, actor: str) -> str:
        found = self.json("get", "actor", actor)
        return str(found["status"].get("workerAssignment", {}).get("worker", {}).get("name", ""))

    def workers(self, pool: str) -> list[dict[str, Any]]:
        found = self.run("get", "workers", "-o", "json")
        items: list[dict[str, Any]] = json.loads(found.stdout)["items"]
        return [worker for worker in items if worker["workerPool"] == pool]


def _be_ate(argv: list[str], *descriptors: int) -> NoReturn:
    """Makes this forked process the command; never returns."""
    status = 1
    try:
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w"), open(2, "w")  # noqa: SIM115
        os.chdir("/")
        status = main(argv)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def until(check: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def pool(name: str, replicas: int, **labels: str) -> str:
    metadata = {"name": name, "labels": labels}
    document = {"apiVersion": "ate.dev/v1alpha1", "kind": "WorkerPool", "metadata": metadata}
    return yaml.safe_dump({**document, "spec": {"replicas": replicas, "sandboxClass": "gvisor"}})


def template(name: str, image: str, location: str, *more: dict[str, Any]) -> str:
    door = {
        "name": "door",
        "image": image,
        "command": [PYTHON, "-S", "-c", PROGRAM],
        "readyz": {"httpGet": {"path": "/readyz", "port": 80}},
    }
    document = {
        "apiVersion": "ate.dev/v1alpha1",
        "kind": "ActorTemplate",
        "metadata": {"atespace": "demo", "name": name},
        "containers": [door, *more],
        "sandboxConfig": {"sandboxClass": "SANDBOX_CLASS_GVISOR", "configName": "gvisor-default"},
        "snapshotsConfig": {"storageLocation": location},
    }
    return yaml.safe_dump(document)


ATESPACE = "kind: Atespace\napiVersion: ate.dev/v1alpha1\nmetadata: {name: %s}\n"


def set_up(cli: Cli, *templates: str) -> None:
    """Atespace `demo`, a pool of two, and templates whose golden snapshots are ready."""
    cli("apply", "-f", "-", given="---\n".join([ATESPACE % "demo", pool("main", 2, workload="any"), *templates]))
    until(lambda: len(cli.workers("main")) == 2)
    names = [yaml.safe_load(text)["metadata"]["name"] for text in templates]
    until(lambda: all("goldenTag" in golden_of(cli, name) for name in names), 120)


def golden_of(cli: Cli, name: str) -> dict[str, Any]:
    status = cli.json("get", "actor-template", f"demo/{name}").get("status", {}).get("goldenSnapshotStatus", {})
    assert not status.get("errorMessage"), status
    return dict(status)


def image_of(root: Path) -> str:
    (image,) = trio.run(import_path, root / "images", counter_layout())
    return image


def objects(root: Path) -> str:
    return f"file://{root}/objects"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    root = tmp_path_factory.mktemp("v") / "root"
    with running(root):
        cli = Cli(root)
        image = cli("image", "import", str(counter_layout()))
        side = yaml.safe_load(template("x", image, ""))["containers"][0]
        side |= {"name": "side", "env": [{"name": "PORT", "value": "81"}]}
        side["readyz"]["httpGet"]["port"] = 81
        set_up(cli, template("door", image, objects(root)), template("pair", image, objects(root), side))
        yield cli


# -- showing and changing -------------------------------------------------------------------------------------------


def test_what_get_prints_as_yaml_applies_again_and_changes_nothing(cli: Cli) -> None:
    cli("create", "actor", "kept", "-a", "demo", "-t", "door")
    kinds = (("atespaces",), ("workerpools",), ("sandboxconfigs",), ("actor-templates", "-A"), ("actors", "-A"))
    everything = "---\n".join(cli("get", *words, "-o", "yaml") + "\n" for words in kinds)
    before = cli("get", "actor", "kept", "-a", "demo", "-o", "yaml")
    lines = cli("apply", "-f", "-", given=everything).splitlines()
    assert len(lines) >= 7 and all(line.endswith(" unchanged") for line in lines), lines
    assert cli("apply", "-f", "-", given=before).endswith("unchanged"), "one as well as a list"
    assert cli("get", "actor", "kept", "-a", "demo", "-o", "yaml") == before
    cli("delete", "actor", "demo/kept")


def test_the_real_entry_prints_answers_errors_and_statuses(cli: Cli, tmp_path: Path) -> None:
    made = cli.entry("create", "actor", "real", "-a", "demo", "-t", "door")
    assert (made.returncode, made.stdout, made.stderr) == (0, "actor/demo/real created\n", "")
    shown = cli.entry("get", "actor", "real", "-a", "demo", "-o", "name")
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "actor/demo/real\n", "")
    again = cli.entry("create", "actor", "real", "-a", "demo", "-t", "door")
    assert again.returncode == 1 and not again.stdout and "ALREADY_EXISTS" in again.stderr
    assert len(again.stderr.splitlines()) == 1
    wrong = cli.entry("get", "actors")
    assert wrong.returncode == 2 and not wrong.stdout and "-a ATESPACE" in wrong.stderr
    gone = cli.entry("delete", "actor", "real", "-a", "demo")
    assert (gone.returncode, gone.stdout) == (0, "actor/demo/real deleted\n")
    nobody = Cli(tmp_path, router="none").entry("get", "actors", "-A")
    assert nobody.returncode == 1 and f"ate dev --root {tmp_path}" in nobody.stderr


def test_every_form_of_output_shows_the_same(cli: Cli) -> None:
    cli("create", "actor", "shown", "-a", "demo", "-t", "demo/door")
    cli.request("demo/shown")
    header, row = cli("get", "actors", "-a", "demo").splitlines()
    assert header.split()[:4] == ["ATESPACE", "NAME", "TEMPLATE", "STATE"] and "CRASH" not in header
    assert row.split()[:4] == ["demo", "shown", "demo/door", "RUNNING"]
    wide = cli("get", "actors", "-A", "-o", "wide").splitlines()
    assert "SNAPSHOT" in wide[0] and "CRASH" in wide[0] and "shown" in wide[1]
    as_json = cli.json("get", "actor", "shown", "-a", "demo")
    assert as_json == yaml.safe_load(cli("get", "actor", "demo/shown", "-o", "yaml"))
    assert as_json["kind"] == "Actor" and as_json["status"]["state"] == "ACTOR_STATE_RUNNING"
    assert cli("get", "actors", "-A", "-o", "name") == "actor/demo/shown"
    for kind in ("workers", "workerpools", "atespaces", "sandboxconfigs", "tags", "actor-templates"):
        scope = ["-A"] if kind in ("tags", "actor-templates") else []
        for form in ("table", "wide", "name"):
            assert len(cli("get", kind, *scope, "-o", form).splitlines()) >= 1
    assert len(cli("get", "workers", "-l", "workload=any", "-o", "name").splitlines()) == 2
    assert cli.run("get", "workers", "-l", "workload=none").stderr.strip() == "No resources found"
    cli("delete", "actor", "demo/shown", "--any-state")


def test_access_policies_are_applied_shown_and_taken_away(cli: Cli, tmp_path: Path) -> None:
    me = getpass.getuser().lower()
    policy = "kind: AccessPolicy\nmetadata: {atespace: %s}\nbindings:\n- {role: %s, members: ['user:%s', 'user:bob']}\n"
    file = tmp_path / "policy.yaml"
    file.write_text(policy % ("demo", "editor", me))
    assert (
        "no access policy" in cli.run("get", "accesspolicy").stderr
        or "no global" in cli.run("get", "accesspolicy").stderr
    )
    assert cli("apply", "-f", str(file)) == "accesspolicy/demo/default created"
    assert cli("apply", "-f", str(file)) == "accesspolicy/demo/default unchanged"
    header, row = cli("get", "accesspolicy", "-a", "demo").splitlines()
    assert header.split()[:4] == ["ATESPACE", "OWNERS", "EDITORS", "VIEWERS"]
    assert row.split()[:4] == ["demo", "<none>", f"{me},bob", "<none>"]
    file.write_text(policy % ("demo", "viewer", me))
    assert cli("apply", "-f", str(file)) == "accesspolicy/demo/default configured"
    shown = cli("get", "accesspolicy", "-a", "demo", "-o", "yaml")
    assert cli("apply", "-f", "-", given=shown) == "accesspolicy/demo/default unchanged"
    assert "give -a ATESPACE" in cli.fails(2, "get", "accesspolicy", "demo")
    assert "cannot be deleted" in cli.fails(2, "delete", "accesspolicy")
    bad = policy % ("demo", "admin", me)
    assert "'admin' is not one of" in cli.fails(2, "apply", "-f", "-", given=bad)
    assert "at least one name" in cli.fails(2, "delete", "actor", "-a", "demo")
    assert cli("delete", "accesspolicy", "-a", "demo") == "accesspolicy/demo/default deleted"
    assert "not found" in cli.fails(1, "delete", "accesspolicy", "-a", "demo")


def test_an_actor_goes_through_its_life_by_words(cli: Cli) -> None:
    assert cli("create", "actor", "life", "-a", "demo", "-t", "door") == "actor/demo/life created"
    assert "RUNNING" in cli("resume", "actor", "life", "-a", "demo")
    boot = cli.request("demo/life")["boot"]
    assert "SUSPENDED" in cli("suspend", "actor", "life", "-a", "demo")
    assert cli.request("demo/life")["ram"] == 2
    assert "PAUSED" in cli("pause", "actor", "demo/life")
    assert cli.request("demo/life")["ram"] == 3
    assert "SUSPENDED" in cli("revert", "actor", "demo/life"), "the pause was not committed"
    answer = cli.request("demo/life")
    assert answer["ram"] == 2 and answer["boot"] == boot
    refused = cli.fails(1, "delete", "actor", "demo/life")
    assert "RUNNING" in refused and "suspend it first" in refused and "FAILED_PRECONDITION" in refused
    assert cli("delete", "actor", "demo/life", "--any-state") == "actor/demo/life deleted"
    assert "not found" in cli.fails(1, "delete", "actor", "demo/life")
    cli("delete", "actor", "demo/life", "--ignore-not-found")
    cli("create", "actor", "life", "-a", "demo", "-t", "door")
    assert "RUNNING" in cli("resume", "actor", "demo/life", "--boot")
    fresh = cli.request("demo/life")
    assert fresh["ram"] == 1 and fresh["boot"] != boot, "another actor of the same name, started from its image"
    cli("delete", "actor", "demo/life", "--any-state")


def test_wrong_words_and_failed_wishes_get_one_helpful_line(cli: Cli, tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("kind: ActorTemplate\nmetadata: {name: x, atespace: demo}\ncontainers: [{nope: 1}]\n")
    for status, words, expected in (
        (2, ("get", "actors"), "-a ATESPACE"),
        (2, ("get", "actor", "x"), "ATESPACE/x"),
        (2, ("get", "nonsense"), "nonsense"),
        (2, ("frobnicate",), "frobnicate"),
        (2, ("get", "actor", "x", "-a", "NOT_A_NAME"), "atespace"),
        (2, ("create", "actor", "x", "-a", "demo"), "--template"),
        (2, ("create", "worker", "x"), "apply -f"),
        (2, ("update", "actor", "x", "-a", "demo"), "--wake-at"),
        (2, ("update", "actor", "x", "-a", "demo", "--wake-at", "soon"), "'soon'"),
        (2, ("update", "tag", "x", "-a", "demo"), "--scope"),
        (2, ("update", "worker", "x"), "apply -f"),
        (2, ("apply", "-f", "/no/such/file"), "/no/such/file"),
        (2, ("apply", "-f", str(bad)), "bad.yaml, document 1"),
        (2, ("get", "tags", "-a", "demo", "-w"), "-w"),
        (2, ("get", "workers", "-l", "nonsense"), "'nonsense' is not key=value"),
        (2, ("apply", "-f", "-"), "holds no documents"),
        (1, ("get", "actor", "x", "-a", "demo"), "actor demo/x not found"),
        (1, ("create", "actor", "x", "-a", "demo", "-t", "none"), "demo/none"),
        (1, ("create", "actor", "x", "-a", "nowhere", "-t", "demo/door"), "nowhere"),
        (1, ("create", "tag", "t", "-a", "demo", "--actor", "x"), "demo/x not found"),
        (1, ("logs", "actor", "x", "-a", "demo"), "demo/x not found"),
        (1, ("suspend", "actor", "x", "-a", "demo"), "demo/x not found"),
        (1, ("delete", "atespace", "demo"), "demo"),
        (1, ("image", "import", "/no/such/image"), "/no/such/image"),
        (2, ("image", "import", str(bad)), "bad.yaml is no image: expected an OCI layout"),
        (2, ("logs", "tag", "x", "-a", "demo"), "'tag' is not one of actor"),
    ):
        assert expected in cli.fails(status, *words), words
    bad.write_bytes("kind: Atespace".encode("utf-16"))
    assert "not UTF-8" in cli.fails(2, "apply", "-f", str(bad))
    assert (
        json.loads(cli("create", "actor", "made", "-a", "demo", "-t", "door", "-o", "json"))["metadata"]["name"]
        == "made"
    )
    some = cli.run("get", "actors", "made", "absent", "-a", "demo", "-o", "name")
    assert (some.returncode, some.stdout.strip()) == (1, "actor/demo/made") and "demo/absent not found" in some.stderr
    gone = cli.run("delete", "actor", "absent", "made", "-a", "demo")
    assert gone.returncode == 1 and "demo/made deleted" in gone.stdout and "demo/absent not found" in gone.stderr


def test_help_lists_what_the_verb_takes(cli: Cli) -> None:
    for verb, takes, refuses in (
        ("create", ("atespace", "actor-template", "tag"), ("worker", "event")),
        ("update", ("actor", "tag"), ("atespace", "worker")),
        ("delete", ("actor", "workerpool", "sandboxconfig"), ("event",)),
        ("get", ("actor", "event", "workerpool"), ()),
        ("logs", ("actor",), ("tag",)),
    ):
        listed = next(line for line in cli(verb, "--help").replace("\n                        ", " ").splitlines()
                      if line.strip().startswith("TYPE  "))  # fmt: skip
        assert all(name in listed for name in takes) and not any(name in listed for name in refuses), (verb, listed)


def test_the_default_runtime_comes_back_by_itself(cli: Cli, tmp_path: Path) -> None:
    assert "used by actor template demo/" in cli.fails(1, "delete", "sandboxconfig", "gvisor-default")
    with running(tmp_path / "root"):
        fresh = Cli(tmp_path / "root")
        before = fresh.json("get", "sandboxconfig", "gvisor-default")
        fresh("delete", "sandboxconfig", "gvisor-default")
        until(lambda: fresh.run("get", "sandboxconfig", "gvisor-default").returncode == 0)
        assert fresh.json("get", "sandboxconfig", "gvisor-default")["spec"] == before["spec"]


def test_a_watch_shows_every_change_and_ends_quietly(cli: Cli) -> None:
    cli("create", "actor", "seen", "-a", "demo", "-t", "door")
    # A background job of a shell ignores SIGINT, and so does all that it starts: here is a terminal's default.
    argv = ["env", "--default-signal=INT", *cli.argv("get", "actors", "-A", "-w")]
    watch = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[:4] == ["ATESPACE", "NAME", "TEMPLATE", "STATE"]
        states = [watch.stdout.readline().split()[3]]  # what is, before what changes
        cli.request("demo/seen")
        cli("suspend", "actor", "demo/seen")
        cli("delete", "actor", "demo/seen")
        for line in watch.stdout:
            if "demo/door" in line:
                states.append("deleted" if "(deleted)" in line else line.split()[3])
            if states and states[-1] == "deleted":
                break
        order = [states.index(s) for s in ("SUSPENDED", "RESUMING", "RUNNING", "SUSPENDING", "deleted")]
        assert order == sorted(order), states
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 130
        assert watch.stderr is not None and "Traceback" not in watch.stderr.read()
    finally:
        watch.kill()
        watch.wait()


# -- logs and tags --------------------------------------------------------------------------------------------------


def test_logs_hold_every_line_in_order_across_sleeps_and_workers(cli: Cli) -> None:
    cli("create", "actor", "chatty", "-a", "demo", "-t", "pair")
    used = set()
    said = []
    follow = None
    try:
        for round_ in range(4):
            said.append(f"line {round_}")
            cli.request("demo/chatty", f"/say?text={quote(said[-1])}")
            cli.request("demo/chatty", f"/peer?port=81&path={quote(f'/say?text=side-{round_}')}")
            used.add(cli.worker_of("demo/chatty"))
            cli("suspend", "actor", "demo/chatty")
            if follow is None:
                follow = subprocess.Popen(
                    cli.argv("logs", "actor", "chatty", "-a", "demo", "-f", "-c", "door"),
                    stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
                )  # fmt: skip
        assert len(used) == 2, "it ran on both workers"
        until(lambda: "side-3" in cli("logs", "actor", "demo/chatty"))
        lines = cli("logs", "actor", "demo/chatty").splitlines()
        assert [line for line in lines if line.startswith("line ")] == said
        assert [line for line in lines if line.startswith("side-")] == [f"side-{n}" for n in range(4)]
        assert [line[-1] for line in lines if line[:5] in ("line ", "side-")] == list("00112233"), "by time"
        refused = cli.fails(1, "logs", "actor", "demo/chatty", "-c", "none")
        assert "no container 'none', only door, side" in refused
        only = cli("logs", "actor", "demo/chatty", "-c", "side").splitlines()
        assert "side-0" in only and not set(only) & set(said)
        records = [json.loads(line) for line in cli("logs", "actor", "demo/chatty", "-o", "json").splitlines()]
        record = next(record for record in records if record.get("message") == "side-2")
        assert record["labels"]["ate.actor.name"] == "chatty" and record["labels"]["ate.actor.container.name"] == "side"
        assert record["time"]
        assert follow is not None and follow.stdout is not None
        followed = []
        for line in follow.stdout:
            if line.startswith("line "):
                followed.append(line.strip())
            if followed == said:
                break
    finally:
        if follow is not None:
            follow.kill()
            follow.wait()
    cli("delete", "actor", "demo/chatty")
    assert "not found" in cli.fails(1, "logs", "actor", "demo/chatty")


def test_a_tag_keeps_a_moment_for_others_to_start_from(cli: Cli) -> None:
    cli("create", "actor", "origin", "-a", "demo", "-t", "door")
    boot = cli.request("demo/origin")["boot"]
    cli.request("demo/origin")
    assert "SUSPENDED" in cli.fails(1, "create", "tag", "moment", "-a", "demo", "--actor", "origin")
    cli("suspend", "actor", "demo/origin")
    assert cli("create", "tag", "moment", "-a", "demo", "--actor", "origin") == "tag/demo/moment created"
    assert cli.request("demo/origin")["ram"] == 3
    cli("suspend", "actor", "demo/origin")
    cli("delete", "actor", "demo/origin")
    row = cli("get", "tags", "-a", "demo").splitlines()[1].split()
    assert row[:4] == ["demo", "moment", "ATESPACE", "Ready"]
    cli("create", "actor", "heir", "-a", "demo", "-t", "door", "--tag", "moment")
    answer = cli.request("demo/heir")
    assert answer["ram"] == 3 and answer["boot"] == boot, "it goes on from the tag"
    cli("suspend", "actor", "demo/heir")

    cli("create", "atespace", "other")
    words = ("create", "actor", "guest", "-a", "other", "-t", "demo/door", "--tag", "demo/moment")
    assert "moment" in cli.fails(1, *words), "not published yet"
    assert cli("update", "tag", "moment", "-a", "demo", "--scope", "published") == "tag/demo/moment updated"
    cli(*words)
    assert cli.request("other/guest")["ram"] == 3
    cli("delete", "actor", "other/guest", "--any-state")
    cli("update", "tag", "demo/moment", "--scope", "atespace")
    cli.fails(1, *words)
    cli("delete", "tag", "moment", "-a", "demo")
    assert cli.request("demo/heir")["ram"] == 4, "what started from it has its own"
    cli("delete", "actor", "demo/heir", "--any-state")
    cli("delete", "atespace", "other")


# -- pools ----------------------------------------------------------------------------------------------------------


def test_a_pool_grows_shrinks_and_goes_without_losing_an_actor(cli: Cli) -> None:
    def actor(name: str) -> str:
        document = {"kind": "Actor", "metadata": {"atespace": "demo", "name": name}}
        wanted = {
            "actorTemplate": {"atespace": "demo", "name": "door"},
            "workerSelector": {"matchLabels": {"lane": "x"}},
        }
        return yaml.safe_dump({**document, **wanted})

    assert cli("apply", "-f", "-", given=pool("side", 1, lane="x")) == "workerpool/side created"
    assert cli("apply", "-f", "-", given=pool("side", 2, lane="x")) == "workerpool/side configured"
    cli("apply", "-f", "-", given="---\n".join([actor("s1"), actor("s2")]))
    until(lambda: len(cli.workers("side")) == 2)
    for name in ("s1", "s2"):
        cli.request(f"demo/{name}")
        assert cli.request(f"demo/{name}")["ram"] == 2
    own = {worker["metadata"]["name"] for worker in cli.workers("side")}
    assert {cli.worker_of("demo/s1"), cli.worker_of("demo/s2")} == own

    cli("apply", "-f", "-", given=pool("side", 1, lane="x"))
    until(lambda: len(cli.workers("side")) == 1)
    states = sorted(cli.state(f"demo/{name}") for name in ("s1", "s2"))
    assert states == ["RUNNING", "SUSPENDED"], "the removed worker's actor was put to sleep"

    cli("apply", "-f", "-", given=pool("side", 1, lane="y"))
    until(lambda: [worker["labels"]["lane"] for worker in cli.workers("side")] == ["y"])
    assert states == sorted(cli.state(f"demo/{name}") for name in ("s1", "s2")), "labels decide where to start only"

    assert cli("delete", "workerpool", "side") == "workerpool/side deleted"
    until(lambda: not cli.workers("side"))
    assert [cli.state(f"demo/{name}") for name in ("s1", "s2")] == ["SUSPENDED"] * 2
    none = cli.fails(1, "resume", "actor", "demo/s1")
    assert "no free workers" in none and "WorkerPool" in none
    cli("apply", "-f", "-", given=pool("side", 1, lane="x"))
    until(lambda: len(cli.workers("side")) == 1)
    for name in ("s1", "s2"):
        assert cli.request(f"demo/{name}")["ram"] == 3
        cli("suspend", "actor", f"demo/{name}")
        cli("delete", "actor", f"demo/{name}")
    cli("delete", "workerpool", "side")
    until(lambda: not cli.workers("side"))


# -- processes ------------------------------------------------------------------------------------------------------


def serve(root: Path, *words: str, log: str = "serve.log") -> subprocess.Popen[bytes]:
    root.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "ate", "serve", f"--root={root}", "--die-with-parent", *words]
    with (root / log).open("ab") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output, env=ENVIRONMENT, cwd="/", start_new_session=True)


def stop(*processes: subprocess.Popen[bytes]) -> list[int]:
    """Stops them in this order as SIGTERM does; their exit statuses."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    return [process.wait(150) for process in processes]


ALL = [f"--role={role}" for role in ("api", "router", "atelet", "controller", "identity-broker")]


def test_all_roles_in_one_process_are_the_same_platform(tmp_path: Path) -> None:
    root = tmp_path / "one"
    api, router = (f"127.0.0.1:{servers.free_port()}" for _ in range(2))
    words = [*ALL, f"--api-listen={api}", f"--api-address={api}", f"--router-listen={router}", "--status-port=0"]
    process = serve(root, *words, "--stop-workers")
    try:
        cli = Cli(root, api, router)
        until(lambda: cli.run("get", "atespaces").returncode == 0)
        pause = trio.run(build_pause_image, root / "images")
        config = {"kind": "SandboxConfig", "metadata": {"name": "gvisor-default"}, "spec": {"pauseImage": pause}}
        cli("apply", "-f", "-", given=yaml.safe_dump(config))
        set_up(cli, template("door", image_of(root), objects(root)))
        cli("create", "actor", "a", "-a", "demo", "-t", "door")
        boot = cli.request("demo/a")["boot"]
        cli("suspend", "actor", "demo/a")
        assert cli.request("demo/a")["ram"] == 2
        assert stop(process) == [0], (root / "serve.log").read_text()
        assert not leftovers(root), "its workers are stopped with it"
        process = serve(root, *words, "--stop-workers")
        until(lambda: cli.run("get", "atespaces").returncode == 0)
        assert cli.state("demo/a") == "SUSPENDED", "it was put to sleep at the stop"
        until(lambda: len(cli.workers("main")) == 2)
        answer = cli.request("demo/a")
        assert answer["ram"] == 3 and answer["boot"] == boot
    finally:
        stop(process)
    assert not leftovers(root)


def leftovers(root: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"--root={root}" in line:
            found.append(line)
    return found


NEEDY = ("api", "atelet", "controller", "router")
Alone = dict[str, tuple[subprocess.Popen[bytes], Path]]


@pytest.fixture(scope="module", autouse=True)
def without_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    """Every role on a root where no broker runs; started with the module, since each waits for half a minute."""
    root = tmp_path_factory.mktemp("lonely")
    alone = {role: (serve(root, *words_for(role), log=f"{role}.log"), root / f"{role}.log") for role in NEEDY}
    yield alone
    stop(*(process for process, _ in alone.values()))


def words_for(role: str, api: str = "127.0.0.1:1") -> list[str]:
    ports = ("--api-listen=127.0.0.1:0", "--router-listen=127.0.0.1:0", "--status-port=0")
    return [f"--role={role}", f"--api-address={api}", *ports]


def test_a_role_without_an_api_waits_and_names_it(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{servers.free_port()}"
    broker = serve(tmp_path, "--role=identity-broker", log="broker.log")
    others = {role: serve(tmp_path, *words_for(role, nowhere), log=f"{role}.log") for role in ("atelet", "controller")}
    try:
        for role, process in others.items():
            until(lambda role=role: nowhere in (tmp_path / f"{role}.log").read_text())  # type: ignore[misc]
            assert process.poll() is None
    finally:
        assert stop(*others.values(), broker) == [0, 0, 0]


def test_a_role_without_a_broker_names_its_socket_and_ends(without_broker: Alone) -> None:
    for role, (process, log) in without_broker.items():
        assert process.wait(SECONDS) == 1, role
        first, *_, last = log.read_text().strip().splitlines()
        socket = str(log.parent / "identity/broker.sock")
        assert "waiting for the identity broker" in first and socket in first
        assert last.startswith("ate: ") and socket in last and "--role=identity-broker" in last, last


def test_a_role_that_still_waits_for_the_broker_ends_at_once_when_told(tmp_path: Path) -> None:
    process = serve(tmp_path, *words_for("router"))
    until(lambda: "waiting for the identity broker" in (tmp_path / "serve.log").read_text())
    process.terminate()
    assert process.wait(10) == 1


def test_a_stopped_install_sleeps_and_a_killed_one_is_taken_up_again(tmp_path: Path) -> None:
    root = tmp_path / "dev"
    with running(root):
        cli = Cli(root)
        set_up(cli, template("door", image_of(root), objects(root)))
        cli("create", "actor", "a", "-a", "demo", "-t", "door")
        first = cli.request("demo/a")
        assert cli.state("demo/a") == "RUNNING"
    assert not leftovers(root), "nothing runs on"

    process = launch(root)
    try:
        until((root / "ready").exists)
        cli = Cli(root)
        assert cli.state("demo/a") == "SUSPENDED"
        until(lambda: len(cli.workers("main")) == 2)
        answer = cli.request("demo/a")
        assert answer["ram"] == 2 and answer["boot"] == first["boot"]
        workers = {worker["metadata"]["name"] for worker in cli.workers("main")}
        process.kill()
        process.wait()
    finally:
        process.kill()
        process.wait()

    with running(root) as process:
        cli = Cli(root)
        until(lambda: {worker["metadata"]["name"] for worker in cli.workers("main")} == workers)
        if cli.state("demo/a") == "CRASHED":
            cli("revert", "actor", "demo/a")
        answers = [cli.request("demo/a") for _ in range(3)]
        assert len({answer["boot"] for answer in answers}) == 1, "one of it serves"
        begin = answers[0]["ram"]
        assert begin in (2, 3) and [answer["ram"] for answer in answers] == [begin, begin + 1, begin + 2]

        async def once() -> int:
            async with joined(root, process) as install:
                return len(install.pids("ateom"))

        assert len(leftovers(root)) and trio.run(once) >= 2
        running_in = cli.worker_of("demo/a")
        assert running_in in workers, "the workers live on"
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if {b"--role=controller", f"--root={root}".encode()} <= set(path.read_bytes().split(b"\0")):
                    os.kill(int(path.parent.name), signal.SIGKILL)
    assert not leftovers(root), "it stops its workers even when the controller has just died"
