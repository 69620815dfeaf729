"""The changes of a configuration: which can be in effect without a restart."""

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.faults import line_of
from oncegate.app.settings.loading.origins import Origins
from oncegate.app.settings.loading.sources import ConfigurationError
from oncegate.middleware.rules.checks.secret_check import other_secret_line

AFTER_RESTART: Final = (
    "host",
    "port",
    "ops_port",
    "workers",
    "cache",
    "cache_timeout",
    "memory_limit",
    "namespace",
    "sample_records",
    "access_log",
    "access_log_file",
    "tracing",
)
"""Settings of what a process has had since its start: sockets, memory that workers share, the cache and what is there."""


def in_effect(running: GatewaySettings, read: GatewaySettings) -> tuple[GatewaySettings, tuple[str, ...]]:
    """The settings that can take the place of ``running``, and those of ``read`` that keep their values until a restart.

    Raises `ConfigurationError` where ``read`` leaves out a step of a rotation, or doesn't hold together with what is kept.
    """
    wait = [name for name in AFTER_RESTART if getattr(read, name) != getattr(running, name)]
    if bool(read.encryption_keys) != bool(running.encryption_keys):
        wait.append("encryption_keys")  # the cache's connections were made for the one or for the other
    else:
        _check_encryption(running.encryption_keys, read.encryption_keys)
    if bool(read.tls_cert) != bool(running.tls_cert):
        wait += ["tls_cert", "tls_key"]  # the ports speak it, or don't
    _check_secrets(running, read)
    if not wait:
        return read, ()
    values = {name: getattr(read, name) for name in GatewaySettings.model_fields}
    values |= {name: getattr(running, name) for name in wait}
    try:
        settings = GatewaySettings(**values)
    except ValidationError as error:
        raise ConfigurationError(
            f"{line_of(error, Origins({}, {}, {}))}, while these have their former values, until a restart: {', '.join(wait)}"
        ) from None
    origins, before = read.origins, running.origins
    if origins is not None and before is not None:
        settings.come_from(origins.keeping(wait, before))
    return settings, tuple(wait)


def _check_encryption(running: Sequence[str], read: Sequence[str]) -> None:
    """Refuse keys by which a process that has switched would encrypt what one that has not can't read."""
    if read and read[0] not in ("none", *running):
        raise ConfigurationError(
            "encryption_keys: the first one was not in use before: what it encrypts could not be read where it is not known "
            "yet; put it behind the others, reload everywhere, then put it first"
        )


def _check_secrets(running: GatewaySettings, read: GatewaySettings) -> None:
    """Only the next step of a rotation, or the one before, can run beside what is in effect."""
    before, after = _secrets(running), _secrets(read)
    if before[0] in after and after[0] in before:
        return
    if not set(before) & set(after):
        raise ConfigurationError(f"cache: {other_secret_line(running.namespace)}")
    raise ConfigurationError(
        "secret: a step of its rotation is left out: the first one has to be in use already, and the former first one has to "
        "stay in use (docs/operations.md, Changing the secret)"
    )


def _secrets(settings: GatewaySettings) -> tuple[str, ...]:
    """The secrets as a list of one or two; ``none``: no secret."""
    return settings.secret if isinstance(settings.secret, tuple) else (settings.secret or "none",)
