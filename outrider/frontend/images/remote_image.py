"""Downloads images from hosts that the operator names, and from no others.

A name is looked up once, and the address that was checked is the one that is connected to. So a
name that changes its address in between reaches nothing else.
"""

import http.client
import ipaddress
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import SplitResult, urljoin, urlsplit

from outrider.errors import RequestError
from outrider.frontend.images.image_limits import MAX_BYTES

TIMEOUT_S = 5.0  # to connect; and then for the whole answer of a host
_MOST_REDIRECTS = 3
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {"User-Agent": "outrider", "Accept": "image/*"}


@dataclass(frozen=True, slots=True)
class RemoteImage:
    """An image at a web address, and the hosts that it may come from."""

    url: str
    domains: tuple[str, ...]


def check_address(url: str, domains: tuple[str, ...]) -> SplitResult:
    """The parts of an address whose host is allowed. Nothing is looked up."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise RequestError(f"the address of an image is not valid ({error}); fix it") from error
    if parts.scheme.lower() not in ("http", "https") or not host or "@" in parts.netloc:
        raise RequestError("the address of an image must be https://host/path, without a password")
    if host not in domains:
        raise RequestError(
            f"images are not downloaded from {host}; send the image as a data: URL, or start with "
            "--allowed-media-domains"
        )
    return parts


def fetch_image(image: RemoteImage, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """The bytes of the file. Every redirect is checked like the first address."""
    url = image.url
    for _ in range(_MOST_REDIRECTS + 1):
        parts = check_address(url, image.domains)
        try:
            content, location = _get(parts, timeout_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RequestError(
                f"an image cannot be downloaded from {parts.hostname} ({type(error).__name__}: "
                f"{error}); send it as a data: URL"
            ) from error
        if not location:
            return content
        url = urljoin(url, location)
    raise RequestError(f"the address of an image leads to more than {_MOST_REDIRECTS} others")


def _get(parts: SplitResult, timeout_s: float) -> tuple[bytes, str]:
    """The bytes at an address, or the address that it leads to."""
    connection = _CheckedConnection(parts, timeout_s)
    # A timeout of a socket is one of each read. A host that sends a byte now and then would be
    # waited for without end.
    alarm = threading.Timer(2 * timeout_s, connection.cut)
    alarm.start()
    try:
        path = parts.path or "/"
        connection.request("GET", f"{path}?{parts.query}" if parts.query else path, None, _HEADERS)
        response = connection.getresponse()
        location = response.getheader("Location") or ""
        if response.status in _REDIRECTS and location:
            return b"", location
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"status {response.status}")
        content = response.read(MAX_BYTES + 1)
        if response.length and len(content) <= MAX_BYTES:  # bytes that are still to come
            raise TimeoutError("it did not send all of it in time")
    finally:
        alarm.cancel()
        connection.close()
    if len(content) > MAX_BYTES:
        raise RequestError(f"an image may have {MAX_BYTES >> 20} MiB; compress or resize it")
    return content, ""


class _CheckedConnection(http.client.HTTPConnection):
    """Connects to an address that was checked, whatever the name stands for by then."""

    def __init__(self, parts: SplitResult, timeout_s: float) -> None:
        self._is_secure = parts.scheme.lower() == "https"
        # The header Host names other ports.
        self.default_port = http.client.HTTPS_PORT if self._is_secure else http.client.HTTP_PORT
        super().__init__(parts.hostname or "", parts.port or self.default_port, timeout=timeout_s)
        self._used: socket.socket | None = None  # `sock` is dropped before an answer is read

    def connect(self) -> None:
        address = _checked_address(self.host, self.port)
        self.sock = self._used = socket.create_connection((address, self.port), self.timeout)
        if self._is_secure:
            wrap = partial(ssl.create_default_context().wrap_socket, server_hostname=self.host)
            secure = wrap(self.sock, do_handshake_on_connect=False)
            self.sock = self._used = secure  # before the handshake: `cut` ends it, too
            secure.do_handshake()

    def cut(self) -> None:
        """End a transfer that takes too long. Called in another thread."""
        if self._used is not None:
            with suppress(OSError):  # it has ended
                # That of the base: an SSL socket would drop what its own thread reads with.
                socket.socket.shutdown(self._used, socket.SHUT_RDWR)


def _checked_address(host: str, port: int) -> str:
    """The address of a host. Refuses a name that stands for one of a private network."""
    found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    inside = [each for each in found if not ipaddress.ip_address(each.partition("%")[0]).is_global]
    if inside and inside != [host]:  # an address that was named as such was meant
        raise OSError(f"it is {inside[0]}, which is not public")
    return found[0]
