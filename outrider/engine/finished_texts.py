"""Answers that ended, on their way to a drafter that reads them; and which rows may read which."""

import hashlib
import secrets

from outrider.engine.request import Request
from outrider.wire.scheduled_batch import NO_OWNER, FinishedText
from outrider.wire.submission import Submission

_PROMPT_TAIL = 32  # tokens before an answer: an equal question leads to the begin of its answer
_MOST_WAITING = 64  # texts; there is no step to send them with while no request runs


class FinishedTexts:
    """Owns the texts that no step has taken yet.

    Requests of one cache salt share their texts, as they share cached prefixes. A request that asks
    for the trees of its rounds would show texts of others, so without a salt it reads none.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._key = secrets.token_bytes(16)  # no client can know or choose an owner
        self._texts: list[FinishedText] = []

    def reader_of(self, submission: Submission) -> int:
        """Whose texts a request may read."""
        is_shown = submission.sampling.trace and not submission.cache_salt
        return NO_OWNER if is_shown else self._owner_of(submission)

    def note(self, request: Request) -> None:
        """A request ended, or was aborted: keep what it emitted."""
        num_prompt = len(request.submission.prompt)
        if not self._is_wanted or request.is_not_finite or len(request.tokens) == num_prompt:
            return
        tokens = tuple(request.tokens[max(num_prompt - _PROMPT_TAIL, 0) :])
        self._texts.append(FinishedText(owner=self._owner_of(request.submission), tokens=tokens))
        del self._texts[:-_MOST_WAITING]

    def take(self) -> tuple[FinishedText, ...]:
        """The texts for the next step, each once."""
        taken, self._texts = tuple(self._texts), []
        return taken

    def forget(self) -> None:
        """From now on no request reads any of these texts: their owners are no longer found."""
        self._key, self._texts = secrets.token_bytes(16), []

    def _owner_of(self, submission: Submission) -> int:
        if not self._is_wanted:
            return NO_OWNER
        salt = submission.cache_salt.encode()
        digest = hashlib.blake2b(salt, key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1 or 1
