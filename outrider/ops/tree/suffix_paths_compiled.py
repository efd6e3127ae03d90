"""`find_suffixes` on a CPU, in one compiled call instead of about 90 small operations."""

from functools import cache

import torch

from outrider.ops.compiled.suffix_matches import find_suffix_matches
from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.context_keys import CONTEXTS, LONGEST_MATCH, key_factors
from outrider.ops.tree.find_occurrences import OCCURRENCES, NgramMatch
from outrider.ops.tree.suffix_paths import (
    LATEST,
    SHARED_PATHS,
    SHORT,
    WEIGHT_STEP,
    StoredTexts,
    SuffixMatches,
)
from outrider.wire.scheduled_batch import NO_OWNER

_FUNCTION = int(find_suffix_matches.address)


def find_suffixes_compiled(
    text: torch.Tensor,
    lengths: torch.Tensor,
    readers: torch.Tensor,
    texts: StoredTexts,
    match: NgramMatch,
    *,
    steps: int,
) -> SuffixMatches:
    rows, num = text.shape[0], min(OCCURRENCES, text.shape[1]) + SHARED_PATHS
    found = SuffixMatches(
        paths=lengths.new_empty(rows, num, steps),
        matched=lengths.new_empty(rows, num),
        weights=lengths.new_empty(rows, num, dtype=torch.float32),
    )
    graph_break(_find, text, lengths, readers, texts, match, found)
    return found


def _find(
    text: torch.Tensor,
    lengths: torch.Tensor,
    readers: torch.Tensor,
    texts: StoredTexts,
    match: NgramMatch,
    found: SuffixMatches,  # written
) -> None:
    assert text.dtype == torch.int32, "texts are stored so"
    own, steps = found.matched.shape[1] - SHARED_PATHS, found.paths.shape[2]
    sizes = (
        *text.shape, match.least, match.most, own, text.stride(0), steps, SHARED_PATHS,
        texts.tokens.shape[0], LONGEST_MATCH, LATEST, len(CONTEXTS), NO_OWNER, SHORT, WEIGHT_STEP,
    )  # fmt: skip
    stored = (texts.tokens, texts.owners, texts.keys, texts.places, *_constants())
    written = (found.paths, found.matched, found.weights)
    tensors = (text, lengths.contiguous(), readers, *stored, *written)
    run_alone(_FUNCTION, (*sizes, *(tensor.data_ptr() for tensor in tensors)))


@cache
def _constants() -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths of contexts, and factors of keys."""
    return torch.tensor(CONTEXTS), key_factors(torch.device("cpu"))
