"""The verifier of tokens, where a scope names a claim; PyJWT is loaded nowhere else."""

from collections.abc import Sequence

from oncegate.middleware.rules.settings import IdempotencySettings, Route, claims_of
from oncegate.middleware.tokens.settings import JwtSettings
from oncegate.middleware.tokens.verifier import Tokens


def all_claims(settings: IdempotencySettings, routes: Sequence[Route]) -> list[str]:
    """The claims that any scope names."""
    rules = [settings, *(route.settings(settings) for route in routes if route.scope is not None)]
    return list(dict.fromkeys(claim for each in rules for claim in claims_of(each)))


def open_tokens(jwt: JwtSettings | None, settings: IdempotencySettings, routes: Sequence[Route]) -> Tokens | None:
    """``None`` where no scope names a claim. Raises ``TypeError``, ``ValueError``: see `Tokens`."""
    if jwt is not None and not isinstance(jwt, JwtSettings):
        raise TypeError(f"jwt is a {type(jwt).__qualname__}: give JwtSettings(jwks=...)")
    claims = all_claims(settings, routes)
    if not claims:
        return None
    if jwt is None:
        raise ValueError(f"scope names a claim (jwt:{claims[0]}) of a token that nothing verifies: give jwt")
    return Tokens(jwt, claims)
