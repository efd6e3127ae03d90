"""The load on the peers: plain, and with our head where they can run it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_run import PeerRun
from outrider.bench.churn.run_churn import TokenIds, take_prompts
from outrider.bench.peers.churn_catalogue import ChurnPackage
from outrider.bench.peers.churn_peer import ChurnTask, PeerDraft, PeerLimits
from outrider.bench.peers.run_churn_peer import run_churn_peer
from outrider.config.draft_config import MTP, NONE, TEXT_DRAFTERS, resolve_budget
from outrider.config.engine_config import Dtype
from outrider.models.eagle.inspect_head import is_head

Note = Callable[[str], None]  # called with the name of every run as it begins

_NO_DRAFT = PeerDraft(folder="", steps=0, topk=0, nodes=1)


def peer_ways(args: ChurnArgs) -> list[tuple[ChurnPackage, PeerDraft]]:
    """Every peer plain, and with the drafter if that is a head."""
    heads = tuple(_head_of(args))
    return [
        (peer, draft)
        for peer in args.peers
        for draft in (_NO_DRAFT, *(heads if peer.can_draft else ()))
    ]


def run_peers(
    folder: Path,
    args: ChurnArgs,
    prompts: Sequence[TokenIds],
    *,
    dtype: Dtype,
    context: int,
    note: Note,
) -> Iterator[PeerRun]:
    """One process after another, before our own model is loaded: each has the whole device."""
    for rows in args.work.rows:
        for peer, draft in peer_ways(args):
            limits = PeerLimits(rows=rows, max_tokens=args.work.answer, context=context)
            task = ChurnTask(
                engine=peer.name,
                folder=str(folder),
                dtype="auto" if dtype in ("int8", "packed") else dtype,  # forms of ours
                draft=draft,
                limits=limits,
                prompts=tuple(take_prompts(prompts, args.work.requests)),
                num_warm=args.work.num_warm(rows),
            )
            note(f"{peer.name}, {_way(draft)}, {rows} at a time")
            yield _run(task, peer)


def _run(task: ChurnTask, peer: ChurnPackage) -> PeerRun:
    speed, error = 0.0, ""
    try:
        speed = run_churn_peer(task)
    except RuntimeError as failure:
        error = str(failure)
    return PeerRun(
        engine=peer.name,
        version=peer.version,
        way=_way(task.draft),
        rows=task.limits.rows,
        tokens_per_s=speed,
        error=error,
    )


def _way(draft: PeerDraft) -> str:
    return "fixed" if draft.folder else "plain"


def _head_of(args: ChurnArgs) -> Iterator[PeerDraft]:
    """Our drafter, if peers can load it."""
    draft = args.draft
    if draft.drafter in (NONE, MTP, *TEXT_DRAFTERS) or not is_head(Path(draft.drafter)):
        return
    tree = resolve_budget(draft).tree
    yield PeerDraft(folder=draft.drafter, steps=tree.steps, topk=tree.topk, nodes=tree.nodes)
