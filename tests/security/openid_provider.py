"""A little OpenID provider over HTTPS, in a thread: what a company's login or a cluster is to the api role."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from ate.identity.ca import CaPool
from ate.identity.tls import Credentials, make_context

AUDIENCE = "ate"


class OpenIdProvider:
    """`keys` are what it publishes, `serving` whether it listens; `demanded` is a bearer token it wants to see."""

    def __init__(self, name: str, port: int, pool: CaPool, folder: Path) -> None:
        self.name, self.port, self.issuer = name, port, f"https://localhost:{port}/{name}"
        self.keys: dict[str, PrivateKeyTypes] = {}
        self.demanded = ""
        self.fetches = 0
        self.authority = folder / f"{name}.pem"
        self.authority.write_text(pool.trust_bundle_pem)
        key = ec.generate_private_key(ec.SECP256R1())
        chain = pool.issue(key.public_key(), f"spiffe://test.local/{name}", hosts=["localhost"])
        self._tls = make_context(Credentials(key, tuple(chain), pool.trust_bundle_pem), server=True, alpn=("http/1.1",))
        self._tls.verify_mode = ssl.CERT_NONE

    def new_key(self, kid: str, kind: str = "EC") -> None:
        self.keys[kid] = (
            ec.generate_private_key(ec.SECP256R1()) if kind == "EC" else rsa.generate_private_key(65537, 2048)
        )

    def claims(self, subject: str = "ann", **changes: Any) -> dict[str, Any]:
        """Of a token that counts; a change of None leaves a claim out."""
        now = int(time.time())
        claims = {"iss": self.issuer, "sub": subject, "aud": [AUDIENCE], "iat": now, "nbf": now, "exp": now + 600}
        return {name: value for name, value in {**claims, **changes}.items() if value is not None}

    def token(self, subject: str = "ann", kid: str = "ec", **changes: Any) -> str:
        key = self.keys[kid]
        algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(self.claims(subject, **changes), key, algorithm, headers={"kid": kid})  # type: ignore[arg-type]

    def jwks(self) -> dict[str, Any]:
        found = []
        for kid, key in self.keys.items():
            form: Any = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
            found.append({**form.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"})
        return {"keys": found}

    @contextmanager
    def serving(self) -> Iterator[None]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                documents = {
                    f"/{provider.name}/.well-known/openid-configuration": {
                        "issuer": provider.issuer,
                        "jwks_uri": f"{provider.issuer}/keys",
                    },
                    f"/{provider.name}/keys": provider.jwks(),
                }
                let = not provider.demanded or self.headers["Authorization"] == f"Bearer {provider.demanded}"
                known = self.path in documents
                body = json.dumps(documents.get(self.path, {})).encode()
                provider.fetches += self.path.endswith("/keys")
                self.send_response(401 if not let else 200 if known else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *what: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        server.socket = self._tls.wrap_socket(server.socket, server_side=True)
        runner = threading.Thread(target=server.serve_forever, args=(0.02,), name=self.name)
        runner.start()
        try:
            yield
        finally:
            server.shutdown()
            runner.join()
            server.server_close()
