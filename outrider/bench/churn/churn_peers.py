"""The load on the peers: plain, and with our head where they can run it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from outrider.bench.churn.churn_args import ChurnArgs
from outrider.bench.churn.churn_run import PeerRun
from outrider.bench.churn.run_churn import Note, TokenIds, take_prompts
from outrider.bench.peers.churn_catalogue import ChurnPackage
from outrider.bench.peers.churn_peer import ChurnTask, PeerDraft, PeerLimits, PeerLoad
from outrider.bench.peers.run_churn_peer import run_churn_peer
from outrider.config.draft_config import MTP, NONE, TEXT_DRAFTERS, fit_usual, resolve_budget
from outrider.config.engine_config import Dtype
from outrider.models.block_depth import head_kind
from outrider.models.config_fields import read_fields
from outrider.models.eagle.inspect_head import is_head
from outrider.runtime.load_draft import fit_draft

_NO_DRAFT = PeerDraft(folder="", kind="", steps=0, topk=0, nodes=1)


def peer_ways(args: ChurnArgs) -> list[tuple[ChurnPackage, PeerDraft]]:
    """Every peer in the ways that ours runs: plain, and with the drafter if that is a head."""
    plain = (_NO_DRAFT,) if "plain" in args.work.ways else ()
    heads = tuple(_head_of(args)) if set(args.work.ways) - {"plain"} else ()
    return [
        (peer, draft)
        for peer in args.peers
        for draft in (*plain, *(head for head in heads if peer.can_draft(head.kind)))
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
    work = args.work
    for peer, draft in peer_ways(args):
        task = ChurnTask(
            engine=peer.name,
            folder=str(folder),
            dtype="auto" if dtype in ("int8", "packed") else dtype,  # forms of ours
            draft=draft,
            limits=PeerLimits(rows=work.most_rows, max_tokens=work.answer, context=context),
            prompts=tuple(take_prompts(prompts, max(work.requests, 2 * work.most_rows))),
            loads=tuple(
                PeerLoad(rows=rows, requests=work.num_requests(rows), warm=work.num_warm(rows))
                for rows in work.rows
            ),
        )
        yield from _run(task, peer, note)


def _run(task: ChurnTask, peer: ChurnPackage, note: Note) -> Iterator[PeerRun]:
    """A run for every load; those that a failure took have its words instead of a speed."""
    way, error = _way(task.draft), ""
    speeds = run_churn_peer(task)
    for load in task.loads:
        note(f"{peer.name}, {way}, {load.rows} at a time")
        speed = 0.0
        try:
            speed = next(speeds) if not error else 0.0
        except RuntimeError as failure:
            error = str(failure)
        yield PeerRun(
            engine=peer.name,
            version=peer.version,
            way=way,
            rows=load.rows,
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
    folder = Path(draft.drafter)
    tree = resolve_budget(fit_draft(fit_usual(draft, args.place.dtype, on_cpu=False), folder)).tree
    yield PeerDraft(
        folder=draft.drafter,
        kind=head_kind(read_fields(folder)),
        steps=tree.steps,
        topk=tree.topk,
        nodes=tree.nodes,
    )
