"""Certificates for tests: an authority of the test's own, and files as settings name them."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

NAME = "localhost"


class Authority:
    """An authority whose files are in ``folder``. ``ca`` is the path of its own certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trusted = trustme.CA()
        self.ca = folder / "ca.pem"
        self._trusted.cert_pem.write_to_path(str(self.ca))
        self._count = 0

    def issue(self, *, days: float | None = None, name: str = NAME) -> tuple[Path, Path]:
        """A new certificate for this machine and its key. ``days``: until its end, before now perhaps."""
        self._count += 1
        cert, key = self._folder / f"cert-{self._count}.pem", self._folder / f"key-{self._count}.pem"
        ends = None if days is None else datetime.now(UTC) + timedelta(days=days)
        issued = self._trusted.issue_cert(name, "127.0.0.1", not_after=ends)
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        key.touch(0o600)
        key.write_bytes(issued.private_key_pem.bytes())
        return cert, key

    def client(self) -> ssl.SSLContext:
        """What a client verifies by."""
        return ssl.create_default_context(cafile=str(self.ca))

    def server(self) -> ssl.SSLContext:
        """What a server of the test's speaks by, which wants a certificate of this authority from its clients."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(*self.issue())
        context.verify_mode = ssl.CERT_REQUIRED
        return context
