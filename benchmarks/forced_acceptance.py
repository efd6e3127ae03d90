"""Verifiers for benchmarks: all work is real, but the number of accepted drafts is given."""

from dataclasses import replace

import torch

from outrider.errors import ConfigError
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult
from outrider.ops.tree.verify import verify

_ONE = 1 << 32  # fixed point: the integer part is above these bits
_GOLDEN = 0x9E3779B9  # distance of neighbouring rows, so that their fractions differ
_MAX_ROWS = 4096  # more than a step has
_SPREAD = 0x85EBCA6B  # neighbouring rows begin far apart
_MOST_DEPTHS = 64  # more than a path has
_HASH_FIRST, _HASH_SECOND = 0x85EBCA6B, 0xC2B2AE35


class ForcedVerifier:
    """Accepts as many drafts as make rounds emit `mean_emitted` tokens on average.

    Owns a clock on the device, one tick per step, so that a captured step needs nothing from the
    host. In any n rounds a row emits n * mean_emitted tokens, within one token. A round never emits
    more than the deepest path of its tree and the bonus.
    """

    def __init__(self, mean_emitted: float, *, device: torch.device) -> None:
        if not mean_emitted >= 1.0:
            raise ConfigError(
                f"a round emits one token at least, so an acceptance of {mean_emitted:g} cannot be "
                "simulated; use 1 or more"
            )
        self._pace = round(mean_emitted * _ONE)
        row = torch.arange(_MAX_ROWS, dtype=torch.int64, device=device)
        self._clock = row * _GOLDEN % _ONE  # [_MAX_ROWS] fixed point, below one whole

    def __call__(self, tree: DraftTree, choice: torch.Tensor, most_emitted: int) -> VerifyResult:
        """The result of a target that agrees with the deepest path, down to the given depth.

        `choice` is [rows, nodes]. Accepted nodes emit their drafts, so text, KV and drafter agree;
        the bonus is what the target chose.
        """
        assert choice.shape[0] <= _MAX_ROWS, "a benchmark of more rows needs a longer clock"
        if choice.is_cuda:
            from benchmarks.forced_acceptance_triton import (
                agree,  # a CPU installation has no Triton
            )

            columns = tree.tokens, tree.parents, tree.depths, tree.ancestors
            cut, agreeing, drafted = agree(
                columns, choice, self._clock, self._pace, self._thresholds
            )
        else:
            cut, agreeing, drafted = self._agree(tree, choice)
        verify_result = verify(replace(tree, tokens=cut), agreeing, most_emitted)
        return replace(verify_result, drafted=drafted)

    @property
    def _thresholds(self) -> torch.Tensor | None:
        """None: the pace of the clock says how many drafts are accepted."""
        return None

    def _agree(
        self, tree: DraftTree, choice: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [rows, nodes] twice, [rows]
        """Tree tokens cut at the given depth, choices that agree above it, the number of drafts.

        The token -1, which the target cannot choose, ends the path at that depth.
        """
        most_accepted = self._tick(tree.tokens.shape[0])[:, None] - 1  # [rows, 1]
        is_accepted = _deepest_path(tree) & (tree.depths > 0) & (tree.depths <= most_accepted)
        return (
            tree.tokens.masked_fill(tree.depths > most_accepted, -1),
            _agreeing(tree, choice, is_accepted),
            (tree.tokens[:, 1:] >= 0).sum(1),
        )

    def _tick(self, num_rows: int) -> torch.Tensor:  # [num_rows] tokens to emit, at least 1
        """Tokens to emit in this step, for the first rows; the next step gets the fractions."""
        clock = self._clock[:num_rows]
        due = clock + self._pace
        clock.copy_(due & (_ONE - 1))
        return due >> 32


class ChanceVerifier(ForcedVerifier):
    """Accepts every draft after an accepted one with the same chance, so that shorter paths emit
    less.

    The clock of a row is a counter whose hashed values are its draws: independent of each other,
    and the same again after `restart`. Both are data on the device, so captured steps stay valid.
    """

    def __init__(self, chance: float, *, device: torch.device) -> None:
        super().__init__(1.0, device=device)
        self._pace = _GOLDEN
        self._clock.mul_(_SPREAD).remainder_(_ONE)
        self._first = self._clock.clone()
        self._levels = torch.zeros(_MOST_DEPTHS, dtype=torch.int64, device=device)
        self.restart(chance)

    def restart(self, chance: float) -> None:
        """Begin the draws again, with this chance from now on. No step may be in flight."""
        levels = [round(chance**depth * _ONE) for depth in range(1, _MOST_DEPTHS + 1)]
        self._levels.copy_(torch.tensor(levels, dtype=torch.int64))
        self._clock.copy_(self._first)

    @property
    def _thresholds(self) -> torch.Tensor:  # [_MOST_DEPTHS] fixed point
        """The draft at depth d is accepted while the draw is below the chance of all up to d."""
        return self._levels

    def _tick(self, num_rows: int) -> torch.Tensor:
        clock = self._clock[:num_rows]
        clock.add_(self._pace).bitwise_and_(_ONE - 1)
        return 1 + (_hashed(clock)[:, None] < self._levels).sum(1)


def _hashed(clock: torch.Tensor) -> torch.Tensor:  # [rows] int64, both of 32 bits
    """The finalizer of MurmurHash3: every bit of a value depends on all bits of the clock."""
    value = (clock ^ (clock >> 16)) * _HASH_FIRST & (_ONE - 1)
    value = (value ^ (value >> 13)) * _HASH_SECOND & (_ONE - 1)
    return value ^ (value >> 16)


def accept_chance(mean_emitted: float, *, steps: int) -> float:
    """The chance of each draft with which a chain of `steps` emits so many tokens on average."""
    low, high = 0.0, 1.0
    for _ in range(40):  # bisection
        chance = (low + high) / 2
        if sum(chance**depth for depth in range(steps + 1)) < mean_emitted:
            low = chance
        else:
            high = chance
    return (low + high) / 2


def _deepest_path(tree: DraftTree) -> torch.Tensor:  # [rows, nodes] bool
    """Nodes from node 0 to the first of the deepest drafts that are present."""
    nodes = tree.tokens.shape[1]
    node = torch.arange(nodes, device=tree.tokens.device)
    score = (tree.depths * nodes - node).masked_fill(tree.tokens < 0, -nodes)  # never two alike
    tip = score.argmax(1, keepdim=True)
    return (tree.ancestors.gather(1, tip) >> node & 1).bool()


def _agreeing(
    tree: DraftTree, choice: torch.Tensor, is_accepted: torch.Tensor
) -> torch.Tensor:  # [rows, nodes], as all three
    """The target's choices, replaced by the accepted node's token at the parent of each."""
    nodes = choice.shape[1]
    # Nodes that are not accepted write to a spare column that is cut off again.
    column = torch.where(is_accepted, tree.parents, nodes)
    spare = torch.cat([choice, choice[:, :1]], dim=1)  # [rows, nodes + 1]
    return spare.scatter_(1, column, tree.tokens)[:, :nodes]
