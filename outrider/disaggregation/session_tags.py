"""Proves that bytes come from the peer of this session, in order: a relay knows no session key."""

import hashlib
import hmac
from dataclasses import dataclass, field

from outrider.wire.transfer_order import TransferSide

TAG_BYTES = 32
NONCE_BYTES = 32


@dataclass(slots=True)
class MessageTags:
    """The tags of one direction. Every message has its number, so none can be sent again."""

    _key: bytes = field(repr=False)
    _number: int = 0

    def next(self, data: bytes | memoryview) -> bytes:
        tag = hmac.new(self._key, self._number.to_bytes(8), hashlib.sha256)
        tag.update(data)
        self._number += 1
        return tag.digest()


@dataclass(frozen=True, slots=True)
class SessionTags:
    """Both directions, as one side sees them."""

    sent: MessageTags
    received: MessageTags


def session_tags(secret: bytes, side: TransferSide, *, own: bytes, theirs: bytes) -> SessionTags:
    """The tags that follow from the secret and a random number of each side."""
    nonces = own + theirs if side == "decode" else theirs + own
    session = hmac.digest(secret, b"outrider side channel" + nonces, "sha256")
    by_decode, by_prefill = (
        MessageTags(hmac.digest(session, name, "sha256")) for name in (b"decode", b"prefill")
    )
    if side == "decode":
        return SessionTags(sent=by_decode, received=by_prefill)
    return SessionTags(sent=by_prefill, received=by_decode)
