"""Images that are downloaded: from allowed hosts alone, bounded in bytes and time."""

import shutil
import socket
import ssl
import subprocess
import time

import pytest
from support.file_hosts import answering, serving
from support.tiny_vision import picture

from outrider.errors import ConfigError, RequestError
from outrider.frontend.images import remote_image
from outrider.frontend.images.given_image import fetched, image_at, open_image
from outrider.frontend.images.image_limits import ImageLimits, parse_limits
from outrider.frontend.images.remote_image import RemoteImage, fetch_image

HERE = ("127.0.0.1",)
LIMITS = ImageLimits(allowed_domains=HERE)
QUICK_S = 0.3


def png(image, folder):
    image.save(folder / "a.png")
    return (folder / "a.png").read_bytes()


def sending(content, status=200, **headers):
    """An answer with these bytes."""

    def answer(handler):
        handler.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            handler.send_header(name.replace("_", "-"), str(value))
        handler.end_headers()
        handler.wfile.write(content)

    return answering(answer)


def test_an_image_of_an_allowed_host_is_read(tmp_path):
    content = png(picture(1, 5, 4), tmp_path)
    with serving(sending(content)) as address:
        given = image_at(f"{address}/a.png?size=5", LIMITS)
        assert given.is_remote  # nothing has been downloaded yet
        assert open_image(fetched(given)).size == (5, 4)


def test_without_a_list_of_hosts_nothing_is_downloaded():
    for url in ("http://127.0.0.1/a.png", "https://example.com/a.png"):
        with pytest.raises(RequestError, match="images are not downloaded; send the image itself"):
            image_at(url, ImageLimits())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://example.com/a.png", "from example.com; send .* --allowed-media-domains"),
        ("http://127.0.0.1.example.com/a.png", "from 127.0.0.1.example.com"),
        ("http://127.0.0.1@example.com/a.png", "without a password"),
        ("http://user:word@127.0.0.1/a.png", "without a password"),
        ("http:///a.png", "https://host/path"),
        ("http://127.0.0.1:99999/a.png", "not valid"),
        ("http://[::1/a.png", "not valid"),
        ("ftp://127.0.0.1/a.png", "are not downloaded"),
    ],
)
def test_other_addresses_are_refused(url, reason):
    with pytest.raises(RequestError, match=reason):
        image_at(url, LIMITS)


def test_a_name_that_stands_for_a_private_address_is_refused():
    """The address itself may be named; a name can be changed by others."""
    with serving(sending(b"secret")) as address:
        port = address.rpartition(":")[2]
        with pytest.raises(RequestError, match="which is not public"):
            fetch_image(RemoteImage(f"http://localhost:{port}/", ("localhost",)))


def test_the_address_that_was_checked_is_the_one_that_is_used(monkeypatch):
    """A name that is public when it is checked and private when it is used reaches nothing."""
    seen = []

    def looked_up(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", port))]

    def connect(address, timeout):
        seen.append(address)
        raise OSError("there is no network in tests")

    monkeypatch.setattr(remote_image.socket, "getaddrinfo", looked_up)
    monkeypatch.setattr(remote_image.socket, "create_connection", connect)
    with pytest.raises(RequestError, match=r"cannot be downloaded from images\.example"):
        fetch_image(RemoteImage("https://images.example.com/a", ("images.example.com",)))
    assert seen == [("93.184.216.34", 443)]


@pytest.mark.parametrize("target", ["http://example.com/x", "http://localhost/x", "file:///x", ""])
def test_a_redirect_to_another_host_is_refused(target):
    headers = {"Location": target} if target else {}
    with (
        serving(sending(b"", status=302, **headers)) as address,
        pytest.raises(RequestError, match=r"not downloaded from|https://host/path|status 302"),
    ):
        fetch_image(RemoteImage(f"{address}/a", HERE))


def test_a_redirect_within_the_list_is_followed_a_few_times(tmp_path):
    content = png(picture(1, 5, 4), tmp_path)
    with (
        serving(sending(content)) as last,
        serving(sending(b"", status=301, Location=f"{last}/b")) as first,
    ):
        assert fetch_image(RemoteImage(f"{first}/a", HERE)) == content
    with (
        serving(sending(b"", status=307, Location="/again")) as loop,
        pytest.raises(RequestError, match="more than 3 others"),
    ):
        fetch_image(RemoteImage(f"{loop}/a", HERE))


def test_a_file_that_is_too_long_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(remote_image, "MAX_BYTES", 1000)
    for length in (1001, 10**12):
        with (
            serving(sending(bytes(2000), **{"Content-Length": length})) as address,
            pytest.raises(RequestError, match="MiB; compress"),
        ):
            fetch_image(RemoteImage(f"{address}/a", HERE))


def test_a_status_other_than_ok_is_refused():
    with (
        serving(sending(b"no", status=404)) as address,
        pytest.raises(RequestError, match="status 404"),
    ):
        fetch_image(RemoteImage(f"{address}/a", HERE))


def dripping(is_header):
    """An answer of one byte now and then, for much longer than a test waits."""

    def answer(handler):
        if not is_header:
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
        try:
            for _ in range(200):
                handler.wfile.write(b"a")
                handler.wfile.flush()
                time.sleep(QUICK_S / 5)
        except OSError:
            pass  # the client has gone

    return answering(answer)


@pytest.mark.parametrize("is_header", [True, False])
@pytest.mark.fast_cases(2)
def test_a_host_that_sends_a_byte_now_and_then_is_not_waited_for(is_header):
    with (
        serving(dripping(is_header)) as address,
        pytest.raises(RequestError, match=r"cannot be downloaded from 127\.0"),
    ):
        fetch_image(RemoteImage(f"{address}/a", HERE), timeout_s=QUICK_S)


@pytest.fixture
def certificate(tmp_path):
    """Files of a key and of a certificate for this address, which no system trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    files = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", files[0], "-out", files[1]]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("is_trusted", [True, False])
def test_certificates_are_checked(tmp_path, certificate, monkeypatch, is_trusted):
    content, (key, own) = png(picture(1, 5, 4), tmp_path), certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own, key)
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(own))
    with serving(sending(content), context) as address:
        image = RemoteImage(f"{address}/a", HERE)
        if is_trusted:
            assert fetch_image(image) == content
            return
        with pytest.raises(RequestError, match="CERTIFICATE_VERIFY_FAILED"):
            fetch_image(image)


def test_hosts_are_names_and_nothing_else():
    assert parse_limits(None, "", "A.example.com, b.org").allowed_domains == (
        "a.example.com",
        "b.org",
    )
    assert parse_limits(None, "", ["b.org"]).allowed_domains == ("b.org",)
    for bad in ("https://a.org", "*.org", "me@a.org"):
        with pytest.raises(ConfigError, match="needs names of hosts"):
            parse_limits(None, "", bad)
