"""An issuer of tokens: its keys, in files and at a URL, and tokens of any kind, those included that nobody may believe."""

import base64
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

ISSUER = "https://issuer.example"
AUDIENCE = "payments"


class SigningKey:
    """A key pair of the issuer's. Elliptic unless ``bits`` are given, by which it is RSA's, and takes long to be made."""

    def __init__(self, identifier: str | None = "k1", *, bits: int = 0) -> None:
        self.identifier = identifier
        self.algorithm = "RS256" if bits else "ES256"
        self.private: Any = rsa.generate_private_key(65537, bits) if bits else ec.generate_private_key(ec.SECP256R1())

    def jwk(self, **members: Any) -> dict[str, Any]:
        kind: Any = jwt.algorithms.RSAAlgorithm if self.algorithm == "RS256" else jwt.algorithms.ECAlgorithm
        public = kind.to_jwk(self.private.public_key(), as_dict=True)
        named = {"kid": self.identifier} if self.identifier is not None else {}
        return {**public, **named, "use": "sig", "alg": self.algorithm, **members}

    @property
    def pem(self) -> bytes:
        """The public key as it is passed around: what an attacker has, too."""
        return bytes(
            self.private.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )


class Issuer:
    """Signs with the last of its ``keys``."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys or (SigningKey(),))
        self._made = 0

    def rotate(self, *, keep: bool = False) -> None:
        """A new key in place of the old ones, or beside them."""
        self._made += 1
        self.keys = [*(self.keys if keep else ()), SigningKey(f"new {self._made}")]

    def jwks(self) -> bytes:
        return json.dumps({"keys": [key.jwk() for key in self.keys]}).encode()

    def write(self, file: Path) -> str:
        file.write_bytes(self.jwks())
        return str(file)

    def claims(self, sub: Any = "alice", **others: Any) -> dict[str, Any]:
        """Those of a fresh token: no two have the same. ``None``: without."""
        self._made += 1
        now = int(time.time())
        made = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": sub,
            "iat": now,
            "exp": now + 300,
            "jti": str(self._made),
            **others,
        }
        return {name: value for name, value in made.items() if value is not None}

    def token(
        self,
        sub: Any = "alice",
        *,
        key: SigningKey | None = None,
        algorithm: str | None = None,
        headers: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        key = key or self.keys[-1]
        named = {} if key.identifier is None else {"kid": key.identifier}
        members = self.claims(sub, **claims)
        return jwt.encode(
            members, key.private, algorithm=algorithm or key.algorithm, headers={**named, **(headers or {})}
        )

    def lines(self, *args: Any, **claims: Any) -> list[tuple[str, str]]:
        """The field line of a token."""
        return bearer(self.token(*args, **claims))


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes | None = None) -> str:
    """A token that PyJWT would not make: unsigned, or with any ``secret``."""
    signed = b".".join(_spelled(json.dumps(part).encode()) for part in (header, claims))
    signature = b"" if secret is None else hmac.digest(secret, signed, hashlib.sha256)
    return (signed + b"." + _spelled(signature)).decode()


def _spelled(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


class JwksServer:
    """Serves ``body`` with ``status`` over HTTP, from a thread of its own, and counts how often. It can be held."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.fetched = 0
        self.drips = False
        """Whether it sends a byte at a time, with pauses."""
        self._go = threading.Event()
        self._go.set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.fetched += 1
                outer._go.wait(30)
                self.send_response(outer.status)
                self.send_header("content-length", str(len(outer.body)))
                self.end_headers()
                try:
                    for number in range(len(outer.body) if outer.drips else 0):
                        self.wfile.write(outer.body[number : number + 1])
                        time.sleep(0.01)
                    self.wfile.write(b"" if outer.drips else outer.body)
                except OSError:
                    pass  # who fetches had enough

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks.json"

    def hold(self, held: bool = True) -> None:
        (self._go.clear if held else self._go.set)()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._go.set()
        self._server.shutdown()
        self._server.server_close()
