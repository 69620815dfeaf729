"""Settings that are allowed and probably not meant."""

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.middleware.tokens.verifier import all_claims


def settings_advice(settings: GatewaySettings) -> list[str]:
    """Those that there are, a line each, for the log at start."""
    lines = _on_tokens(settings)
    if settings.cache_is_shared:
        if settings.idempotency.scope is None:
            lines.append(
                "idempotency.scope is not set: callers are told apart by Authorization alone; those known by a "
                "client certificate would share keys, those by a cookie are refused, and signatures that change never match; "
                'where tokens are JWTs, a retry with a refreshed one is executed again: scope = ["jwt:iss", "jwt:sub"]'
            )
        if settings.namespace == "default":
            lines.append("namespace is not set: on a shared cache each service needs one of its own")
    return lines + _on_shadows(settings)


def _on_shadows(settings: GatewaySettings) -> list[str]:
    rules = [
        settings.idempotency,
        *(route.settings(settings.idempotency) for route in settings.routes if route.methods),
    ]
    if settings.log_level in ("debug", "info") or not any(each.shadow and each.enforce < 100 for each in rules):
        return []
    return [
        f'shadow is on and log_level is "{settings.log_level}": what is observed is logged at info, so `oncegate shadow report` '
        "would find nothing"
    ]


def _on_tokens(settings: GatewaySettings) -> list[str]:
    if settings.jwt is None:
        return []
    if not all_claims(settings.idempotency, settings.routes):
        return ['jwt is set, and no scope names a claim: nobody is known by one; scope = ["jwt:iss", "jwt:sub"]']
    lines = []
    if not (settings.jwt.issuer and settings.jwt.audience):
        lines.append(
            "jwt.issuer or jwt.audience is not set: a token that was made for another service names a caller here, too"
        )
    if settings.jwt.jwks.lower().startswith("http://"):
        lines.append(
            "jwt.jwks is fetched in clear: who can change it on its way can name any caller; https:// prevents it"
        )
    return lines
