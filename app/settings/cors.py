"""The settings ``[cors]``: which origins' scripts, in browsers, may read what the gateway answers itself."""

from typing import Annotated

from pydantic import Field, model_validator

from oncegate.middleware.http.cors import EXPOSED_HEADERS, CrossOrigin
from oncegate.middleware.rules.setting_types import InAList
from oncegate.middleware.rules.spelling import Spelling
from oncegate.middleware.rules.strict_settings import StrictSettings

Origin = Annotated[
    str,
    Spelling(
        r"\*|[a-z][a-z0-9+.-]*://[a-z0-9._~\[\]:-]+",
        'an origin as browsers write it, without a path: "https://shop.example"; or "*"',
    ),
]
"""An origin as browsers write it (RFC 6454 section 6.1): in lower case, without a path, without the scheme's own port."""


class CorsSettings(StrictSettings):
    """Without ``origins``, nothing is added to any answer."""

    origins: Annotated[tuple[Origin, ...], InAList] = Field(
        default=(), description='those whose scripts may read answers: `["https://shop.example"]`; `["*"]`: any'
    )
    credentials: bool = Field(
        default=False, description="scripts may read answers also where the browser sends its cookies along"
    )

    @model_validator(mode="after")
    def _named(self) -> "CorsSettings":
        if self.credentials and "*" in self.origins:
            raise ValueError('credentials: list the origins by name, not "*"')
        return self

    def rules(self, *key_headers: str) -> CrossOrigin | None:
        """The rules, ``None`` where there is nothing to add. Scripts may read what is added here, ``key_headers`` included."""
        exposed = dict.fromkeys((*EXPOSED_HEADERS, "Location", *key_headers))
        return CrossOrigin(self.origins, exposed=exposed, credentials=self.credentials) if self.origins else None
