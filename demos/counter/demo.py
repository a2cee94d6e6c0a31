"""Tells the counter's story on real gVisor sandboxes: asleep, awake, its memory intact. Run by `make demo`.

It starts `ate dev` with a root folder of its own, uses only the `ate` command and HTTP, checks every count it sees,
prints how long each phase took, and leaves nothing running. Exit status 0 means that all of it held.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
PHASES: list[tuple[str, float]] = []


class Failed(Exception):
    """Something was not as promised."""


class Demo:
    def __init__(self, ate: list[str], root: Path) -> None:
        self.ate, self.root = ate, root
        self.router = ""

    # -- telling ----------------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)

    def phase(self, name: str, seconds: float) -> None:
        PHASES.append((name, seconds))
        print(f"  {name}: {seconds * 1000:.0f} ms", flush=True)

    def run(self, *words: str, show: bool = True) -> str:
        """Runs `ate WORDS` and returns what it printed."""
        if show:
            print(f"  $ ate {' '.join(words)}", flush=True)
        done = subprocess.run([*self.ate, *words, f"--root={self.root}"], capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise Failed(f"ate {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        if show and done.stdout.strip():
            print("    " + done.stdout.strip().replace("\n", "\n    "), flush=True)
        return done.stdout.strip()

    def get(self, kind: str, *names: str) -> dict:
        return json.loads(self.run("get", kind, *names, "-a", "demo", "-o", "json", show=False))

    def request(self, actor: str, path: str = "/") -> dict:
        """One HTTP request to an actor through the router; the actor's answer."""
        url = f"http://{self.router}{path}"
        request = urllib.request.Request(url, headers={"ate-target-actor": f"demo/{actor}"})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise Failed(f"{actor} answered {error.code}: {error.read().decode().strip()}") from None

    def expect(self, actor: str, count: int) -> dict:
        answer = self.request(actor)
        if answer["ram"] != count or answer["file"] != count:
            raise Failed(f"{actor} should have counted to {count} in RAM and file, but says {answer}")
        return answer

    def worker_of(self, actor: str) -> str:
        return self.get("actor", actor)["status"].get("workerAssignment", {}).get("workerPodUid", "")

    def busy_workers(self) -> int:
        workers = json.loads(self.run("get", "workers", "-o", "json", show=False))["items"]
        return sum(worker["status"].get("allocated", {}).get("actors", 0) for worker in workers)

    def wait(self, what: str, check, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not check():
            if time.monotonic() > deadline:
                raise Failed(f"{what} did not happen within {seconds:.0f} s; see {self.root}/logs")
            time.sleep(0.1)

    # -- the story --------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        self.router = json.loads((self.root / "endpoints.json").read_text())["router"]
        image = self.prepare()
        self.say("1. A template is applied; ate boots one actor, waits until it answers, and keeps its snapshot.")
        started = time.monotonic()
        self.apply(image, replicas=2)
        self.wait("the golden snapshot", self.golden)
        self.phase("cold boot and golden snapshot", time.monotonic() - started)

        self.say("2. An actor is made from it. It holds no worker until the first request wakes it.")
        self.run("create", "actor", "ann", "-a", "demo", "-t", "demo/counter")
        started = time.monotonic()
        self.expect("ann", 1)
        self.phase("first request, woken from the golden snapshot", time.monotonic() - started)
        started = time.monotonic()
        self.expect("ann", 2)
        self.phase("request to the running actor", time.monotonic() - started)
        boot = self.expect("ann", 3)["boot"]
        before = self.worker_of("ann")
        print(f"  ann counted to 3 on worker {before[:8]}")

        self.say("3. It is put to sleep: RAM and disk go to a snapshot, and its worker is free.")
        started = time.monotonic()
        self.run("suspend", "actor", "ann", "-a", "demo")
        self.phase("suspend", time.monotonic() - started)
        if self.busy_workers() != 0:
            raise Failed("a worker is still taken after the suspend")

        self.say("4. The next request wakes it on another worker, its memory intact.")
        started = time.monotonic()
        answer = self.expect("ann", 4)
        self.phase("request that woke the sleeping actor", time.monotonic() - started)
        after = self.worker_of("ann")
        if answer["boot"] != boot:
            raise Failed("the program was started anew: its memory was lost")
        if after == before:
            raise Failed(f"it woke on the same worker {after}")
        print(f"  ann counted to 4 on worker {after[:8]}; the program never knew that it slept")

        self.say("5. Three actors share one worker; requests wait for their turn.")
        self.apply(image, replicas=1)
        self.wait(
            "one worker", lambda: len(json.loads(self.run("get", "workers", "-o", "json", show=False))["items"]) == 1
        )
        for name in ("bob", "cid"):
            self.run("create", "actor", name, "-a", "demo", "-t", "demo/counter")
        self.share({"ann": 5, "bob": 1, "cid": 1})
        self.share({"ann": 6, "bob": 2, "cid": 2})

        self.say("6. All is tidied up.")
        self.run("delete", "actor", "ann", "bob", "cid", "-a", "demo", "--any-state")
        print("\n" + "\n".join(f"{seconds * 1000:8.0f} ms  {name}" for name, seconds in PHASES))

    def share(self, counts: dict[str, int]) -> None:
        """Asks every actor at once, and puts each to sleep as soon as it has answered; the others wait parked."""
        failures: list[str] = []

        def ask(name: str, count: int) -> None:
            started = time.monotonic()
            try:
                self.expect(name, count)
                self.phase(f"{name} counted to {count}, waiting for the worker included", time.monotonic() - started)
                self.run("suspend", "actor", name, "-a", "demo", "-o", "name", show=False)
            except Failed as error:
                failures.append(str(error))

        running = [
            a["metadata"]["name"] for a in self.get("actors")["items"] if a["status"]["state"].endswith("RUNNING")
        ]
        for name in running:
            self.run("suspend", "actor", name, "-a", "demo", "-o", "name", show=False)
        threads = [threading.Thread(target=ask, args=item) for item in counts.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise Failed("; ".join(failures))

    def prepare(self) -> str:
        """The counter's image in the store, and nothing left of an earlier run."""
        layout = self.root / "counter-image"
        started = time.monotonic()
        subprocess.run(
            [sys.executable, str(HERE / "build_image.py"), str(layout)], check=True, stdout=subprocess.DEVNULL
        )
        image = self.run("image", "import", str(layout))
        self.phase("image built and imported", time.monotonic() - started)
        self.run("delete", "actor", "ann", "bob", "cid", "-a", "demo", "--any-state", "--ignore-not-found", show=False)
        self.run("delete", "actor-template", "counter", "-a", "demo", "--ignore-not-found", show=False)
        return image

    def apply(self, image: str, replicas: int) -> None:
        snapshots = self.root / "objects"
        snapshots.mkdir(exist_ok=True)
        text = (HERE / "counter.yaml").read_text()
        text = text.replace("${COUNTER_IMAGE}", image).replace("${SNAPSHOTS}", f"file://{snapshots}")
        text = text.replace("replicas: 2", f"replicas: {replicas}")
        path = self.root / "counter.yaml"
        path.write_text(text)
        self.run("apply", "-f", str(path))

    def golden(self) -> bool:
        status = self.get("actor-template", "counter").get("status", {}).get("goldenSnapshotStatus", {})
        if status.get("errorMessage"):
            raise Failed(status["errorMessage"])
        return "goldenTag" in status


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ate", default="", help="the ate binary (default: from this source tree)")
    parser.add_argument("--root", default="build/demo")
    parser.add_argument("--runsc", default="")
    options = parser.parse_args()
    root = Path(options.root).resolve()
    root.mkdir(parents=True, exist_ok=True)
    ate = [options.ate] if options.ate else [sys.executable, "-m", "ate"]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    os.environ.update(environment)
    (root / "ready").unlink(missing_ok=True)
    print(f"starting `ate dev --root {root}`", flush=True)
    started = time.monotonic()
    extra = [f"--runsc={options.runsc}"] if options.runsc else []
    dev = subprocess.Popen(
        [*ate, "dev", f"--root={root}", "--parked-request-budget=60", "--die-with-parent", *extra],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    demo = Demo(ate, root)
    status = 1
    try:

        def ready() -> bool:
            if dev.poll() is not None:
                raise Failed(f"ate dev ended with status {dev.returncode}")
            return (root / "ready").exists()

        demo.wait("ate dev", ready)
        demo.phase("ate dev ready", time.monotonic() - started)
        demo.tell()
        status = 0
    except Failed as error:
        print(f"\nFAILED: {error}\nlogs: {root}/logs", file=sys.stderr)
    finally:
        dev.terminate()
        dev.wait(timeout=180)
    print("\nall held" if status == 0 else "", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
