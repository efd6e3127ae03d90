"""Where the row state of requests is saved, so that later requests can continue there.

Row state cannot be cut at a position, as pages can: it is copied when a row is at a page border. A
chunk of a prompt ends where a copy is wanted. A round of an answer is copied if it can have passed
a border. What it left is the state at every position that it passed: to go back to one of them
means not to advance (docs/decisions/0009 and 0011).
"""

from outrider.engine.prefix_cache.prefix_cache import Lease, PrefixCache
from outrider.engine.prefix_cache.snapshot_slots import NoSlots
from outrider.engine.request import Placement


class RowBorders:
    """Chooses borders, and takes the slots of copies. Without row state it does nothing."""

    def __init__(self, cache: PrefixCache, *, every: int) -> None:
        self._cache = cache
        self._every = every  # tokens from one copy to the next, at least
        self.is_needed = cache.is_enabled and not isinstance(cache.slots, NoSlots)

    def cuts(self, lease: Lease, goal: int) -> tuple[int, ...]:
        """Where chunks of a prompt end for a copy, in order.

        The same prompt finds the last border before its end. Where cached pages go on without a
        snapshot, another text parted from them: a third one is likely to part there, too. A cut
        costs a step, so few tokens are not worth one.
        """
        if not self.is_needed:
            return ()
        cuts, before = [], lease.cached
        for border in sorted((lease.snapshots.matched, self._cache.last_border(goal - 1))):
            if border - before >= self._every:
                cuts.append(border)
                before = border
        if goal % self._cache.page_size == 0:  # its last chunk ends there anyway
            cuts.append(goal)
        return tuple(cuts)

    def save_chunk(self, placement: Placement) -> int:
        """The slot for the state after a chunk; 0 if it is not saved."""
        border, slots = placement.bound, self._cache.slots
        if border not in placement.cuts or isinstance(slots, NoSlots):
            return 0
        slot = slots.take()
        if slot:
            placement.lease.snapshots.taken[border] = slot
        return slot

    def save_round(self, placement: Placement, most: int) -> int:
        """The slot for the state after a round of up to `most` tokens; 0 if it is not saved.

        Running answers hold half of the slots at most: the others are for what has ended.
        """
        slots = self._cache.slots
        if isinstance(slots, NoSlots):
            return 0
        last = (placement.bound + most) // self._every * self._every
        if last <= placement.fewest_cached:
            return 0
        if 2 * slots.num_held >= slots.num:
            return 0
        slot = slots.take()
        placement.lease.snapshots.in_flight.append(slot)
        return slot

    def settle_round(self, placement: Placement, slot: int, num_taken: int) -> None:
        """A round was read that was saved, and the request took so many of its tokens.

        Of an answer only the last border is kept: the next turn of a conversation goes on there.
        """
        snapshots, slots, cache = placement.lease.snapshots, self._cache.slots, self._cache
        snapshots.in_flight.remove(slot)
        last = len(placement.request.tokens) - 1
        border = last // cache.page_size * cache.page_size
        if border <= last - num_taken:
            slots.give_back((slot,))
            return
        snapshots.taken[border] = slot
        # The page before the last border is found again only once the tokens after it are known.
        found = cache.last_border(last)
        newest = max((each for each in snapshots.taken if each <= found), default=0)
        outdated = [each for each in snapshots.taken if each < newest]
        slots.give_back([snapshots.taken.pop(each) for each in outdated])
