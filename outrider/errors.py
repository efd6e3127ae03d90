"""The only exceptions raised on purpose. Each message names the fix."""


class OutriderError(Exception):
    """Anything the caller can act on; the command line prints it as one line."""


class ConfigError(OutriderError):
    """The installation, the model or the settings cannot work; stops at start."""


class RequestError(OutriderError):
    """One request is wrong; it is answered with the reason and the others go on."""


class CapacityError(OutriderError):
    """There is no room now; the request waits or is rejected with the reason."""
