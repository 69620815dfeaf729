"""`JwtSettings`: what makes a token one whose claims name a caller."""

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, GetPydanticSchema, StringConstraints, field_validator

from oncegate.middleware.rules.setting_types import FieldName, InAList
from oncegate.middleware.rules.strict_settings import StrictSettings

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]
"""The algorithms of RFC 7518 section 3.1 and RFC 8037, but for ``none``, which there is no way to allow."""
SIGNATURES = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""The algorithms with a public key; the others have one that must not be known, and are for who names them."""
Algorithms = Annotated[
    Sequence[str],
    GetPydanticSchema(lambda _, handler: handler(Annotated[tuple[Algorithm, ...], Field(min_length=1), InAList])),
]
_Texts = Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], InAList]
Texts = Annotated[Sequence[str], GetPydanticSchema(lambda _, handler: handler(_Texts))]


class JwtSettings(StrictSettings):
    """Rules by which a token is verified before its claims count, for a ``scope`` such as ``["jwt:iss", "jwt:sub"]``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    jwks: str = Field(
        min_length=1,
        repr=False,
        description="the keys that tokens are signed with (RFC 7517): a file, or a URL of https:// or http://",
    )
    issuer: str = Field(default="", description="the `iss` that a token must have; empty: it isn't looked at")
    audience: Texts = Field(
        default=(), description="a token's `aud` has to name one of these; empty: it isn't looked at"
    )
    algorithms: Algorithms = Field(
        default=SIGNATURES,
        description="how tokens may be signed, each by keys that are for it; HS256, HS384 and HS512 only where named here",
    )
    header: FieldName = Field(
        default="Authorization",
        description="the header with the token, after `Bearer`; another one than Authorization may have it alone",
    )

    @field_validator("jwks")
    @classmethod
    def _readable(cls, value: str) -> str:
        parts = urlsplit(value)
        if "://" in value and (not is_url(value) or not parts.hostname or parts.username is not None):
            raise ValueError("must be a file, or a URL of https:// or http:// without a user's name")
        return value


def is_url(jwks: str) -> bool:
    """Whether it is fetched, not read."""
    return jwks.lower().startswith(("https://", "http://"))
