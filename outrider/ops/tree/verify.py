"""The decision about drafts: walk from node 0 along the tokens that the target itself chose."""

import torch

from outrider.ops.compiled.why_not_compiled import is_compiled
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult

_COMPILED = "outrider.ops.compiled.verified_rows"


def verify(
    tree: DraftTree,
    choice: torch.Tensor,  # [rows, nodes] the target's token after each node
    most_emitted: int,
) -> VerifyResult:
    """Accept the deepest path that the target confirms.

    No path of the tree has more than `most_emitted` nodes.
    """
    if choice.is_cuda:
        from outrider.ops.tree.verify_triton import verify_triton

        return verify_triton(tree, choice, most_emitted)
    if is_compiled(choice, _COMPILED):
        from outrider.ops.tree.verify_compiled import verify_compiled

        return verify_compiled(tree, choice, most_emitted)
    return verify_reference(tree, choice, most_emitted)


def verify_reference(tree: DraftTree, choice: torch.Tensor, most_emitted: int) -> VerifyResult:
    """The same in plain torch."""
    agreed = tree.tokens == choice.gather(1, tree.parents.clamp_min(0))  # [rows, nodes]
    agreed |= tree.parents < 0  # node 0 was emitted before
    alive = _all_ancestors(agreed, tree.ancestors)
    tip = (tree.depths.masked_fill(~alive, -1)).argmax(1, keepdim=True)  # [rows, 1]
    path = _path_to(tip, tree)[:, :most_emitted]
    return VerifyResult(
        path=path,
        num_accepted=tree.depths.gather(1, tip).squeeze(1),
        emitted=choice.gather(1, path),
        drafted=(tree.tokens[:, 1:] >= 0).sum(1),
    )


def path_tokens(tree: DraftTree) -> torch.Tensor:  # [rows, nodes, nodes - 1]
    """Drafts on the path from node 0 to each node, the node itself included; -1 elsewhere."""
    draft = torch.arange(1, tree.tokens.shape[1], device=tree.tokens.device)
    on_path = (tree.ancestors[:, :, None] >> draft & 1).bool()
    return torch.where(on_path, tree.tokens[:, None, 1:], -1)


def _all_ancestors(agreed: torch.Tensor, ancestors: torch.Tensor) -> torch.Tensor:
    """True for a node whose whole path from node 0 is agreed; all three are [rows, nodes]."""
    node = torch.arange(agreed.shape[1], device=agreed.device)
    mask = (agreed.to(torch.int64) << node).sum(1, keepdim=True)  # [rows, 1] bit per agreed node
    return (ancestors & mask) == ancestors


def _path_to(tip: torch.Tensor, tree: DraftTree) -> torch.Tensor:  # [rows, nodes]
    """Nodes from node 0 to the tip in order of depth; the tip is repeated to the end."""
    rows, nodes = tree.tokens.shape
    node = torch.arange(nodes, device=tip.device)
    on_path = (tree.ancestors.gather(1, tip) >> node & 1).bool()  # [rows, nodes]
    # Nodes off the path go to one spare column, which is cut off again.
    column = torch.where(on_path, tree.depths, nodes)
    path = tip.expand(rows, nodes + 1).clone()
    return path.scatter_(1, column, node.expand(rows, nodes))[:, :nodes]
