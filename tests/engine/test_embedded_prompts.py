"""Which embeddings an engine takes, and the ids by which its prefix cache knows them."""

from dataclasses import replace

import pytest
from support.paper import facts

from outrider.engine.admission import check_request
from outrider.engine.prefix_cache.content_ids import ContentIds
from outrider.errors import RequestError
from outrider.wire.embedded_span import EmbeddedSpan, spans_within
from outrider.wire.submission import Limits

LIMITS = Limits(max_tokens=4, stop_ids=frozenset())


def span(*rows, first=0):
    return EmbeddedSpan(first=first, width=1, values=b"".join(rows))


def test_a_model_that_needs_token_ids_refuses_embeddings_by_name():
    takes_none, eight = facts(), replace(facts(), takes_embeds=True)
    with pytest.raises(RequestError, match="experts by token ids"):
        check_request((0,), LIMITS, takes_none, [span(b"aaaa")])
    with pytest.raises(RequestError, match="1 channels and the model 8"):
        check_request((0,), LIMITS, eight, [span(b"aaaa")])
    check_request((0,), LIMITS, eight, [EmbeddedSpan(first=0, width=8, values=bytes(32))])


def test_equal_contents_have_equal_ids_which_no_token_has():
    ids = ContentIds(most=2)
    first = ids.ids_of(span(b"aaaa", b"bbbb", b"aaaa"))
    assert first[0] == first[2] != first[1]
    assert max(first) < -1
    assert ids.ids_of(span(b"bbbb", first=7)) == first[1:2]


def test_a_forgotten_content_gets_an_id_of_its_own():
    ids = ContentIds(most=2)
    a, b, c = ids.ids_of(span(b"aaaa", b"bbbb", b"cccc"))
    (again,) = ids.ids_of(span(b"aaaa"))  # the oldest was forgotten
    assert len({a, b, c, again}) == 4


def test_a_chunk_has_its_part_of_every_span():
    spans = [span(b"aaaa", b"bbbb", b"cccc", first=2), span(b"dddd", first=8)]
    assert spans_within(spans, 3, 9) == (
        span(b"bbbb", b"cccc", first=0),
        span(b"dddd", first=5),
    )
    assert spans_within(spans, 5, 8) == ()
    assert spans_within(spans, 0, 3) == (span(b"aaaa", first=2),)
