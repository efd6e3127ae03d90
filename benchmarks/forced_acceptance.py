"""A judge for benchmarks: all work is real, but how many drafts are kept is decided beforehand."""

from dataclasses import replace

import torch

from outrider.errors import ConfigError
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult
from outrider.ops.tree.verify import verify

_ONE = 1 << 32  # fixed point: the whole part of a count lies above these bits
_GOLDEN = 0x9E3779B9  # neighbouring rows are this far apart, so that they do not tick together
_MAX_ROWS = 4096  # more than a step has


class ForcedVerifier:
    """Keeps as many drafts as make rounds emit `mean_emitted` tokens on average.

    Owns a clock on the device, one tick per step, so that a recorded step needs nothing from the
    host. In any n rounds a row emits n * mean_emitted tokens to within one, whatever their text;
    a round never emits more than the deepest path of its tree and the bonus.
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
        """The verdict of a target that agrees with the deepest path, down to the depth drawn.

        `choice` is [rows, nodes]. Kept nodes emit their drafts, so text, KV and drafter agree; the
        bonus is what the target chose.
        """
        assert choice.shape[0] <= _MAX_ROWS, "a benchmark of more rows needs a longer clock"
        if choice.is_cuda:
            from benchmarks.forced_acceptance_triton import (
                agree,  # a CPU installation has no Triton
            )

            columns = tree.tokens, tree.parents, tree.depths, tree.ancestors
            cut, agreeing, drafted = agree(columns, choice, self._clock, self._pace)
        else:
            cut, agreeing, drafted = self._agree(tree, choice)
        verify_result = verify(replace(tree, tokens=cut), agreeing, most_emitted)
        return replace(verify_result, drafted=drafted)

    def _agree(
        self, tree: DraftTree, choice: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # [rows, nodes] twice, [rows]
        """The tree without tokens below the depth drawn, choices that agree above, its drafts.

        A token that nobody can choose ends the path where it was meant to end.
        """
        most_kept = self._tick(tree.tokens.shape[0])[:, None] - 1  # [rows, 1]
        is_accepted = _deepest_path(tree) & (tree.depths > 0) & (tree.depths <= most_kept)
        return (
            tree.tokens.masked_fill(tree.depths > most_kept, -1),
            _agreeing(tree, choice, is_accepted),
            (tree.tokens[:, 1:] >= 0).sum(1),
        )

    def _tick(self, num_rows: int) -> torch.Tensor:  # [num_rows] tokens to emit, at least 1
        """Whole tokens that come due for the first rows; the fractions wait for the next step."""
        clock = self._clock[:num_rows]
        due = clock + self._pace
        clock.copy_(due & (_ONE - 1))
        return due >> 32


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
    """The target's tokens, but before each kept node the node's own."""
    nodes = choice.shape[1]
    # Nodes that are not kept write to one spare column that is cut off again.
    column = torch.where(is_accepted, tree.parents, nodes)
    spare = torch.cat([choice, choice[:, :1]], dim=1)  # [rows, nodes + 1]
    return spare.scatter_(1, column, tree.tokens)[:, :nodes]
