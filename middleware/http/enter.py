"""Routes each request: what isn't enforced goes on to the app, untouched; the rest becomes an `Exchange`."""
# Compiled: docs/decisions/0012-compiled.md

from collections.abc import Awaitable
from typing import Final
from urllib.parse import quote

from oncegate.middleware.http.asgi import Receive, Scope, Send
from oncegate.middleware.http.bypass import Bypass
from oncegate.middleware.http.enforcement import Enforcement
from oncegate.middleware.http.exchange import Exchange

_PATH_SAFE: Final = "/!$&'()*+,;=:@~-._%"


def enter(enforcement: Enforcement, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    """The awaitable that answers an HTTP request. What isn't enforced passes first, untouched."""
    if enforcement._routed:  # else the path doesn't matter
        path, raw_path = scope["path"], scope.get("raw_path")
        if root := scope.get("root_path"):
            path, raw_path = _below(root, path, raw_path)
        policy = enforcement.policies.match(scope["method"], path, raw_path)
    else:
        policy = enforcement.policies.match(scope["method"], "")
    if policy is not None:
        if not policy.passes(scope["headers"]):
            return Exchange(enforcement, policy, scope, receive, send).serve()
        send = Bypass(enforcement.observe, policy, scope, send).send
    return enforcement.app(scope, receive, send)


def _below(root: str, path: str, raw_path: bytes | None) -> tuple[str, bytes | None]:
    """The path that an app routes by where it is mounted, or served under ``--root-path``: the rest behind ASGI's root_path.

    As Starlette has it: a server or a mount that doesn't put the root before the path has nothing to be taken off.
    """
    if path == root or path.startswith(root + "/"):
        path = path[len(root) :]
        sent = quote(root, safe=_PATH_SAFE).encode()
        if raw_path is not None and raw_path.startswith(sent):
            raw_path = raw_path[len(sent) :]
    return path, raw_path
