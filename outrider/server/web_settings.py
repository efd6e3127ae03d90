"""How the server meets browsers and proxies: certificates, a path prefix, other origins."""

import json
import ssl
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """Empty values switch a part off."""

    ssl_keyfile: str = ""
    ssl_certfile: str = ""
    root_path: str = ""  # the prefix that a proxy removes
    otlp_traces_endpoint: str = ""  # URL that spans of requests are sent to
    has_access_log: bool = True  # a line for every request
    allowed_origins: tuple[str, ...] = ()  # whose pages may read answers (CORS); "*" for all

    @property
    def scheme(self) -> str:
        return "https" if self.ssl_certfile else "http"

    def check(self) -> None:
        """Refuse certificates that cannot be used, before the model is loaded."""
        if bool(self.ssl_keyfile) != bool(self.ssl_certfile):
            raise ConfigError("HTTPS needs both --ssl-keyfile and --ssl-certfile; add the other")
        if not self.ssl_certfile:
            return
        for path in (self.ssl_keyfile, self.ssl_certfile):
            if not Path(path).is_file():
                raise ConfigError(f"there is no file {path}; check --ssl-keyfile, --ssl-certfile")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"{self.ssl_certfile} and {self.ssl_keyfile} cannot be used ({error}); pass a PEM "
                "certificate and its key"
            ) from error


def parse_origins(text: str) -> tuple[str, ...]:
    """Origins as vLLM takes them, a JSON list, or separated by commas."""
    if not text.lstrip().startswith("["):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        origins = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--allowed-origins is not JSON ({error}); quote it") from error
    if not all(isinstance(origin, str) for origin in origins):
        raise ConfigError(f"--allowed-origins must hold strings, got {text}")
    return tuple(origins)
