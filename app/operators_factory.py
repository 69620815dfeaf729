"""Builds what operators have of a gateway, from its settings: the app under the prefix, records, the consumers' database."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from oncegate.app.gateway.lasting import Lasting
from oncegate.app.http1 import TrustedPeers
from oncegate.app.operators.audit_lines import AuditLines
from oncegate.app.operators.console.sessions import Sessions
from oncegate.app.operators.pages.bearer import Bearer
from oncegate.app.operators.pages.for_callers.policy import policy_document, published
from oncegate.app.operators.pages.operations import guarded
from oncegate.app.operators.records.records import Records
from oncegate.app.operators.reloading import Reload
from oncegate.app.operators.standing import Standing
from oncegate.app.policies import gateway_policies
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.app.settings.shown.digest import settings_digest
from oncegate.app.telemetry.metrics import Metrics
from oncegate.cache.store import Cache, KeepsAudit
from oncegate.middleware.http.asgi import App
from oncegate.middleware.rules.checks.address_check import address_rules
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.tokens.verifier import Tokens

if TYPE_CHECKING:
    from oncegate.app.operators.database.database import OperatorsDatabase


def operators_app(
    settings: GatewaySettings,
    policies: Policies,
    lasting: Lasting,
    operators: Bearer | None,
    sessions: Sessions,
    tokens: Tokens | None,
    reload: Reload | None,
    database: "OperatorsDatabase | None",
) -> App:
    """The app that answers under the prefix. It loads FastAPI, which takes some tenths of a second."""
    from oncegate.app.operators.console.console import Console
    from oncegate.app.operators.console.sources import Sources
    from oncegate.app.operators.pages.api import create_app
    from oncegate.app.operators.pages.for_callers.commands import CommandStatuses

    cache, metrics, readiness = lasting.cache, lasting.metrics, lasting.readiness
    records = create_records(settings, cache)
    audit = AuditLines(cache, settings.namespace) if isinstance(cache, KeepsAudit) else None
    statuses, streams = None, {}
    consumers = settings.consumers
    if consumers:
        from oncegate.app.operators.letters.dead_letters import commands_of, operators_client  # loads redis-py's client

        client = lasting.streams = lasting.streams or operators_client(settings)
        streams = {name: commands_of(settings, client, cache, name, consumers[name]) for name in consumers}
        *routes, default = policies.all()
        statuses = CommandStatuses(
            cache,
            settings.namespace,
            policies=[policy for policy in routes if policy.submission is not None],
            consumers=list(consumers.values()),
            rules=default,
            digests=settings.digests(),
            operators=operators,
            audit=audit,
            tokens=tokens,
            draining=lambda: readiness.draining,
        )
    rules = policies.with_methods(), settings_digest(settings), metrics.matches.has_matched
    standing = Standing(settings, cache, readiness)
    sources = Sources(
        records=records,
        readiness=readiness,
        policy=partial(policy_document, *rules),
        recent=lasting.recent,
        refusals=lasting.refusals,
        gauges=metrics.of_the_moment,
        streams=streams,
        standing=standing,
        audit=audit,
        database=database,
        own_port=bool(settings.ops_port),
    )
    return create_app(
        readiness=readiness,
        metrics=metrics.page,
        policy=partial(published, *rules),
        reload=reload,
        operators=operators,
        records=records,
        statuses=statuses,
        streams=streams,
        audit=audit,
        recent=lasting.recent,
        standing=standing,
        database=database,
        refusals=lasting.refusals,
        cors=settings.cross_origin(),
        guarded=guarded(settings.public, settings.ops_port),
        console=Console(settings.prefix, sources, sessions, operators, TrustedPeers(settings.trusted_proxies)),
        unshown=policies.unshown,
    )


def create_records(settings: GatewaySettings, cache: Cache) -> Records:
    """The operators' access to the records of the gateway for ``settings``."""
    policies = gateway_policies(settings)
    return Records(cache, settings.namespace, policies.all(), settings.digests(), address_rules(policies))


def operators_database(settings: GatewaySettings) -> "OperatorsDatabase | None":
    """The consumers' database for operators, if one is given. Raises `ConfigurationError`. Nothing is connected to here."""
    if not settings.ops_database:
        return None
    try:
        from oncegate.app.operators.database.database import OperatorsDatabase

        return OperatorsDatabase(settings.ops_database, settings.digests())
    except ImportError as error:
        raise ConfigurationError(
            f"ops_database: {error.name} is not installed: pip install oncegate[sql], and the driver"
        ) from None
    except ValueError:
        raise ConfigurationError("ops_database: is no URL that SQLAlchemy takes; is the port a number?") from None


def sampling(settings: GatewaySettings, cache: Cache, metrics: Metrics) -> Callable[[], Awaitable[None]] | None:
    """Counts unknown records now and then, for metrics; ``None`` where the settings ask for none."""
    if not settings.sample_records:
        return None
    from oncegate.app.operators.records.sampling import sample

    return partial(sample, create_records(settings, cache), settings.sample_records, metrics.sampled)
