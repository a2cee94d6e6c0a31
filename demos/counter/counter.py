"""An HTTP counter that counts in RAM and in a file of its root filesystem. Any GET but /readyz adds one.

Answers JSON: the count in RAM, the count in the file, and this process's boot id, which only changes when the program
was started anew instead of being woken.
"""

import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = "/var/lib/counter"
BOOT = uuid.uuid4().hex
count = 0


class Counter(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global count
        if self.path == "/readyz":
            return self.answer({"ready": True})
        if self.path == "/count":
            return self.answer({"ram": count, "file": read(), "boot": BOOT})
        count += 1
        in_file = read() + 1
        with open(FILE, "w") as file:
            file.write(str(in_file))
        self.answer({"ram": count, "file": read(), "boot": BOOT})

    def answer(self, body):
        data = json.dumps(body).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        print(f"{self.command} {self.path} -> {args[1] if len(args) > 1 else ''}", flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        # The base class asks DNS for this host's name, and an actor has no DNS.
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "counter", self.server_address[1]


def read():
    try:
        with open(FILE) as file:
            return int(file.read() or 0)
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "80"))
    print(f"counter listens on {port}, boot {BOOT}", flush=True)
    Server(("0.0.0.0", port), Counter).serve_forever()
