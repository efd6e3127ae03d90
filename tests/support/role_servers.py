"""What tests of prefill and decode servers send, and how they find a port."""

import socket

from outrider.config.role_checks import nixl_package

KEY = {"OUTRIDER_RANKS_KEY": "a secret of the test"}
NAME = (
    *("--served-model-name", "tiny", "--draft", "ngram", "--no-adaptive", "--kv-tokens", "8192"),
    "--enable-prompt-embeds",
)
TEXT = "the quick brown fox jumps over the lazy dog and " * 4
BODY = {"model": "tiny", "prompt": TEXT, "max_tokens": 16, "temperature": 0.7, "seed": 7}


USUAL_BACKEND = "nixl" if nixl_package() else "tcp"  # the default of a server, where it is there


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def assert_clean(*servers):
    for server in servers:
        assert not server.wait_until_idle()["has_leak"]
