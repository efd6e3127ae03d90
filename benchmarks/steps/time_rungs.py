"""How long steps take with each rung of a head: drafts for every row alike, and shared by rows.

python -m benchmarks.steps.time_rungs llama-8b --rows 64 16
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.forced_acceptance import ChanceVerifier, accept_chance
from benchmarks.steps.bench_engines import BenchTarget, build, head_drafting, load_bench_target
from benchmarks.steps.body import find_body
from benchmarks.steps.steady_rows import Steady, measure_steady
from benchmarks.steps.step_args import SKIPPED, Case, Place, Tree
from outrider.bench.policy_engine import RungsInTurn
from outrider.wire.draft_budget import Budget, Rung, ladder_of

_BUDGET = Budget(steps=5, topk=1, nodes=6)
_EMITTED = 2.9  # tokens of a round with the whole budget


def time_rungs(
    target: BenchTarget, *, draft_vocab: int, case: Case, steps: int
) -> Iterator[tuple[Rung, Steady]]:
    """Every rung of both ladders, one engine for all of them."""
    tree = Tree(steps=_BUDGET.steps, topk=1, nodes=_BUDGET.nodes, mean_emitted=_EMITTED)
    chance = accept_chance(_EMITTED, steps=_BUDGET.steps)
    verifier = ChanceVerifier(chance, device=target.device)
    drafting = replace(head_drafting(target, tree, draft_vocab=draft_vocab), verifier=verifier)
    context = case.prompt + _BUDGET.nodes * (steps + 2 * SKIPPED)
    loaded = build(target, drafting, rows=case.rows, context=context)
    alone, shared = (ladder_of(_BUDGET, is_shared=is_shared) for is_shared in (False, True))
    for rung in dict.fromkeys((*alone, *shared)):
        loaded.engine.use_policy(RungsInTurn(rung))
        yield rung, measure_steady(loaded, case, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("body")
    parser.add_argument("--rows", type=int, nargs="+", default=[64])
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    args = parser.parse_args()
    place = Place(
        device=args.device,
        dtype=args.dtype,
        executor="auto",
        is_deterministic=False,
        step_tokens=2048,
        reads_prompts=False,
    )
    body = find_body(args.body)
    target = load_bench_target(body, place)
    for rows in args.rows:
        case = Case(rows=rows, prompt=args.prompt)
        for rung, steady in time_rungs(
            target, draft_vocab=body.draft_vocab, case=case, steps=args.steps
        ):
            emitted = steady.emitted / rows / len(steady.steps_s)
            print(
                f"{rows} rows, trees of {rung.tree.nodes} nodes, {rung.nodes} verified: "
                f"{steady.step_s * 1e3:.3f} ms, {emitted:.2f} tokens a round",
                flush=True,
            )


if __name__ == "__main__":
    main()
