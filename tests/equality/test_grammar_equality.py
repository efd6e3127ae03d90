"""Under a grammar, too, speculation changes no token: every node is masked as plain decoding is."""

import itertools
import json
import random
from dataclasses import dataclass, replace

import pytest
from support.engines import UNLIMITED, Shape, engine_of, make_submission, run_all
from support.grammars import PlainMasks, decode_plainly, is_prefix_of, spelled
from support.matchers import MatcherStates, match_in_this_process
from support.matrix import LOOKUPS, TREES
from support.rungs import RandomRungs, different_bits
from support.tiny import VOCAB
from support.tiny_vocabulary import END, OTHER_END, SPECS, TINY

from outrider.ops.sampling.sample_token import NOTHING_LEFT
from outrider.runtime.row_errors import FAILURES
from outrider.runtime.runner import Runner
from outrider.structured import matcher_process, row_grammars
from outrider.structured.grammar_cache import GrammarCache
from outrider.structured.grammar_matcher import MatcherState
from outrider.wire.grammar_spec import Grammar, GrammarSpec
from outrider.wire.row_sampling import Ban, Filters, LogprobsWanted, Penalties, RowSampling

pytest.importorskip("xgrammar")

MAX_TOKENS = 24
PROMPTS = [[7, 3, 44, 19, 60, 31, 8, 8, 25, 13, 21, 40], [50], [4, 66, 12, 9, 33], [7, 3, 44, 19]]
NODES = [64, 3, 1, 5]  # of the budget of each request: steps are ragged
SAMPLINGS = {
    "greedy": RowSampling(seed=0, temperature=0.0),
    "sampled": RowSampling(seed=11, temperature=1.0),
    "warped": RowSampling(
        seed=2**40 + 5,
        temperature=1.3,
        filters=Filters(top_k=20, top_p=0.9, min_p=0.02),
        penalties=Penalties(repetition=1.2, presence=0.3, frequency=0.2),
        bias=((4, 2.0), (9, -3.0)),
        ban=Ban(before=20, tokens=(END, OTHER_END)),
        logprobs=LogprobsWanted(chosen=True, top=2),
    ),
}


@pytest.fixture(scope="module")
def grammar_cache():
    grammar_cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    yield grammar_cache
    grammar_cache.close()


@pytest.fixture(scope="module")
def right(models, grammar_cache):
    """The reference decoder's answers, each computed once."""
    masks, known = PlainMasks(MatcherStates()), {}

    def answer(submission):
        key = (submission.prompt, submission.sampling, submission.limits)
        if key not in known:
            known[key] = decode_plainly(
                models.theirs,
                masks,
                submission.prompt,
                submission.sampling,
                max_tokens=submission.limits.max_tokens,
                stop_ids=submission.limits.stop_ids,
            )
        return known[key]

    return answer


@dataclass(frozen=True)
class Case:
    shape: Shape
    sampling: str
    drafter: str
    tree: str
    is_prefix_hit: bool

    def __str__(self):
        shape, hit = self.shape, "hit" if self.is_prefix_hit else "cold"
        words = [shape.executor, f"depth{shape.depth}", f"pad{shape.pad}", hit]
        return "-".join([*words, self.sampling, self.drafter, self.tree])


def all_cases():
    drafters = [("none", "chain"), *itertools.product(["twin", "relative", "ngram"], TREES)]
    for executor, depth, pad, extra, sampling, (drafter, tree), hit in itertools.product(
        ["eager", "tape"], [0, 1], [1, 4], [1, 60], SAMPLINGS, drafters, [False, True]
    ):
        nodes = 1 if drafter == "none" else TREES[tree].nodes
        shape = Shape(executor=executor, depth=depth, pad=pad, step_tokens=4 * nodes + extra)
        yield Case(shape, sampling, drafter, tree, hit)


def make_submissions(sampling, *, specs=tuple(SPECS)):
    """A batch of every grammar and, last, a row without one."""
    grammars = [Grammar(spec=SPECS[name], ends=(END,)) for name in specs]
    submissions = [
        make_submission(
            name,
            PROMPTS[i % len(PROMPTS)],
            replace(SAMPLINGS[sampling], seed=SAMPLINGS[sampling].seed + 1000 * i, grammar=grammar),
            max_tokens=MAX_TOKENS,
            stop_ids=(END,),
            budget=replace(UNLIMITED, nodes=NODES[i % len(NODES)]),
        )
        for i, (name, grammar) in enumerate(zip(specs, grammars, strict=True))
    ]
    return [
        *submissions,
        make_submission("free", PROMPTS[1], SAMPLINGS[sampling], max_tokens=MAX_TOKENS),
    ]


