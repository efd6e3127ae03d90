"""The adapters that clients may choose, by name."""

from outrider.errors import RequestError

MAX_ADAPTERS = 1024  # that have a name; few of them are in memory
MAX_NAME = 256  # characters


class ServedAdapters:
    """Owns the names. What is behind a path is looked up for every request: files can change."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._paths: dict[str, str] = {}  # by name

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._paths)

    def path_of(self, name: str) -> str:
        return self._paths[name]

    def check_new(self, name: str) -> None:
        """Refuse a name that cannot be added."""
        if not self.is_enabled:
            raise RequestError("adapters are off; start the server with --enable-lora")
        if not 0 < len(name) <= MAX_NAME:
            raise RequestError(f"lora_name must have 1 to {MAX_NAME} characters")
        if name in self._paths:
            raise RequestError(
                f"the adapter {name!r} is loaded already; unload it first, or choose another name"
            )
        if len(self._paths) >= MAX_ADAPTERS:
            raise RequestError(f"{MAX_ADAPTERS} adapters are loaded already; unload some")

    def add(self, name: str, path: str) -> None:
        self._paths[name] = path

    def remove(self, name: str) -> None:
        """Requests that run through it go on; new ones find it no more."""
        del self._paths[name]


NO_SERVED_ADAPTERS = ServedAdapters(is_enabled=False)
