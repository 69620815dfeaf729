"""`JwtSettings`: what makes a token one whose claims name a caller."""

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, GetPydanticSchema, StringConstraints, field_validator

from oncegate.middleware.rules.settings import FieldName, InAList, StrictSettings

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256", "HS384", "HS512"
]
"""Of RFC 7518 section 3.1 and RFC 8037, but for ``none``, which there is no way to allow."""
SIGNATURES = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Those with a public key; the others have one that must not be known, and are for who names them."""
Algorithms = Annotated[
    Sequence[str],
    GetPydanticSchema(lambda _, handler: handler(Annotated[tuple[Algorithm, ...], Field(min_length=1)])),
]
_Texts = Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], InAList]
Texts = Annotated[Sequence[str], GetPydanticSchema(lambda _, handler: handler(_Texts))]


class JwtSettings(StrictSettings):
    """By what a token is verified before its claims count, for a ``scope`` such as ``["jwt:iss", "jwt:sub"]``."""

    model_config = ConfigDict(hide_input_in_errors=True)

    jwks: str = Field(
        min_length=1,
        repr=False,
        description="the keys that tokens are signed with (RFC 7517): a file, or a URL of https:// or http://",
    )
    issuer: str = Field(default="", description="what `iss` has to be; empty: it isn't looked at")
    audience: Texts = Field(default=(), description="`aud` has to name one of these; empty: it isn't looked at")
    algorithms: Algorithms = Field(
        default=SIGNATURES,
        description="how tokens may be signed, each by keys that are for it; HS256, HS384, HS512: only where named here",
    )
    header: FieldName = Field(
        default="Authorization", description="where the token is, after `Bearer`; in another header also without"
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