def wrong_answers(models, grammar_cache, right, case):
    draft = models.draft(case.drafter, TREES[case.tree])
    engine = engine_of(models.target, case.shape, draft, grammar_cache)
    submissions = make_submissions(case.sampling)
    if case.is_prefix_hit:
        run_all(engine, submissions)
    outputs = run_all(engine, submissions)
    assert engine.num_failed_steps == 0
    return not_right(outputs, submissions, right)


def not_right(outputs, submissions, right):
    return [
        f"{each.request_id}: {spelled(outputs[each.request_id].tokens)!r}"
        for each in submissions
        if each.request_id != "free" and outputs[each.request_id].tokens != right(each)
    ]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", random.Random(6).sample(list(all_cases()), 24), ids=str)
def test_a_grammar_row_answers_as_plain_decoding_does(models, grammar_cache, right, case):
    assert wrong_answers(models, grammar_cache, right, case) == []


def shared_cases():
    """Other ways to run the same rows, for every drafter with scores."""
    rng, trees = random.Random(7), [tree for tree in TREES if TREES[tree].nodes > 2]
    for drafter, sampling in itertools.product(
        ["twin", "relative", *LOOKUPS, "relative+suffix"], SAMPLINGS
    ):
        tree, pad, depth = rng.choice(trees), rng.choice([1, 4]), rng.choice([0, 1])
        tokens = 4 * TREES[tree].nodes + rng.choice([1, 60])
        shape = Shape(executor=rng.choice(["eager", "tape"]), depth=depth, pad=pad)
        hit = rng.random() < 0.5
        yield Case(replace(shape, step_tokens=tokens), sampling, drafter, tree, hit)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", list(shared_cases()), ids=str)
def test_grammar_rows_that_share_any_number_of_drafts_answer_as_plain_decoding_does(
    models, grammar_cache, right, case, monkeypatch
):
    """Beside rows without a grammar, with caps of their own, and log-probabilities to the bit."""
    ragged, launch = [], Runner._launch

    def watch(self, plan):
        ragged.append(plan.shape.ragged)
        return launch(self, plan)

    monkeypatch.setattr(Runner, "_launch", watch)
    asked = LogprobsWanted(chosen=True, top=1)
    submissions = [
        replace(each, sampling=replace(each.sampling, logprobs=asked))
        for each in make_submissions(case.sampling)
    ]
    draft = models.draft(case.drafter, TREES[case.tree])
    engine = engine_of(models.target, case.shape, draft, grammar_cache)
    engine._scheduler._policy = RandomRungs(TREES[case.tree], seed=len(str(case)))
    if case.is_prefix_hit:
        run_all(engine, submissions)
    outputs = run_all(engine, submissions)
    assert not_right(outputs, submissions, right) == []
    plain = engine_of(models.target, Shape(prefix_cache=False), grammars=grammar_cache)
    alone = {each.request_id: run_all(plain, [each])[each.request_id] for each in submissions}
    assert not different_bits(outputs, alone)
    assert any(ragged)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("drafter", ["none", "twin", "relative", "ngram"])
def test_every_way_to_run_a_grammar_row_gives_the_plain_answer(
    models, grammar_cache, right, drafter
):
    cases = [case for case in all_cases() if case.drafter == drafter]
    found = {str(case): wrong_answers(models, grammar_cache, right, case) for case in cases}
    assert not {case: wrong for case, wrong in found.items() if wrong}


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_answer_is_of_its_grammar(models, grammar_cache, sampling):
    draft = models.draft("relative", TREES["tree"])
    outputs = run_all(
        engine_of(models.target, Shape(depth=1), draft, grammar_cache), make_submissions(sampling)
    )
    texts = {name: spelled(entry.tokens) for name, entry in outputs.items() if name in SPECS}
    finishes = {name: outputs[name].last.finish for name in SPECS}
    assert is_prefix_of("choice", texts["choice"])
    assert is_prefix_of("regex", texts["regex"])
    if finishes["json"] == "stop":
        assert set(json.loads(texts["json"])) == {"a", "b"}
    assert texts["json"].lstrip().startswith("{")
    assert finishes["choice"] == "stop"


