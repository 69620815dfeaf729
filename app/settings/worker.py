"""The settings of ``oncegate worker``: the table ``[worker]`` of the TOML file. The gateway ignores them."""

from typing import Annotated

from pydantic import ConfigDict, Field, field_validator, model_validator

from oncegate.app.settings.upstream_url import UpstreamAddress
from oncegate.middleware.rules.setting_types import FieldName, Name, Seconds
from oncegate.middleware.rules.strict_settings import StrictSettings


class WorkerSettings(StrictSettings):
    """A worker's settings: its stream, its executor and its pace. Times are in seconds.

    Its lease, its time-outs and how long outcomes are kept come from ``[idempotency]``.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    stream: Name = Field(default="commands", description="the command stream to read")
    consumer: Name | None = Field(
        default=None, description="the name of the consumer's group, and of its records; by default the stream's name"
    )
    handler: str = Field(default="", description="the function that executes a command: `package.module:function`")
    forward: str = Field(
        default="",
        description="the service that commands are forwarded to, in the place of a handler: http://, https://, unix://",
    )
    forward_headers: dict[FieldName, str] = Field(
        default_factory=dict,
        repr=False,
        description="headers of each forwarded command: the worker's own credentials, say",
    )
    name: Name | None = Field(
        default=None,
        description="this worker's name in dead letters and in records; by default the host's",
    )
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="the address that metrics are served on")
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        default=0, description="the port for metrics and healthz; 0: none"
    )
    concurrency: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="commands executed at once, per process"
    )
    max_attempts: Annotated[int, Field(ge=1)] = Field(
        default=10, description="attempts at a command before it becomes a dead letter"
    )
    dead_letter_ttl: Seconds = Field(default=2592000, description="how long a dead letter is kept: 30 days")
    inbox_cleanup_interval: Annotated[float, Field(ge=0, le=31536000)] = Field(
        default=0,
        description="seconds between two rounds in which the handler's inbox forgets old markers; 0: it forgets none",
    )

    @field_validator("handler")
    @classmethod
    def _named(cls, value: str) -> str:
        module, colon, function = value.partition(":")
        if value and not (module and colon and function):
            raise ValueError("is named package.module:function")
        return value

    @field_validator("forward")
    @classmethod
    def _forwardable(cls, value: str) -> str:
        if value:
            UpstreamAddress.parse(value)
        return value

    @field_validator("forward_headers")
    @classmethod
    def _on_one_line(cls, value: dict[str, str]) -> dict[str, str]:
        if any(not text.isascii() or not text.isprintable() for text in value.values()):
            raise ValueError("values are printable ASCII")
        return value

    @model_validator(mode="after")
    def _one_of_both(self) -> "WorkerSettings":
        if self.handler and self.forward:
            raise ValueError("handler and forward exclude each other")
        return self

    @property
    def consumer_name(self) -> str:
        """The consumer's name, given or not."""
        return self.consumer or self.stream
