"""Ranks in processes of their own give the bits of ranks that are threads of one process."""

import pytest
import torch
from support.engines import make_submission, run_all
from support.heads import write_head
from support.quantised_models import pack_in_place
from support.rank_matrix import sampling_of
from support.rank_models import RankFamily
from support.reference import decode
from support.thread_ranks import LockstepRunner, ThreadGroup
from support.tiny import save_tiny
from transformers import AutoModelForCausalLM

from outrider.config.draft_config import DraftConfig
from outrider.config.engine_config import (
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    LimitsConfig,
    ParallelConfig,
)
from outrider.engine.engine import Engine
from outrider.models.model_config import read_config
from outrider.runtime.model_home import ModelHome
from outrider.runtime.start_group import RankGroupPlan
from outrider.runtime.start_runner import open_home
from tests.distributed.test_rank_matrix import BASE

CASES = [
    ("llama", 2, "eagle3", "tape"),
    ("llama-uneven", 3, "none", "eager"),
    ("qwen3.5", 2, "mtp", "eager"),
    ("deepseek-v4", 2, "mtp", "tape"),
]


@pytest.fixture(autouse=True)
def _threads():
    """Rank 0 of a group takes its share of the cores."""
    num = torch.get_num_threads()
    yield
    torch.set_num_threads(num)


def answers(runner, facts):
    engine = Engine(runner, facts, runner.grammars)
    submissions = [
        make_submission(f"r{i}", prompt, sampling_of(BASE, i), max_tokens=10)
        for i, prompt in enumerate(BASE.prompts)
    ]
    outputs = run_all(engine, submissions)
    return {name: (each.tokens, each.logprobs) for name, each in outputs.items()}


def run_threads(folder, config, size):
    group = ThreadGroup(size)
    built = group.run(lambda rank: ModelHome(folder, config, ranks=group.ranks[rank]).build())
    return answers(LockstepRunner(group, [runner for runner, _ in built]), built[0][1])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "size", "drafter", "executor"), CASES)
def test_processes_give_the_bits_of_threads(tmp_path, family, size, drafter, executor):
    saved = RankFamily(family, tmp_path)
    assert saved.theirs, "saved"
    name = str(saved.heads[drafter]) if drafter == "eagle3" else drafter
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        execution=ExecutionConfig(executor=executor),
        cache=CacheConfig(kv_tokens=1024),
        limits=LimitsConfig(rows=4, context=128),
        parallel=ParallelConfig(tensor=size),
        draft=DraftConfig(drafter=name, steps=3, topk=1, adaptive=False),
    )
    home = open_home(RankGroupPlan(folder=saved.folder, config=config))
    runner, facts = home.build()
    found = answers(runner, facts)
    cache = home._plan.config.cache  # when it wakes up
    assert cache.row_snapshots == facts.snapshots.num
    assert cache.window_tokens == facts.memory.windows.num_pages * facts.host.page_size
    assert found == run_threads(saved.folder, config, size)
    assert all(logprobs for _, logprobs in found.values())


@pytest.mark.slow
@pytest.mark.parametrize(("form", "drafter"), [("fp8 blocks", "eagle3"), ("int4 groups", "ngram")])
def test_processes_share_a_quantised_folder(tmp_path, form, drafter):
    save_tiny("llama", tmp_path / "model")
    plain = pack_in_place(tmp_path / "model", form)
    write_head(tmp_path / "eagle3", read_config(tmp_path / "model"), algorithm="eagle3")
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        cache=CacheConfig(kv_tokens=1024),
        limits=LimitsConfig(rows=4, context=128),
        parallel=ParallelConfig(tensor=2),
        draft=DraftConfig(
            drafter=str(tmp_path / drafter) if drafter == "eagle3" else drafter,
            steps=3,
            topk=1,
            adaptive=False,
        ),
    )
    home = open_home(RankGroupPlan(folder=tmp_path / "model", config=config))
    found = answers(*home.build())
    assert found == run_threads(tmp_path / "model", config, 2)
    theirs = AutoModelForCausalLM.from_pretrained(plain).eval()
    for i, prompt in enumerate(BASE.prompts):
        right = decode(theirs, prompt, sampling_of(BASE, i), max_tokens=10)
        tokens, logprobs = found[f"r{i}"]
        assert tokens == right.tokens
        assert logprobs == pytest.approx(right.logprobs, abs=1e-4)
