"""Which adapter is in which slot of the device's adapter weights, and which rows use it."""

from collections.abc import Callable

from outrider.wire.adapter import Adapter, AdapterFiles, AdapterLoad

NO_SLOT = 0  # of rows without an adapter


class AdapterSlots:
    """Owns the slots. An adapter stays in its slot until another one needs it."""

    def __init__(self, num_slots: int, read: Callable[[Adapter], AdapterFiles]) -> None:
        self._read = read
        self._files: dict[Adapter, AdapterFiles] = {}  # of the adapter that gets a slot next
        self._free = list(range(num_slots, NO_SLOT, -1))
        self._slots: dict[Adapter, int] = {}  # the adapter that was released longest ago is first
        self._num_rows: dict[Adapter, int] = {}  # rows that run through it now

    def has_room(self, adapter: Adapter) -> bool:
        """Whether a row of this adapter could start now."""
        if not adapter.is_wanted or adapter in self._slots or self._free:
            return True
        return len(self._num_rows) < len(self._slots)

    def prepare(self, adapter: Adapter) -> None:
        """Read an adapter that has no slot, or refuse it: its files may have changed meanwhile."""
        if adapter.is_wanted and adapter not in self._slots and adapter not in self._files:
            self._files = {adapter: self._read(adapter)}

    def take(self, adapter: Adapter) -> tuple[int, tuple[AdapterLoad, ...]]:
        """The slot of a row that starts, and the load that must come before its first step.

        The adapter is prepared.
        """
        if not adapter.is_wanted:
            return NO_SLOT, ()
        loads: tuple[AdapterLoad, ...] = ()
        if adapter not in self._slots:
            self._slots[adapter] = self._free.pop() if self._free else self._evict()
            loads = (AdapterLoad(slot=self._slots[adapter], files=self._files.pop(adapter)),)
        self._num_rows[adapter] = self._num_rows.get(adapter, 0) + 1
        return self._slots[adapter], loads

    def release(self, adapter: Adapter) -> None:
        """A row has ended. Its adapter can be evicted when it was the last one."""
        if not adapter.is_wanted:
            return
        self._num_rows[adapter] -= 1
        if not self._num_rows[adapter]:
            del self._num_rows[adapter]
            self._slots[adapter] = self._slots.pop(adapter)  # to the end of the order

    def forget(self) -> None:
        """The device was reset: what the slots hold is unknown. No row runs."""
        assert not self._num_rows, "rows release their adapters first"
        self._free += self._slots.values()
        self._slots.clear()

    def _evict(self) -> int:
        """The slot of the adapter that no row has used for the longest time."""
        unused = next(adapter for adapter in self._slots if adapter not in self._num_rows)
        return self._slots.pop(unused)
