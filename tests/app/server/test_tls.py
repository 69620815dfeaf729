"""TLS at the gateway's port, and a certificate of ours at the upstream's: on both loops, by clients of Python's and OpenSSL.

Rules of docs/contract.md: R9.12, R9.24, R9.28, R9.29, R9.30.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from oncegate.app.server import accept
from oncegate.app.settings.certificates import ListenerTls, certificates
from oncegate.app.settings.gateway import GatewaySettings
from oncegate.app.settings.loading.sources import ConfigurationError
from testing.certificates import Authority
from testing.tls_served import listening
from testing.upstreams import OK, Peer, Upstream, answering, closing_after
from tests.app.tunnelling import HANDSHAKE, NOISE, SWITCHING, Flood, Side, metric, until, within

GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def openssl(port: int, *options: str) -> str:
    """What ``openssl s_client`` says of a connection that it closes at once."""
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *options]
    done = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    shown, _ = await within(done.communicate())
    return str(shown.decode())


@pytest.mark.both_loops
async def test_requests_and_replays_over_tls(authority: Authority) -> None:
    body = NOISE * 8
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    async with (
        Upstream(answering(answer)) as upstream,
        listening(authority, upstream.url) as there,
        there.client() as client,
    ):
        for _ in range(2):
            done = await client.post("/payments", headers={"Idempotency-Key": "k"}, content=body)
            assert done.content == body
        assert done.headers["idempotent-replayed"] == "true"
        assert (await client.get("/a")).content == body
        assert (await client.get("/_oncegate/healthz")).status_code == 200
        assert upstream.requests[0].body == body
        assert upstream.requests[0].value("x-forwarded-proto") == "https"
        assert await metric(client, "tls_cert_ends_timestamp_seconds") == there.tls.ends


@pytest.mark.both_loops
async def test_a_response_that_ends_with_its_connection_ends_by_its_alert(authority: Authority) -> None:
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + NOISE
    async with Upstream(closing_after(answer)) as upstream, listening(authority, upstream.url) as there:
        side = Side(*await there.connect())
        side.writer.write(GET.replace(b"1.1", b"1.0"))
        assert (await side.rest()).endswith(NOISE)


@pytest.mark.both_loops
async def test_the_attempt_of_a_client_that_closes_is_finished(authority: Authority) -> None:
    goes_on = asyncio.Event()
    sent = b"POST /a HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nx"
    async with Upstream(answering(OK, after=goes_on)) as upstream, listening(authority, upstream.url) as there:
        leaves = Side(*await there.connect())
        leaves.writer.write(sent)
        await upstream.received(1)
        leaves.writer.close()
        goes_on.set()
        stays = Side(*await there.connect())
        stays.writer.write(sent.replace(b"Host: a", b"Host: a\r\nPrefer: wait=30"))
        assert b"idempotent-replayed: true" in await stays.head()
        assert await stays.take(2) == b"ok"
        stays.writer.close()
        assert upstream.arrivals == 1


@pytest.mark.both_loops
async def test_who_does_not_read_holds_up_who_sends(authority: Authority) -> None:
    """A response, and a tunnel; both are whole afterwards."""
    flood = Flood(64 * 1024 * 1024)

    async def behave(peer: Peer) -> None:
        request = await peer.request()
        if request.value("upgrade"):
            await peer.send(SWITCHING)
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % flood.size)
        flood.sent = 0
        await flood.pour(peer.writer)
        await peer.hang()

    async with Upstream(behave) as upstream, listening(authority, upstream.url) as there:
        for sent in (GET, HANDSHAKE):
            side = Side(*await there.connect())
            side.writer.write(sent)
            await side.head()
            assert await flood.stuck() < flood.size // 2
            size = 0
            while size < flood.size:
                size += len(await within(side.reader.read(1 << 20)))
            assert size == flood.size
            side.writer.close()


@pytest.mark.both_loops
async def test_a_tunnel_over_tls(authority: Authority) -> None:
    """Early bytes of both sides; the end of either."""
    saw_end = asyncio.Event()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING + NOISE)
        while data := await peer.reader.read(65536):
            await peer.send(data)
            if data.endswith(b"stop"):
                return
        saw_end.set()

    async with Upstream(behave) as upstream, listening(authority, upstream.url) as there, there.client() as client:
        ends = Side(*await there.connect())
        ends.writer.write(HANDSHAKE + NOISE + b"abc")
        await ends.head()
        assert await ends.take(2 * len(NOISE) + 3) == NOISE + NOISE + b"abc"
        ends.writer.close()
        await within(saw_end.wait())
        is_ended = Side(*await there.connect())
        is_ended.writer.write(HANDSHAKE + b"stop")
        assert (await is_ended.rest()).endswith(NOISE + b"stop")
        is_ended.writer.close()
        await until(client, "tunnels", lambda count: count == 0)


@pytest.mark.both_loops
async def test_what_was_sent_before_the_end_of_tls_arrives(authority: Authority) -> None:
    """Over TLS a close is of both directions: what the other side has not taken yet still goes to it."""
    sent, counted = NOISE * 100, asyncio.get_running_loop().create_future()

    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING)
        size = 0
        while data := await peer.reader.read(65_536):
            size += len(data)
            await asyncio.sleep(0.001)  # slower than who sends
        counted.set_result(size)

    async with Upstream(behave) as upstream, listening(authority, upstream.url) as there:
        side = Side(*await there.connect())
        side.writer.write(HANDSHAKE)
        await side.head()
        side.writer.write(sent)
        side.writer.close()
        assert await within(counted) == len(sent)


@pytest.mark.both_loops
async def test_a_stop_ends_tunnels_over_tls(authority: Authority) -> None:
    async def behave(peer: Peer) -> None:
        await peer.request()
        await peer.send(SWITCHING + NOISE)
        await peer.hang()

    async with Upstream(behave) as upstream:
        async with listening(authority, upstream.url) as there:
            side = Side(*await there.connect())
            side.writer.write(HANDSHAKE)
            await side.head()
            ending = asyncio.create_task(side.rest())
        assert await ending == NOISE
        side.writer.close()


async def test_old_protocols_are_refused(authority: Authority) -> None:
    """By a client that speaks them; that it does is seen at a server of its own kind."""
    weak = ("-cipher", "ALL:@SECLEVEL=0")
    old = authority.server()
    old.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        old.minimum_version = ssl.TLSVersion.TLSv1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with Upstream(answering(OK), tls=old) as upstream:
        for version, name in (("-tls1", "TLSv1"), ("-tls1_1", "TLSv1.1")):
            assert f"Protocol  : {name}\n" in await openssl(upstream.port, version, *weak)
    async with Upstream(answering(OK)) as upstream, listening(authority, upstream.url) as there:
        for version in ("-tls1", "-tls1_1"):
            shown = await openssl(there.port, version, *weak)
            assert "New, (NONE), Cipher is (NONE)" in shown
            assert "no peer certificate available" in shown
        for version, name in (("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")):
            shown = await openssl(there.port, version, "-alpn", "h2,http/1.1", "-CAfile", str(authority.ca))
            assert f"New, {name}" in shown
            assert "Verify return code: 0 (ok)" in shown
            assert "ALPN protocol: http/1.1" in shown
        async with there.client() as client:
            assert (await client.get("/a")).content == b"ok"


@pytest.mark.both_loops
@pytest.mark.parametrize(
    "sent", [b"", GET, b"\x16\x03\x01", bytes(100)], ids=["nothing", "plain HTTP", "a part", "noise"]
)
async def test_who_makes_no_handshake_is_closed(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    monkeypatch.setattr(accept, "HANDSHAKE_SECONDS", 0.2)
    async with Upstream(answering(OK)) as upstream, listening(authority, upstream.url) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.port)
        writer.write(sent)
        try:
            assert b"HTTP" not in await within(reader.read())
        except ConnectionError:
            pass
        finally:
            writer.close()
        async with there.client() as client:
            assert (await client.get("/a")).content == b"ok"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.both_loops
async def test_a_certificate_is_changed_under_load(authority: Authority) -> None:
    """No connection fails, new ones have the new certificate, those that are open go on; wrong files change nothing."""
    async with Upstream(answering(OK)) as upstream, listening(authority, upstream.url) as there:
        changes, over = 0, asyncio.Event()
        seen: set[bytes] = set()

        async def keep_requesting() -> int:
            count = 0
            while not over.is_set():
                side = Side(*await there.connect())
                shown = side.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                seen.add(shown)
                side.writer.write(GET * 2)
                for _ in range(2):
                    await side.head()
                    assert await side.take(2) == b"ok"
                side.writer.close()
                count += 1
            return count

        async def shown_now() -> bytes:
            side = Side(*await there.connect())
            side.writer.close()
            return bytes(side.writer.get_extra_info("ssl_object").getpeercert(binary_form=True))

        lasting = Side(*await there.connect())
        requesting = [asyncio.create_task(keep_requesting()) for _ in range(4)]
        current = there.settings
        for number in range(20):
            cert, key = authority.issue()
            if number % 2:
                _, key = authority.issue()
            current = current.model_copy(update={"tls_cert": str(cert), "tls_key": str(key)})
            before = await shown_now()
            if number % 2:
                with pytest.raises(ConfigurationError, match="is not the key of the certificate in"):
                    there.tls.prepare(current)
                assert await shown_now() == before
            else:
                there.tls.prepare(current)()
                changes += 1
                assert (
                    ssl.PEM_cert_to_DER_cert(cert.read_text().partition("-----END")[0] + "-----END CERTIFICATE-----\n")
                    == await shown_now()
                    != before
                )
        over.set()
        assert all(await asyncio.gather(*requesting))
        assert len(seen) > 1
        lasting.writer.write(GET)
        await lasting.head()
        lasting.writer.close()


async def test_the_upstream_is_shown_our_certificate(authority: Authority) -> None:
    cert, key = authority.issue(name="gateway.example")
    given = {"upstream_ca": str(authority.ca), "upstream_cert": str(cert), "upstream_key": str(key)}
    shown: list[Any] = []

    async def behave(peer: Peer) -> None:
        await peer.request()
        shown.append(peer.writer.get_extra_info("peercert"))
        await peer.send(OK)

    async with Upstream(behave, tls=authority.server()) as upstream:
        async with listening(authority, upstream.url, **given) as there, there.client() as client:
            assert (await client.get("/a")).content == b"ok"
        async with listening(authority, upstream.url, upstream_ca=str(authority.ca)) as there, there.client() as client:
            assert (await client.get("/a")).status_code == 502
    assert [name for kind, name in shown[0]["subjectAltName"]][:1] == ["gateway.example"]


# -- files ------------------------------------------------------------------------------------------------------------------


def given(cert: Path, key: Path, **more: Any) -> GatewaySettings:
    return GatewaySettings(upstream="http://127.0.0.1:9", tls_cert=str(cert), tls_key=str(key), **more)


def test_files_that_can_not_be_used_are_named(authority: Authority, tmp_path: Path) -> None:
    (cert, key), (other, other_key) = authority.issue(), authority.issue()
    nothing, empty, garbage = tmp_path / "nothing", tmp_path / "empty", tmp_path / "garbage"
    empty.touch()
    garbage.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    locked = tmp_path / "locked"
    locked.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
    for wrong_cert, wrong_key, line in [
        (nothing, key, f"tls_cert: {nothing} can't be read: No such file or directory"),
        (cert, nothing, f"tls_key: {nothing} can't be read: No such file or directory"),
        (empty, key, f"tls_cert: {empty} holds no certificate (PEM)"),
        (key, key, f"tls_cert: {key} holds no certificate (PEM)"),
        (cert, cert, f"tls_key: {cert} holds no private key (PEM)"),
        (cert, other_key, f"tls_key: {other_key} is not the key of the certificate in {cert}"),
        (other, key, f"tls_key: {key} is not the key of the certificate in {other}"),
        (garbage, key, "tls_cert and tls_key: can't be used: "),
        (cert, locked, "tls_"),
    ]:
        with pytest.raises(ConfigurationError) as caught:
            ListenerTls.of(given(wrong_cert, wrong_key))
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)


def test_a_certificate_and_its_key_belong_together() -> None:
    for settings, line in [
        ({"tls_cert": "a"}, "tls_key: is missing, and tls_cert is set: give both"),
        ({"tls_key": "a"}, "tls_cert: is missing, and tls_key is set: give both"),
        ({"upstream_cert": "a"}, "upstream_key: is missing"),
        ({"upstream_cert": "a", "upstream_key": "b"}, "upstream_cert: is for an https:// upstream"),
    ]:
        with pytest.raises(ValueError, match=line):
            GatewaySettings(upstream="http://127.0.0.1:9", **settings)  # type: ignore[arg-type]  # all are texts


def test_what_is_probably_not_meant_is_advice(authority: Authority) -> None:
    def advice(days: float | None, mode: int = 0o600) -> list[str]:
        cert, key = authority.issue(days=days)
        key.chmod(mode)
        settings = given(cert, key)
        assert ListenerTls.of(settings) is not None
        (certificate,) = certificates(settings)
        return [line.replace(str(cert), "CERT").replace(str(key), "KEY") for line in certificate.advice()]

    assert advice(None) == []
    assert advice(40) == []
    (ended,) = advice(-1.5)
    assert ended.startswith("tls_cert: CERT ended on 20")
    (soon,) = advice(3.5)
    assert soon.startswith("tls_cert: CERT ends on 20")
    assert soon.endswith(", in 3 days: renew it")
    assert advice(None, 0o640) == []
    assert advice(None, 0o644) == ["tls_key: KEY may be read by every user of this machine: chmod o= KEY"]


def test_the_end_of_a_certificate_is_read_as_openssl_reads_it(authority: Authority) -> None:
    for days in (-400.0, 5.0, 9000.0, 40_000.0):
        cert, key = authority.issue(days=days)
        tls = ListenerTls.of(given(cert, key))
        assert tls is not None
        decoded = ssl._ssl._test_decode_cert(str(cert))  # type: ignore[attr-defined]  # what Python's own tests read one by
        assert tls.ends == ssl.cert_time_to_seconds(decoded["notAfter"])


def test_a_certificate_can_not_be_given_or_taken_away_without_a_restart(authority: Authority) -> None:
    tls = ListenerTls.of(given(*authority.issue()))
    assert tls is not None
    assert ListenerTls.of(GatewaySettings(upstream="http://127.0.0.1:9")) is None
    with pytest.raises(ConfigurationError, match="without a restart"):
        tls.prepare(GatewaySettings(upstream="http://127.0.0.1:9"))
