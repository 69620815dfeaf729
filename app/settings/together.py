"""The rules between the gateway's settings, of which each for itself is right."""

import math
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from oncegate.cache.redis.url import REDIS_SCHEMES
from oncegate.middleware.rules.settings import IdempotencySettings, Route, check_enforce
from oncegate.middleware.tokens.verifier import all_claims

if TYPE_CHECKING:
    from oncegate.app.settings.gateway import GatewaySettings

LEASE_PER_CACHE_TIMEOUT = 3
"""A renewal is due at a third of the lease: one that times out must still leave room for another."""

FORWARDED_METHODS: Final = frozenset((
    *("ACL", "BIND", "CHECKOUT", "COPY", "DELETE", "GET", "HEAD", "LINK", "LOCK"),
    *("M-SEARCH", "MERGE", "MKACTIVITY", "MKCALENDAR", "MKCOL", "MOVE", "NOTIFY", "OPTIONS", "PATCH"),
    *("POST", "PROPFIND", "PROPPATCH", "PURGE", "PUT", "QUERY", "REBIND", "REPORT", "SEARCH"),
    *("SOURCE", "SUBSCRIBE", "TRACE", "UNBIND", "UNLINK", "UNLOCK", "UNSUBSCRIBE"),
))  # fmt: skip
"""The methods that the parser knows, without CONNECT. Any other one is answered 501."""


def check_together(settings: "GatewaySettings") -> None:
    """Raises ``ValueError``, one line, which names the setting that is wrong beside another."""
    if settings.workers > 1 and not settings.cache_is_shared:
        raise ValueError(
            "workers: memory:// is for one process; set workers = 1, or a shared cache: sqlite:///records.db, redis://"
        )
    if settings.ops_port and settings.ops_port == settings.port:
        raise ValueError("ops_port: is the same as port; leave it out to have operations there")
    try:
        settings.digests()
    except ValueError as error:
        raise ValueError(f"secret: {error}") from None
    _check_lease(settings, "idempotency", settings.idempotency)
    _check_routes(settings)
    claims = all_claims(settings.idempotency, settings.routes)
    if claims and settings.jwt is None:
        raise ValueError(
            f"jwt: is missing, and a scope names a token's claim (jwt:{claims[0]}), which has to be verified: "
            "set jwks in [jwt]"
        )
    _check_access_log(settings)
    _check_certificates(settings)


def _check_routes(settings: "GatewaySettings") -> None:
    consumers: dict[str, str] = {}
    for index, route in enumerate(settings.routes):
        try:
            rules = route.settings(settings.idempotency)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join([f"routes.{index}", *map(str, first["loc"])])
            message = first["msg"].removeprefix("Value error, ")
            # What is wrong between settings names its own.
            raise ValueError(f"{where}: {message}" if first["loc"] else f"{where}.{message}") from None
        _check_lease(settings, f"routes.{index}", rules)
        unknown = [method for method in route.methods if method not in FORWARDED_METHODS]
        if unknown:
            raise ValueError(
                f"routes.{index}.methods: {unknown[0]} is no method that the gateway forwards (it answers 501): "
                "it would guard nothing"
            )
        check_enforce(f"routes.{index}", route.mode, rules)
        if route.mode != "sync":
            _check_submission(settings, f"routes.{index}", route, rules)
            if consumers.setdefault(route.stream, route.consumer_name) != route.consumer_name:
                raise ValueError(
                    f"routes.{index}.consumer: is another one than an earlier route's with the same stream; "
                    "a caller is shown one consumer's processing: give both the same"
                )


def _check_access_log(settings: "GatewaySettings") -> None:
    given = "access_log_file" if settings.access_log_file else "access_log_only" if settings.access_log_only else ""
    if given and settings.access_log == "none":
        raise ValueError(f'{given}: nothing is written, since access_log is "none": set that to "json" or "combined"')


def _check_certificates(settings: "GatewaySettings") -> None:
    pairs = {"tls_cert": "tls_key", "upstream_cert": "upstream_key"}
    for given, missing in [*pairs.items(), *[(key, cert) for cert, key in pairs.items()]]:
        if getattr(settings, given) and not getattr(settings, missing):
            raise ValueError(f"{missing}: is missing, and {given} is set: give both")
    if settings.upstream_cert and not settings.upstream.startswith("https://"):
        raise ValueError("upstream_cert: is for an https:// upstream, and this one is not")


def _check_submission(settings: "GatewaySettings", where: str, route: Route, rules: IdempotencySettings) -> None:
    if settings.cache_scheme not in REDIS_SCHEMES:
        raise ValueError(
            f'{where}.mode: "{route.mode}" needs a Redis, which holds the command stream; set cache = "redis://...", '
            "or have a queue in your database: docs/patterns/queue.md"
        )
    if route.mode == "async" and rules.on_missing_key == "run":
        raise ValueError(
            f'{where}.mode: "async" takes no command without a key, by which its copies are known; '
            'set on_missing_key = "reject" or "generate"'
        )


def _check_lease(settings: "GatewaySettings", where: str, rules: IdempotencySettings) -> None:
    least = LEASE_PER_CACHE_TIMEOUT * settings.cache_timeout
    if rules.lease < least and not math.isclose(rules.lease, least):  # 3 * 0.4 is a little more than 1.2
        raise ValueError(
            f"{where}.lease: {rules.lease:g} is below {least:g}; it must be at least "
            f"{LEASE_PER_CACHE_TIMEOUT} times cache_timeout ({settings.cache_timeout:g})"
        )
