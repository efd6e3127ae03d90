"""Engines for all ways: one model in memory, and runners that are captured once for all loads."""

import gc
from dataclasses import dataclass, replace

import torch

from benchmarks.forced_acceptance import ChanceVerifier
from benchmarks.never_slower.never_args import NeverWork
from benchmarks.never_slower.timed_load import LoadedWay
from benchmarks.steps.bench_engines import (
    BenchTarget,
    Drafting,
    LoadedEngine,
    budget_of,
    build,
    head_drafting,
    no_drafting,
)
from benchmarks.steps.step_args import Tree
from outrider.runtime.draft_kinds import ModelDraft
from outrider.wire.runner_facts import RunnerFacts

PLAIN, ADAPTIVE = "plain", "adaptive"
_SPARE = 8  # tokens of context beyond the longest request


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverEngines:
    """Every way, and the verifier whose chance is that of the text."""

    plain: LoadedWay
    drafted: tuple[LoadedWay, ...]  # fixed chains, then adaptive drafting
    verifier: ChanceVerifier
    device: torch.device

    def use_chance(self, chance: float) -> None:
        """Accept drafts with this chance from now on; the draws begin again."""
        self._synchronize()
        self.verifier.restart(chance)
        self._synchronize()  # steps run on streams of their own

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def start_engines(target: BenchTarget, work: NeverWork, *, draft_vocab: int) -> NeverEngines:
    """Start them all. The whole chain runs on the runner of adaptive drafting, which has captured
    its shapes; shorter chains have their own runners.
    """

    def way(name: str, loaded: LoadedEngine, facts: RunnerFacts) -> LoadedWay:
        return LoadedWay(name, loaded.runner, facts, keeps=work.keeps_engines)

    verifier, whole = ChanceVerifier(0.5, device=target.device), work.chains[-1]
    drafting = head_drafting(target, _chain(whole), draft_vocab=draft_vocab)
    assert isinstance(drafting.kind, ModelDraft), "a head is one"
    kind = replace(drafting.kind, is_adaptive=True)
    plain = _start(target, no_drafting(), work)
    adaptive = _start(target, Drafting(kind=kind, verifier=verifier), work)
    chains = []
    for steps in work.chains[:-1]:
        shorter = replace(drafting.kind, budget=budget_of(_chain(steps)))
        loaded = _start(target, Drafting(kind=shorter, verifier=verifier), work)
        chains.append(way(chain_name(steps), loaded, loaded.engine.facts))
    chains.append(way(chain_name(whole), adaptive, _always(adaptive.engine.facts)))
    gc.collect()
    gc.freeze()  # a collection in the middle of a load passes over models and graphs
    return NeverEngines(
        plain=way(PLAIN, plain, plain.engine.facts),
        drafted=(*chains, way(ADAPTIVE, adaptive, adaptive.engine.facts)),
        verifier=verifier,
        device=target.device,
    )


def chain_name(steps: int) -> str:
    return f"chain of {steps}"


def _chain(steps: int) -> Tree:
    return Tree(steps=steps, topk=1, nodes=1 + steps, mean_emitted=1.0)


def _start(target: BenchTarget, drafting: Drafting, work: NeverWork) -> LoadedEngine:
    return build(target, drafting, rows=work.most_rows, context=work.limits.longest + _SPARE)


def _always(facts: RunnerFacts) -> RunnerFacts:
    """Facts by which every round drafts the whole chain."""
    return replace(facts, draft=replace(facts.draft, is_adaptive=False))