def test_a_row_without_a_grammar_does_not_notice_its_neighbours(models, grammar_cache):
    alone = run_all(engine_of(models.target, Shape()), make_submissions("warped")[-1:])
    draft = models.draft("relative", TREES["tree"])
    together = run_all(
        engine_of(models.target, Shape(depth=1), draft, grammar_cache), make_submissions("warped")
    )
    assert together["free"].tokens == alone["free"].tokens


@pytest.mark.parametrize("drafter", ["none", "twin"])
def test_a_row_that_gave_way_finds_its_place_in_the_grammar_again(
    models, grammar_cache, right, drafter
):
    scarce = Shape(kv_tokens=64, max_context=48, step_tokens=30, depth=1, prefix_cache=False)
    submissions = [
        make_submission(
            f"r{i}",
            [3 * i + 1, 7, 9, 2 * i],
            RowSampling(seed=i, grammar=Grammar(spec=SPECS["json"], ends=(END,))),
            max_tokens=MAX_TOKENS,
            stop_ids=(END,),
        )
        for i in range(4)
    ]
    engine = engine_of(models.target, scarce, models.draft(drafter, TREES["chain"]), grammar_cache)
    outputs = run_all(engine, submissions)
    assert sum(entry.last.progress.preemptions for entry in outputs.values())
    for each in submissions:
        assert outputs[each.request_id].tokens == right(each)


def test_rows_change_owners_while_a_step_is_in_flight(models, grammar_cache, right):
    """All requests use one row in turn: the grammar state of each starts afresh."""
    submissions = make_submissions("sampled", specs=("choice", "regex", "json", "ebnf"))[:-1]
    single = Shape(max_rows=1, depth=1, step_tokens=20)
    draft = models.draft("twin", TREES["chain"])
    outputs = run_all(engine_of(models.target, single, draft, grammar_cache), submissions)
    for each in submissions:
        assert outputs[each.request_id].tokens == right(each)


def test_an_aborted_row_leaves_nothing_to_its_successor(models, grammar_cache, right):
    first, second = make_submissions("sampled", specs=("json", "json"))[:2]
    second = replace(second, request_id="second")
    engine = engine_of(models.target, Shape(max_rows=1, depth=1), grammars=grammar_cache)
    engine.add(first)
    for _ in range(6):
        engine.step()
    engine.abort(first.request_id)
    assert run_all(engine, [second])["second"].tokens == right(second)


@pytest.mark.parametrize("drafter", ["none", "twin", "relative"])
def test_an_answer_that_must_go_on_repeats_its_end(models, grammar_cache, drafter):
    sampling = RowSampling(seed=1, grammar=Grammar(spec=SPECS["choice"], ends=(END, OTHER_END)))
    submission = make_submission(
        "r", PROMPTS[0], sampling, max_tokens=MAX_TOKENS
    )  # nothing stops it
    draft = models.draft(drafter, TREES["tree"])
    tokens = run_all(engine_of(models.target, Shape(depth=1), draft, grammar_cache), [submission])[
        "r"
    ].tokens
    text = spelled(tokens)
    num_ends = sum(token in (END, OTHER_END) for token in tokens)
    assert text in ("red", "green", "green abc", "12")
    assert len(tokens) == MAX_TOKENS
    assert set(tokens[-num_ends:]) <= {END, OTHER_END}


def test_a_minimum_of_tokens_yields_to_a_grammar_that_is_complete(models, grammar_cache):
    ban = Ban(before=len(PROMPTS[0]) + 20, tokens=(END,))
    sampling = RowSampling(seed=1, ban=ban, grammar=Grammar(spec=SPECS["choice"], ends=(END,)))
    submission = make_submission("r", PROMPTS[0], sampling, max_tokens=MAX_TOKENS, stop_ids=(END,))
    tokens = run_all(engine_of(models.target, Shape(), grammars=grammar_cache), [submission])[
        "r"
    ].tokens
    assert tokens[-1] == END
    # "green" alone could still become "green abc", so there the ban held.
    assert spelled(tokens) in ("red", "green abc", "12")


