"""Which replica gets a request: the one that has seen most of its prompt, unless it is busy.

The prefix caches are in other processes. What they hold is guessed from the prompts that were sent
there lately, by hashes of their beginnings.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from outrider.wire.submission import Submission

# A replica that knows the prompt is chosen although it has this many requests more than the idlest.
_MOST_EXTRA_REQUESTS = 4
_BLOCK = 32  # tokens; a beginning is known in whole blocks
_MOST_BLOCKS = 2**15  # that are remembered of each replica


class ReplicaChooser:
    """Owns the hashes of the prompts that each replica was given."""

    def __init__(self, num_replicas: int) -> None:
        self._seen: tuple[OrderedDict[int, None], ...] = tuple(
            OrderedDict() for _ in range(num_replicas)
        )

    def choose(self, submission: Submission, loads: Sequence[int]) -> int:
        """The number of a replica; `loads` are the requests of each, more for one that is down."""
        if len(loads) == 1:
            return 0
        blocks, least = list(_blocks(submission)), min(loads)
        near = [place for place, load in enumerate(loads) if load <= least + _MOST_EXTRA_REQUESTS]
        chosen = max(near, key=lambda place: (self._num_known(place, blocks), -loads[place]))
        self._remember(chosen, blocks)
        return chosen

    def forget(self, replica: int) -> None:
        """The prefix cache of a replica is empty."""
        self._seen[replica].clear()

    def _num_known(self, place: int, blocks: Sequence[int]) -> int:
        seen = self._seen[place]
        return next((num for num, block in enumerate(blocks) if block not in seen), len(blocks))

    def _remember(self, place: int, blocks: Sequence[int]) -> None:
        seen = self._seen[place]
        for block in blocks:
            seen[block] = None
            seen.move_to_end(block)
        while len(seen) > _MOST_BLOCKS:
            seen.popitem(last=False)


def _blocks(submission: Submission) -> Iterator[int]:
    """A hash of every beginning of the prompt in whole blocks."""
    prompt, value = submission.prompt, hash(submission.prefix_salt)
    for first in range(0, len(prompt) - _BLOCK + 1, _BLOCK):
        value = hash((value, prompt[first : first + _BLOCK]))
        yield value
