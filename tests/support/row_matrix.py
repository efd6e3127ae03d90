"""The engine on tiny models whose past lives in rows, against the reference decoder."""

from dataclasses import dataclass, replace

from transformers import PreTrainedModel

from outrider.runtime.draft_kinds import DraftKind, NgramDraft, NoDraft
from outrider.wire.draft_budget import Budget
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import SAMPLINGS
from support.reference import decode
from support.row_harness import PAGE_SIZE

# Texts that repeat themselves, and pass the window, several blocks of 4 and some of 16 tokens.
PROMPTS = [[5, 6, 7, 8] * 10, [9] * 6, [5, 6, 7, 8, 30] * 5 + [5, 6], [50]]
MAX_TOKENS = 24
# With three words a model repeats itself now and then, so some drafts are kept and some are not.
FEW_WORDS = tuple((token, 30.0) for token in (5, 6, 7))
CHAIN = NgramDraft(budget=Budget(steps=5, topk=1, nodes=6), min_match=1, max_match=4)
LONGEST = NgramDraft(budget=Budget(steps=15, topk=1, nodes=16), min_match=1, max_match=4)
PLAIN = NoDraft()

# By the model itself, which stays alive: the id of one that is gone is given away again.
_answers: dict[tuple[PreTrainedModel, str, int], list[int]] = {}


@dataclass(frozen=True)
class Case:
    sampling: str
    draft: DraftKind
    shape: Shape

    def __str__(self) -> str:
        s, nodes = self.shape, self.draft.facts.budget.nodes
        words = [self.sampling, f"nodes{nodes}", s.executor, f"depth{s.depth}", f"pad{s.pad}"]
        return "-".join([*words, f"chunk{s.step_tokens}", f"rows{s.max_rows}", f"kv{s.kv_tokens}"])


def shape_of(draft: DraftKind, *, chunk: int, **how) -> Shape:
    """Room for the chains of all rows, and for a chunk."""
    rows = how.pop("max_rows", 4)
    step_tokens = rows * draft.facts.budget.nodes + chunk
    return Shape(page_size=PAGE_SIZE, max_rows=rows, step_tokens=step_tokens, **how)


def sampling_of(name: str):
    return replace(SAMPLINGS[name], bias=FEW_WORDS)


def right_answer(theirs, sampling: str, index: int) -> list[int]:
    """The reference decoder's answer; computed once, as it depends on model and sampling alone."""
    key = (theirs, sampling, index)
    if key not in _answers:
        answer = decode(theirs, PROMPTS[index], sampling_of(sampling), max_tokens=MAX_TOKENS)
        _answers[key] = answer.tokens
    return _answers[key]


def run_case(target, case: Case):
    """Outputs of all prompts in one batch, by request id."""
    return run_all(engine_of(target, case.shape, case.draft), ask_all(case.sampling, PROMPTS))


def ask_all(sampling: str, prompts):
    """All prompts with the same sampling."""
    return [
        make_submission(f"r{i}", prompt, sampling_of(sampling), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(prompts)
    ]


def mismatches(theirs, target, case: Case) -> list[str]:
    """Run one case; what differs from the reference decoder, in words."""
    outputs, found = run_case(target, case), []
    for i in range(len(PROMPTS)):
        right, got = right_answer(theirs, case.sampling, i), outputs[f"r{i}"]
        if got.tokens != right:
            found.append(f"prompt {i}: {got.tokens} instead of {right}; {got.last.reason}")
    return found