@pytest.mark.parametrize("drafter", ["none", "twin"])
def test_a_grammar_that_cannot_be_spelled_ends_its_request(models, grammar_cache, drafter):
    stuck = replace(SPECS["choice"], text='root ::= "ab" "Z"')  # no token holds a capital letter
    sampling = RowSampling(seed=1, grammar=Grammar(spec=stuck, ends=(END,)))
    submission = make_submission("r", PROMPTS[0], sampling, max_tokens=MAX_TOKENS, stop_ids=(END,))
    draft = models.draft(drafter, TREES["chain"])
    got = run_all(engine_of(models.target, Shape(), draft, grammar_cache), [submission])["r"]
    assert spelled(got.tokens) == "ab"
    assert got.last.failure == FAILURES[NOTHING_LEFT]


def test_a_grammar_that_does_not_compile_ends_its_request_alone(models, grammar_cache):
    bad = Grammar(spec=replace(SPECS["regex"], text="(ab"), ends=(END,))
    submissions = make_submissions("greedy")
    submissions.append(make_submission("bad", PROMPTS[0], RowSampling(seed=0, grammar=bad)))
    outputs = run_all(engine_of(models.target, Shape(depth=1), grammars=grammar_cache), submissions)
    assert outputs["bad"].last.finish == "error"
    assert "parenthesis" in outputs["bad"].last.reason
    assert outputs["choice"].last.finish == "stop"


def mask_every_node_as_its_parent(monkeypatch):
    original = matcher_process.mask_tree

    def shifted(state, tokens, parents, bits, first):
        original(state, tokens, parents, bits, first)
        own = bits[first : first + len(tokens)]
        own[:] = own[[max(parent, 0) for parent in parents]]

    monkeypatch.setattr(matcher_process, "mask_tree", shifted)


def never_roll_back(monkeypatch):
    def careless(self, num):
        self._num_tried = num

    monkeypatch.setattr(MatcherState, "rollback_to", careless)


def mask_node_0_alone(monkeypatch):
    original = matcher_process.mask_tree

    def first_only(state, tokens, parents, bits, first):
        original(state, tokens[:1], parents[:1], bits, first)

    monkeypatch.setattr(matcher_process, "mask_tree", first_only)


def forget_what_the_last_step_emitted(monkeypatch):
    monkeypatch.setattr(
        row_grammars.RowGrammars, "_read_emitted", lambda self: self._unread.clear()
    )


def advance_whoever_has_the_row_now(monkeypatch):
    """Tokens of the former owner reach the grammar of its successor."""
    original = row_grammars.RowGrammars._read_emitted

    def confused(self):
        self._unread = [
            replace(
                step,
                emitters=tuple(
                    replace(each, grammar=self._rows[each.row])
                    for each in step.emitters
                    if each.row in self._rows
                ),
            )
            for step in self._unread
        ]
        original(self)

    monkeypatch.setattr(row_grammars.RowGrammars, "_read_emitted", confused)


def freeze_the_masks_while_recording(monkeypatch):
    """Masks are made by the program itself, where a recording keeps those of the first step."""
    from outrider.runtime import program

    monkeypatch.setattr(program, "graph_break", lambda call, *args: call(*args))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("mutate", "executor"),
    [
        (mask_every_node_as_its_parent, "eager"),
        (never_roll_back, "eager"),
        (mask_node_0_alone, "eager"),
        (forget_what_the_last_step_emitted, "eager"),
        (advance_whoever_has_the_row_now, "eager"),
        (freeze_the_masks_while_recording, "tape"),
    ],
)
def test_known_mistakes_change_an_answer(
    models, grammar_cache, right, monkeypatch, mutate, executor
):
    # Rows of answers that are cut emit tokens past the cut. Other answers could begin with those.
    pairs = Grammar(spec=GrammarSpec(kind="regex", text="([0-9][a-e])+"), ends=(END,))
    cut = [
        make_submission("", [i], RowSampling(seed=i, grammar=pairs), max_tokens=4 + i % 3)
        for i in range(12)
    ]
    whole = [each for sampling in SAMPLINGS for each in make_submissions(sampling)[:-1]]
    submissions = [replace(each, request_id=str(i)) for i, each in enumerate([*cut, *whole])]
    answers = [right(each) for each in submissions]
    match_in_this_process(monkeypatch, MatcherStates())
    mutate(monkeypatch)
    shape = Shape(executor=executor, depth=1, max_rows=3)
    engine = engine_of(models.target, shape, models.draft("twin", TREES["tree"]), grammar_cache)
    outputs = run_all(engine, submissions)
    assert engine.num_failed_steps or any(
        outputs[each.request_id].tokens != answer
        for each, answer in zip(submissions, answers, strict=True)
    )
