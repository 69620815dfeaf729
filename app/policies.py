"""The rules of a gateway, made of its settings, and what metrics know of them."""

from collections.abc import Sequence

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.rules.policies import Policies
from oncegate.middleware.rules.policy import TOKEN_HEADER


def gateway_policies(settings: GatewaySettings) -> Policies:
    """The rules of the gateway for ``settings``."""
    header = settings.jwt.header if settings.jwt is not None else TOKEN_HEADER
    return Policies(settings.idempotency, settings.routes, header)


def labels_of(policies: Policies) -> tuple[list[tuple[str, Sequence[str]]], list[str]]:
    """The labels of metrics: routes with their methods; those of them whose commands are submitted."""
    return (
        [(policy.route, methods) for policy, methods in policies.with_methods()],
        [policy.route for policy in policies.all() if policy.submission is not None],
    )


def shares(policies: Policies) -> dict[str, tuple[float, bool]]:
    """The percent of the keys that is under enforcement, and whether the rest is observed, by the routes' patterns."""
    shares: dict[str, tuple[float, bool]] = {}
    for policy in policies.all():
        percent, is_shadowed = shares.get(policy.route, (100.0, False))  # a pattern may have a route for each method
        settings = policy.settings
        shares[policy.route] = min(percent, settings.enforce), is_shadowed or settings.shadow
    return shares
