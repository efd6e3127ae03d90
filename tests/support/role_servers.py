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


def arrived(decode):
    """How many prompts came to a decode server, and their bytes.

    `cached_tokens` of an answer does not tell: vllm-router 0.1.17 puts the prefill server's there.
    """
    counts = decode.invariants["transfers"]
    assert counts["total_failed"] == 0
    return counts["total_done"], counts["total_bytes"]


def assert_clean(*servers):
    for server in servers:
        assert not server.wait_until_idle()["has_leak"]
