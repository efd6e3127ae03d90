"""Draft modules, one per depth: after any acceptance, drafts and KV follow from the text alone.

A mistake here changes no token, only how many drafts are kept, so nothing else would notice it.
"""

import random
from dataclasses import replace

import pytest
from support.engines import Shape, ask
from support.module_oracle import ModuleOracle
from support.module_rounds import mistakes, run
from support.modules import TABLES, with_modules
from support.tiny import VOCAB

from outrider.step.buckets import Listed
from outrider.wire.sampling import RowSampling

GREEDY = RowSampling(seed=0, temperature=0.0)
SAMPLED = RowSampling(seed=5, temperature=0.9)
PROMPT = [(11 * i + 5) % VOCAB for i in range(21)]
NUM = 3


def random_counts(seed, num=NUM):
    rng = random.Random(seed)
    return [rng.randint(0, num) for _ in range(37)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A target of every table, made when it is asked for."""
    cache = {}

    def get(name, **how):
        key = (name, *sorted(how.items()))
        if key not in cache:
            folder = tmp_path_factory.mktemp("modules")
            cache[key] = with_modules(folder, TABLES[name], **{"num": NUM} | how)
        return cache[key]

    return get


def check(monkeypatch, made, shape, prompts, *, num=NUM, seed=0, laws=None, before=(), **how):
    """Run prompts to the end of 16 tokens each; what is wrong, and how much was kept."""
    laws = laws or [GREEDY] * len(prompts)
    asked = [
        ask(f"r{i}", prompt, replace(law, seed=law.seed + i), max_tokens=16)
        for i, (prompt, law) in enumerate(zip(prompts, laws, strict=True))
    ]
    notes, judge, heard = run(
        monkeypatch,
        made,
        shape,
        asked,
        num=num,
        counts=random_counts(seed, num),
        before=before,
        **how,
    )
    texts = [[*prompt, *heard[f"r{i}"].tokens] for i, prompt in enumerate(prompts)]
    samplings = [each.sampling for each in asked]
    wrong = mistakes(notes, ModuleOracle(made, num=num), texts, samplings)
    return wrong, notes, judge, heard


@pytest.mark.parametrize("executor", ["eager", "tape"])
@pytest.mark.parametrize("name", TABLES)
def test_drafts_and_kv_follow_from_the_text_alone(monkeypatch, made, name, executor):
    shape = Shape(page_size=4, step_tokens=64, max_rows=1, executor=executor)
    wrong, notes, judge, _ = check(monkeypatch, made(name), shape, [PROMPT])
    assert not wrong
    assert len(notes) > 4
    assert (judge.total_kept[: NUM + 1] > 0).sum() > 2  # several lengths of acceptance
