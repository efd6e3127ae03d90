"""Prompts with embeddings, as the device and the prefix cache know them."""

from dataclasses import dataclass, replace
from itertools import groupby

from outrider.engine.prefix_cache.content_ids import ContentIds
from outrider.wire.embedded_span import EmbeddedSpan
from outrider.wire.runner_facts import StepRunner
from outrider.wire.submission import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrompt:
    """A submission whose embeddings are those that no token has, and the key of its prompt."""

    submission: Submission
    key: tuple[int, ...]  # of the prefix cache, per position; empty: the prompt itself


class EmbeddedPrompts:
    """Finds the tokens that embeddings are of, and gives the others ids by content.

    An embedding that equals the embedding of a token is that token: caches, drafters and penalties
    then see the same prompt as if the client had sent ids.
    """

    def __init__(self, *, most_ids: int) -> None:
        self._ids = ContentIds(most_ids)

    def resolve(self, submission: Submission, runner: StepRunner) -> KnownPrompt:
        if not submission.spans:
            return KnownPrompt(submission=submission, key=())
        tokens, spans = list(submission.prompt), []
        for span in submission.embeds:
            found = runner.find_tokens(span)
            tokens[span.first : span.stop] = [max(token, 0) for token in found]
            spans += _unknown_parts(span, found)
        key = list(tokens)
        resolved = replace(submission, prompt=tuple(tokens), embeds=tuple(spans))
        for each in resolved.spans:
            key[each.first : each.stop] = self._ids.ids_of(each)
        return KnownPrompt(submission=resolved, key=tuple(key) if resolved.spans else ())


def _unknown_parts(span: EmbeddedSpan, found: tuple[int, ...]) -> list[EmbeddedSpan]:
    """The runs of a span without a token."""
    parts, at = [], span.first
    for is_known, run in groupby(token >= 0 for token in found):
        count = len(list(run))
        if not is_known:
            parts.append(span.from_position(at).upto(count))
        at += count
    return parts
