"""`verify` on a CPU, in one compiled call instead of about 30 small operations."""

import torch

from outrider.ops.compiled.thread_team import run_alone
from outrider.ops.compiled.verified_rows import verify_rows
from outrider.ops.graph_break import graph_break
from outrider.ops.tree.draft_tree import DraftTree, VerifyResult

_FUNCTION = int(verify_rows.address)


def verify_compiled(
    tree: DraftTree,
    choice: torch.Tensor,  # [rows, nodes]
    most_emitted: int,
) -> VerifyResult:
    rows = choice.shape[0]
    path, emitted = choice.new_empty(2, rows, most_emitted).unbind(0)
    num_accepted, drafted = choice.new_empty(2, rows).unbind(0)
    result = VerifyResult(path=path, num_accepted=num_accepted, emitted=emitted, drafted=drafted)
    graph_break(_verify, tree, choice, result)
    return result


def _verify(tree: DraftTree, choice: torch.Tensor, result: VerifyResult) -> None:
    given = (tree.tokens, tree.parents, tree.depths, tree.ancestors, choice)
    written = (result.path, result.num_accepted, result.emitted, result.drafted)
    sizes = *choice.shape, result.path.shape[1], *(tensor.stride(0) for tensor in given)
    run_alone(_FUNCTION, (*sizes, *(tensor.data_ptr() for tensor in (*given, *written))))
