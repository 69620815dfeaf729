"""The gateway's settings: their names and their defaults. What must hold between them is in `oncegate.app.settings.together`.

A `GatewaySettings` that could be built is usable: values that contradict each other, or that this version can't honour,
fail at construction. Values come from `oncegate.app.settings.loading.sources`; building one reads nothing.
"""

import ipaddress
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from oncegate.app.settings.access_log import AccessLogFormat, Selection
from oncegate.app.settings.admin_tokens import parse
from oncegate.app.settings.cors import CorsSettings
from oncegate.app.settings.together import check_together
from oncegate.app.settings.upstream_url import UpstreamAddress, split_url
from oncegate.app.settings.worker import WorkerSettings
from oncegate.cache.encryption import Encryption, given_encryption
from oncegate.cache.open import CACHE_SCHEMES, IN_PROCESS_SCHEMES, check_url
from oncegate.cache.redis.url import MANY_SERVERS, either, scheme_of
from oncegate.middleware.admission.limits.callers import RATE
from oncegate.middleware.http.cors import CrossOrigin
from oncegate.middleware.rules.keys.digests import Digests, Secrets, given_digests
from oncegate.middleware.rules.setting_types import Bytes, InAList, Name, Seconds
from oncegate.middleware.rules.settings import IdempotencySettings, Route
from oncegate.middleware.rules.spelling import Spelling
from oncegate.middleware.rules.strict_settings import StrictSettings
from oncegate.middleware.tokens.settings import JwtSettings

if TYPE_CHECKING:
    from oncegate.app.settings.loading.origins import Origins

PublicPage = Literal["metrics", "policy", "docs"]
"""The operations that may be opened to everybody."""


