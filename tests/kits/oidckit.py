"""A small provider of OpenID Connect on this machine, which lets everybody in and can lie."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey

CLIENT, SECRET = "pgflow", "a secret of the client"


class Provider:
    """The provider.

    Attributes:
        issuer: Its address.
        tail: Text that its own name has behind that address: some end with a slash.
        claims: Claims that it adds to an identity, or puts in place of its own; None takes one out.
        key: Key by which it signs; `published` is the one that it shows.
        sign: Function that makes a token of claims, if not by that key.
    """

    def __init__(self) -> None:
        self.issuer = ""
        self.tail = ""
        self.claims: dict[str, Any] = {}
        self.key = self.published = ECKey.generate_key("P-256", {"kid": "one"})
        self.sign: Any = None
        self._codes: dict[str, dict[str, str]] = {}

    def answer(self, path: str, said: dict[str, str]) -> dict[str, Any] | None:
        """Return what is at an address as JSON; None for nothing."""
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.issuer + self.tail,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/keys",
            }
        if path == "/keys":
            return {"keys": [self.published.as_dict(private=False)]}
        if path == "/token" and said.get("code") in self._codes:
            return self._token(said)
        return None

    def let_in(self, address: str) -> str:
        """Return the address to which it sends a browser back that has come to this one."""
        said = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
        assert said["code_challenge_method"] == "S256"
        assert (said["client_id"], said["response_type"]) == (CLIENT, "code")
        code = secrets.token_urlsafe()
        self._codes[code] = said
        query = urllib.parse.urlencode({"code": code, "state": said["state"]})
        return f"{said['redirect_uri']}?{query}"

    def _token(self, said: dict[str, str]) -> dict[str, Any]:
        asked = self._codes.pop(said["code"])
        digest = hashlib.sha256(said["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if challenge != asked["code_challenge"] or said["redirect_uri"] != asked["redirect_uri"]:
            return {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer + self.tail,
            "sub": "1",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
            "email": "ann@example.org",
            **self.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        text = (
            self.sign(claims)
            if self.sign
            else jwt.encode({"alg": "ES256", "kid": self.key.kid}, claims, self.key)
        )
        return {"access_token": "a", "token_type": "Bearer", "id_token": text}


@contextlib.contextmanager
def provider() -> Iterator[Provider]:
    """A provider that is served."""
    found = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
            assert self.headers["authorization"] == f"Basic {basic}"
            self._answer(dict(urllib.parse.parse_qsl(body)))

        def _answer(self, said: dict[str, str]) -> None:
            answer = found.answer(self.path, said)
            body = json.dumps(answer or {"error": "invalid_grant"}).encode()
            self.send_response(400 if answer is None or "error" in answer else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
