"""Certificates and their keys, read from files: TLS contexts for what the gateway listens on, and for its upstream.

TLS 1.2 and newer; what is spoken inside of it is HTTP/1.1. A certificate is read anew by making another context
(`ListenerTls.prepare`): connections that are open go on by theirs, and files that can't be used change nothing.
"""

import logging
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Final

from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError

log = logging.getLogger("oncegate.tls")

SOON_DAYS: Final = 14
"""A certificate that ends sooner should have been renewed by now: those that renew themselves do so 30 days before."""
_DAY: Final = 86400.0
_TIMES: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""By their tags in DER: UTCTime and GeneralizedTime, as RFC 5280 section 4.1.2.5 has them."""
_VERSION: Final = 0xA0


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate (with its chain) and its key, PEM, by the ``settings`` that name them."""

    cert: str
    key: str
    settings: tuple[str, str]

    def load(self, context: ssl.SSLContext) -> float:
        """Have ``context`` use it; returns until when it is valid, in seconds since 1970.

        Raises `ConfigurationError` where it can't be used. One that has ended is used: clients say so, and the log.
        """
        text = self._text(0, "CERTIFICATE-----", "certificate")
        self._text(1, "PRIVATE KEY-----", "private key")
        try:
            context.load_cert_chain(self.cert, self.key, password=self._refuse_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigurationError(
                    f"{self.settings[1]}: {self.key} is not the key of the certificate in {self.cert}"
                ) from None
            reason = (error.reason or "malformed").lower().replace("_", " ")
            raise ConfigurationError(f"{' and '.join(self.settings)}: can't be used: {reason}") from None
        return _validity(text)[1]

    def advice(self) -> list[str]:
        """Advice about files that `load` took, a line each: allowed, and probably not meant."""
        begins, ends = _validity(Path(self.cert).read_text("latin-1"))
        name, lines = self.settings[0], []
        days = (ends - time()) / _DAY
        if begins > time():
            lines.append(f"{name}: {self.cert} is valid from {_day(begins)} on only; until then it is refused")
        if days < 0:
            lines.append(f"{name}: {self.cert} ended on {_day(ends)}, and is refused: renew it")
        elif days < SOON_DAYS:
            lines.append(f"{name}: {self.cert} ends on {_day(ends)}, in {int(days)} days: renew it")
        if stat.S_IMODE(Path(self.key).stat().st_mode) & stat.S_IRWXO:
            lines.append(
                f"{self.settings[1]}: {self.key} may be read by every user of this machine: chmod o= {self.key}"
            )
        return lines

    def _text(self, which: int, marked: str, kind: str) -> str:
        path = (self.cert, self.key)[which]
        try:
            text = Path(path).read_text("latin-1")
        except OSError as error:
            raise ConfigurationError(f"{self.settings[which]}: {path} can't be read: {error.strerror}") from None
        if marked not in text:
            raise ConfigurationError(f"{self.settings[which]}: {path} holds no {kind} (PEM)")
        return text

    def _refuse_password(self) -> str:
        raise ConfigurationError(
            f"{self.settings[1]}: {self.key} is encrypted, and nobody is there to type a password: decrypt it"
        )


class ListenerTls:
    """TLS as the gateway's ports speak it, by a ``context`` for the connections that begin from now on.

    ``ends`` is until when its certificate is valid, in seconds since 1970. Raises `ConfigurationError`.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.context, self.ends = _listening(certificate)

    @classmethod
    def of(cls, settings: GatewaySettings) -> "ListenerTls | None":
        """``None`` where the gateway speaks plain HTTP."""
        certificate = listener_certificate(settings)
        return None if certificate is None else cls(certificate)

    def prepare(self, settings: GatewaySettings) -> Callable[[], None]:
        """Read certificate and key anew; returns what puts them in place. Raises `ConfigurationError`."""
        certificate = listener_certificate(settings)
        if certificate is None:
            raise ConfigurationError("tls_cert: can't be taken away, nor given, without a restart")
        context, ends = _listening(certificate)

        def place() -> None:
            self.context, self.ends = context, ends
            for line in certificate.advice():
                log.warning("%s", line)

        return place


def _listening(certificate: Certificate) -> tuple[ssl.SSLContext, float]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _require(context)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context, certificate.load(context)


def upstream_context(ca_file: str | None, certificate: Certificate | None) -> ssl.SSLContext:
    """TLS to the upstream, which is verified; with a ``certificate`` of ours, perhaps.

    Raises `OSError` for ``ca_file``, `ConfigurationError` for the certificate.
    """
    context = ssl.create_default_context(cafile=ca_file)
    _require(context)
    if certificate is not None:
        certificate.load(context)
    return context


def listener_certificate(settings: GatewaySettings) -> Certificate | None:
    """The certificate that clients are shown."""
    return Certificate(settings.tls_cert, settings.tls_key, ("tls_cert", "tls_key")) if settings.tls_cert else None


def upstream_certificate(settings: GatewaySettings) -> Certificate | None:
    """The certificate that the upstream is shown."""
    names = ("upstream_cert", "upstream_key")
    return Certificate(settings.upstream_cert, settings.upstream_key, names) if settings.upstream_cert else None


def certificates(settings: GatewaySettings) -> list[Certificate]:
    """Those that are set."""
    return [each for each in (listener_certificate(settings), upstream_certificate(settings)) if each is not None]


def _require(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _validity(text: str) -> tuple[float, float]:
    """From when and until when the first certificate of a PEM file is valid (RFC 5280 section 4.1).

    Python's own ssl decodes only what it has verified, and no certificate that has ended is.
    """
    begin = text.index("-----BEGIN CERTIFICATE-----")
    der = ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----") + 25])
    _, at, _ = _element(der, 0)  # the certificate
    _, at, _ = _element(der, at)  # what of it is signed
    tag, _, end = _element(der, at)
    for _ in range(4 if tag == _VERSION else 3):  # version, which the first one doesn't have; number, algorithm, issuer
        tag, at, end = _element(der, at)
        at = end
    _, at, _ = _element(der, at)
    tag, at, end = _element(der, at)
    begins = _time(tag, der[at:end])
    tag, at, end = _element(der, end)
    return begins, _time(tag, der[at:end])


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """The tag of the element at a place, and where its content begins and ends."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    return der[at], begin, begin + length


def _time(tag: int, content: bytes) -> float:
    return datetime.strptime(content.decode("ascii"), _TIMES[tag]).replace(tzinfo=UTC).timestamp()