class GatewaySettings(StrictSettings):
    """All settings of ``oncegate serve``. The names are those of the TOML file."""

    model_config = ConfigDict(hide_input_in_errors=True)
    _origins: "Origins | None" = PrivateAttr(default=None)

    # URLs may carry credentials: not part of the repr. Print them through `redact`.
    upstream: str = Field(
        repr=False, description="where requests go: http://, https://, or unix:// and the path of a socket"
    )
    cache: str = Field(
        default="memory://",
        repr=False,
        description=f"where records live: {either(CACHE_SCHEMES, ', ')}; "
        "Sentinels are host:port,host:port/service, nodes of a cluster host:port,host:port; "
        "sqlite:///FILE is for the processes of one machine",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="the address to listen on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=8080, description="the port to listen on; 0: any free one"
    )
    tls_cert: str = Field(
        default="",
        description="PEM file of a certificate and its chain: the gateway speaks TLS, 1.2 or newer, on all its ports",
    )
    tls_key: str = Field(default="", description="PEM file of its key")
    workers: Annotated[int, Field(ge=1, le=256)] = Field(default=1, description="processes that share the port")
    namespace: Name = Field(default="default", description="keeps the records of services on one cache apart")
    secret: str | tuple[str, ...] = Field(
        default="",
        repr=False,
        description="a secret of 32 bytes or more that keys the digests of keys, callers and payloads; give it in "
        'ONCEGATE_SECRET, no file holds it; a list of two while the first replaces the second; "none" stands for '
        "no secret",
    )
    secret_file: str = Field(default="", description="a file with the secret, or with two of them, a line each")
    encryption_keys: tuple[str, ...] = Field(
        default=(),
        repr=False,
        description="keys, id:base64 of 32 bytes each; the first one encrypts what is kept of responses and commands in "
        'Redis or a database, all decrypt; "none" as the first: nothing is encrypted yet',
    )
    encryption_keys_file: str = Field(default="", description="a file with the encryption keys, a line each")
    cache_timeout: Seconds = Field(default=0.5, description="seconds for each command to the cache")
    memory_limit: Bytes = Field(
        default=268435456, description="bytes that memory:// may hold; above it new keys get 503"
    )
    max_in_flight: Annotated[int, Field(ge=1)] = Field(
        default=1000, description="attempts per process at once; one more gets 503 overloaded"
    )
    max_in_flight_per_caller: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="attempts of one caller per process at once; one more gets 429 too-many-keys; 0: no limit",
    )
    new_keys_per_caller: Annotated[
        str, Spelling(f"({RATE.pattern})?", 'a number per second, minute or hour: "600/m"')
    ] = Field(
        default="",
        description='new keys of one caller per process, as "600/m" (s, m, h); one more gets 429 too-many-keys; "": no limit',
    )
    max_buffered: Bytes = Field(
        default=67108864,
        description="bytes of bodies per process that wait to be admitted; above it requests get 503 overloaded",
    )
    max_unread: Bytes = Field(
        default=268435456,
        description="bytes of responses per process that wait for slow readers; above it the slowest reader is dropped",
    )
    stream_limit: Annotated[int, Field(ge=1)] = Field(
        default=100000,
        description="commands that a stream may hold of what its consumers still need; one more gets 503 overloaded",
    )
    body_timeout: Seconds = Field(default=30, description="seconds for a request's body to arrive")
    upstream_keepalive: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=1.5,
        description="seconds that an idle upstream connection is kept; give less than the upstream keeps one",
    )
    upstream_ca: str = Field(
        default="", description="PEM file of the authorities that may have signed the upstream's certificate"
    )
    upstream_cert: str = Field(
        default="", description="PEM file of a certificate and its chain that an https:// upstream is shown"
    )
    upstream_key: str = Field(default="", description="PEM file of its key")
    tunnel_timeout: Seconds = Field(
        default=300, description="seconds until a WebSocket that carries nothing, a ping neither, is closed"
    )
    trusted_proxies: Annotated[tuple[str, ...], InAList] = Field(
        default=(), description="addresses whose X-Forwarded-* are believed"
    )
    via: bool = Field(
        default=True,
        description="add Via to requests and responses; an nginx upstream doesn't compress for a request that has it",
    )
    drain_delay: Annotated[float, Field(ge=0, le=3600)] = Field(
        default=0, description="seconds between being unready and closing the port"
    )
    shutdown_timeout: Seconds = Field(default=30, description="seconds for attempts in flight to finish")
    prefix: Annotated[str, Spelling(r"(/[A-Za-z0-9_.~-]+)+", 'a path that ends without a slash: "/_oncegate"')] = Field(
        default="/_oncegate",
        description="where operations are (healthz, readyz, problems, commands, policy, metrics, docs, records, dead-letters, "
        "reload)",
    )
    ops_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0,
        description="the one port that has the operations for operators; 0: they are on the main port, under prefix, for who "
        "brings an operator's token",
    )
    public: Annotated[tuple[PublicPage, ...], InAList] = Field(
        default=(),
        description="what everybody gets who reaches the main port: `metrics`, `policy`, `docs` (with openapi.json); healthz, "
        "readyz and problems everybody gets anyway",
    )
    admin_tokens: tuple[str, ...] = Field(
        default=(),
        repr=False,
        description="operators' tokens: NAME:read:DIGEST or NAME:write:DIGEST, as `oncegate token NAME` prints them; "
        "ONCEGATE_ADMIN_TOKEN is one without a name",
    )
    ops_database: Annotated[
        str,
        Spelling(
            r"(postgresql\+(asyncpg|psycopg)://\S+|sqlite(\+(pysqlite|aiosqlite))?:///\S+)?",
            "a URL of SQLAlchemy's with one of these drivers: postgresql+asyncpg://user@host/name, "
            "postgresql+psycopg://user@host/name, sqlite:///file.db",
        ),
    ] = Field(
        default="",
        repr=False,
        description="the consumers' database, where inboxes, outboxes and projections are (oncegate.sql): operators see in the "
        "console and under prefix what waits there, and skip, retry or discard it. A URL of SQLAlchemy's, best in "
        'ONCEGATE_OPS_DATABASE; "": none. It needs pip install oncegate[sql] and the driver',
    )
    ready_needs_cache: bool = Field(default=False, description="readyz is 503 while the cache can't be reached")
    sample_records: Annotated[float, Field(ge=0, le=86400)] = Field(
        default=0,
        description="seconds between counts of the cache's unknown records, for metrics; each count reads all records; 0: "
        "none",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least severe lines that are logged"
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="auto: text on a terminal, JSON elsewhere"
    )
    access_log: AccessLogFormat = Field(
        default="none",
        description="a line for each request: json, or combined, which other servers' tools read. Then each request has an id, "
        "X-Request-Id, which goes to the upstream and back to the client",
    )
    access_log_file: str = Field(
        default="", description="the file that the access log is appended to; without one it goes to standard output"
    )
    access_log_only: tuple[str, ...] = Field(
        default=(),
        description="which requests have a line: decisions, statuses and durations, one of which must hold; with ! in front "
        'one that must not: ["4xx", "5xx", ">500ms", "!operations"]',
    )
    tracing: bool = Field(
        default=False,
        description="send OpenTelemetry spans by OTLP, as the environment says (OTEL_*); needs pip install oncegate[otel]",
    )
    idempotency: IdempotencySettings = Field(
        default_factory=IdempotencySettings, description="the rules for all routes"
    )
    cors: CorsSettings = Field(default_factory=CorsSettings, description="scripts of other origins, in browsers")
    jwt: JwtSettings | None = Field(default=None, description="how the tokens are verified whose claims a scope names")
    worker: WorkerSettings = Field(default_factory=WorkerSettings, description="the settings of `oncegate worker`")
    routes: tuple[Route, ...] = Field(default=(), description="paths with rules of their own")

    @field_validator("upstream")
    @classmethod
    def _forwardable(cls, value: str) -> str:
        UpstreamAddress.parse(value)
        return value

    @field_validator("cache")
    @classmethod
    def _storable(cls, value: str) -> str:
        if check_url(value) not in MANY_SERVERS:
            split_url(value)  # with commas between hosts it is no URL in urllib's sense
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ipaddress.ip_network(entry, strict=False)
            except ValueError:
                raise ValueError('must be IP addresses or networks: ["10.0.0.0/8"]') from None
        return value

    @field_validator("access_log_only")
    @classmethod
    def _selections(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Selection.of(value)
        return value

    @property
    def origins(self) -> "Origins | None":
        """Where each value came from; ``None`` where a program gave them."""
        return self._origins

    def come_from(self, origins: "Origins | None") -> "GatewaySettings":
        """These, with where each value came from."""
        self._origins = origins
        return self

    @field_validator("admin_tokens")
    @classmethod
    def _tokens(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        digests = [parse(each).digest for each in value]
        if len(set(digests)) != len(digests):
            raise ValueError("has one token twice: nobody could tell whose it is")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "GatewaySettings":
        check_together(self)
        return self

    @model_validator(mode="after")
    def _explain_problems(self) -> "GatewaySettings":
        if not self.idempotency.docs_url:
            own = self.idempotency.model_copy(update={"docs_url": f"{self.prefix}/problems/"})
            object.__setattr__(self, "idempotency", own)  # frozen from here on
        return self

    @field_validator("encryption_keys")
    @classmethod
    def _keys(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            given_encryption(value)
        except ValueError as error:
            raise ValueError(str(error).removeprefix("encryption_keys: ")) from None
        return value

    def encryption(self) -> Encryption | None:
        """The encryption of what is kept in Redis; ``None`` without keys."""
        return given_encryption(self.encryption_keys)

    def digests(self) -> Digests:
        """The digests of keys, callers and payloads, by the secret where there is one."""
        return given_digests(self.given_secrets)

    @property
    def given_secrets(self) -> Secrets:
        """The secrets as the public classes take them."""
        if isinstance(self.secret, tuple):
            return [None if each == "none" else each for each in self.secret]
        return self.secret or None

    @property
    def consumers(self) -> dict[str, str]:
        """The consumers whose processing is shown to callers, by the streams of asynchronous routes."""
        return {route.stream: route.consumer_name for route in self.routes if route.mode != "sync"}

    def cross_origin(self) -> CrossOrigin | None:
        """The rules for scripts of other origins that read the gateway's own answers; ``None``: nothing is added."""
        return self.cors.rules(self.idempotency.header, *(route.header for route in self.routes if route.header))

    @property
    def cache_scheme(self) -> str:
        """The scheme of the cache's URL."""
        return scheme_of(self.cache)

    @property
    def cache_is_shared(self) -> bool:
        """Whether several processes see the same records, which outlast each of them."""
        return self.cache_scheme not in IN_PROCESS_SCHEMES


def redact(url: str) -> str:
    """``url`` as it may be printed: without a user, a password or a query, which all may hold credentials.

    Of one with an @ behind its host the scheme alone: others than we take what is before it for a password with a slash in it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not a URL)"
    if not parts.scheme:
        return "(not a URL)"
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{parts.scheme}://(left out)"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
