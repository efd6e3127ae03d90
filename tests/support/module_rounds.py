"""Runs an engine with MTP modules under forced acceptance and notes its drafts after each step."""

from dataclasses import dataclass, replace

import torch

from outrider.ops.tree.verify import verify
from outrider.runtime.draft_kinds import ModulesDraft
from outrider.wire.draft_budget import Budget
from support.engines import engine_of, run_all
from support.module_oracle import ModuleOracle


class ScriptedVerifier:
    """Accepts as many drafts of each row as a table says, by device operations alone."""

    def __init__(self, counts: list[int], device: str = "cpu") -> None:
        self._counts = torch.tensor(counts, device=device)
        self._clock = torch.zeros((), dtype=torch.int64, device=device)
        self.total_accepted = torch.zeros(8, dtype=torch.int64, device=device)  # by number accepted

    def __call__(self, tree, choice, most_emitted):
        rows, nodes = tree.tokens.shape
        row = torch.arange(rows, device=choice.device)
        num_accepted = self._counts[(self._clock + 3 * row) % self._counts.shape[0]][
            :, None
        ]  # [rows, 1]
        self._clock.add_(1)
        depth = torch.arange(nodes, device=choice.device)
        cut = tree.tokens.masked_fill(depth > num_accepted, -1)
        agreed = torch.cat([cut[:, 1:], cut[:, :1]], dim=1)  # the draft below each node
        is_agreed = (depth < num_accepted) & (agreed >= 0) & (depth < nodes - 1)
        verify_result = verify(
            replace(tree, tokens=cut), torch.where(is_agreed, agreed, choice), most_emitted
        )
        self.total_accepted.index_add_(
            0, verify_result.num_accepted, torch.ones_like(verify_result.num_accepted)
        )
        return verify_result


@dataclass
class Noted:
    """One row after one step."""

    request: int
    length: int  # committed rows of draft KV
    drafts: list[int]
    kv: torch.Tensor  # [modules, length, 2 * kv_heads, head_dim]
    is_decoding: bool


def watch(monkeypatch, engine) -> list[Noted]:
    """Everything that the drafter knows about the rows of a step, after each step.

    A request is known by its seed, `seed_of(index)`, however often it is admitted.
    """
    runner, notes, owners = engine._runner, [], {}
    submit, drafter = runner.submit, runner._program.drafter._drafter

    def watched(batch):
        pending = submit(batch)
        for admission in batch.admissions:
            owners[admission.row] = admission.sampling.seed // SEEDS
        decoding = set(batch.decodes.rows)
        decoding |= {chunk.row for chunk in batch.chunks if chunk.is_last}
        table = runner._program.state.rows
        notes.extend(note(table, drafter, row, owners[row], decoding) for row in batch.rows)
        return pending

    monkeypatch.setattr(runner, "submit", watched)
    return notes


def note(table, drafter, row, request, decoding) -> Noted:
    if table.lengths.is_cuda:
        torch.cuda.synchronize()  # steps run in a stream of their own
    length, page_size = int(table.lengths[row]), drafter._kv.layout.page_size
    position = torch.arange(length)
    slots = table.pages[row].cpu()[position // page_size] * page_size + position % page_size
    layers = [layer.flatten(0, 1).cpu()[slots] for layer in drafter._kv.layers]
    drafts = drafter._drafts[row].tolist()
    return Noted(request, length, drafts, torch.stack(layers), row in decoding)


SEEDS = 1000  # apart


def seed_of(index: int) -> int:
    return SEEDS * index + 7


TOLERANCE = 1e-3  # of rotated keys and values; a chain of modules amplifies what rounding leaves


def mistakes(notes, oracle: ModuleOracle, texts, samplings) -> list[str]:
    """Steps after which drafts or draft KV are not those of a recomputation from scratch."""
    wrong = []
    for one in notes:
        text = texts[one.request][: one.length + 1]
        if len(text) <= one.length:
            continue  # with overlap a round may run after the answer has ended
        right = oracle.recompute(text, samplings[one.request])
        where = f"request {one.request} after {one.length} tokens"
        # Inside a prompt the newest positions depend on drafts, which the next chunk replaces.
        for module, theirs in enumerate(right.kv):
            ours = one.kv[module]
            exact = one.length if one.is_decoding else one.length - module
            off = (ours[:exact] - theirs[:exact]).abs().flatten(1).amax(1) > TOLERANCE
            if off.any():
                rows = off.nonzero().flatten().tolist()
                wrong.append(f"{where}: KV rows {rows} of module {module}")
        if one.is_decoding and one.drafts != right.drafts:
            wrong.append(f"{where}: {one.drafts} instead of {right.drafts}")
    return wrong


def run(
    monkeypatch,
    made,
    shape,
    submissions,
    *,
    num,
    counts,
    before=(),
    budget=None,
    rows=None,
):
    """Run the submissions; the notes, the verifier and the outputs."""
    chain = made.load(most=num)
    verifier = ScriptedVerifier(counts, shape.device)
    draft = ModulesDraft(modules=chain, budget=budget or Budget(steps=num, topk=1, nodes=num + 1))
    engine = engine_of(made.target, shape, draft, verifier=verifier, rows=rows)
    if before:
        run_all(engine, list(before))
    notes = watch(monkeypatch, engine)
    outputs = run_all(engine, list(submissions))
    return notes, verifier, outputs
