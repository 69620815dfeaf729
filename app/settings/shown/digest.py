"""The digest of a configuration, by which operators see what runs: in the log, in a metric, among the policy.

It is made of all settings in effect, defaults included, and shows nothing of a secret, since everybody may see it:

- of a secret there is its check value, a digest keyed with it; of encryption keys their ids;
- of URLs there is what may be printed: neither a user, nor a password, nor a query;
- operators' tokens stand in the settings as digests of 32 random bytes, and count as they are.
"""

import json
from hashlib import blake2b

from oncegate.app.settings.gateway import GatewaySettings, redact
from oncegate.middleware.rules.checks.secret_check import check_values

DIGEST_BYTES = 6
"""Twelve hexadecimal digits: enough to tell the configurations of one gateway apart."""


def settings_digest(settings: GatewaySettings) -> str:
    """The digest of ``settings``."""
    shown = settings.model_dump(mode="json")
    shown["cache"] = redact(settings.cache)
    shown["ops_database"] = redact(settings.ops_database)
    if settings.jwt is not None and "://" in settings.jwt.jwks:
        shown["jwt"]["jwks"] = redact(settings.jwt.jwks)
    shown["secret"] = check_values(settings.digests()) if settings.secret else []
    shown["encryption_keys"] = [key.partition(":")[0] for key in settings.encryption_keys]
    return blake2b(json.dumps(shown, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()
