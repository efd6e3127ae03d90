"""On a GPU, recorded or not, every node of a tree is masked by the grammar of its row."""

from dataclasses import replace

import pytest
import torch
from support.choices import ChoiceGrammars, ChoiceStates, one_of
from support.engines import Shape, engine_of, make_submission, run_all
from support.grammars import PlainMasks, decode_plainly, spelled
from support.matchers import match_in_this_process
from support.matrix import TREES
from support.model_set import make_models
from support.tiny_vocabulary import END

from outrider.ops.sampling.grammar_mask import mask_tokens_
from outrider.wire.grammar_spec import Grammar
from outrider.wire.row_sampling import Ban, Filters, LogprobsWanted, Penalties, RowSampling

WORDS = ["red", "green", "greens", "green abc", "abcabcabc", "123123000", "{ab}"]
MAX_TOKENS = 12
SAMPLINGS = {
    "greedy": RowSampling(seed=0, temperature=0.0),
    "sampled": RowSampling(seed=11, temperature=1.0),
    "warped": RowSampling(
        seed=5,
        temperature=1.3,
        filters=Filters(top_k=20, top_p=0.9, min_p=0.02),
        penalties=Penalties(repetition=1.2, presence=0.3, frequency=0.2),
        bias=((4, 2.0), (9, -3.0)),
        ban=Ban(before=9, tokens=(END,)),
        logprobs=LogprobsWanted(chosen=True, top=2),
    ),
}
PROMPTS = [[7, 3, 44, 19, 60, 31, 8, 8, 25], [50], [4, 66, 12, 9, 33]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.backends.cuda.matmul.allow_tf32 = False
    return make_models(tmp_path_factory.mktemp("models"), "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 67), (5, 9001), (64, 128_256), (3, 151_936)])
def test_the_compiled_kernel_masks_as_the_reference_does(dtype, rows, vocab):
    torch.manual_seed(rows)
    logits = torch.randn(rows, vocab).to(dtype)
    bits = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), dtype=torch.int64).int()
    bits[0] = -1
    on_device = logits.cuda()
    mask_tokens_(logits, bits)
    mask_tokens_(on_device, bits.cuda())
    assert torch.equal(on_device.cpu(), logits)


@pytest.mark.parametrize("executor", ["eager", "graph", "breakable"])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    ("drafter", "tree"), [("none", "chain"), ("twin", "chain"), ("relative", "tree")]
)
def test_a_grammar_row_answers_as_plain_decoding_does(
    models, monkeypatch, executor, depth, sampling, drafter, tree
):
    match_in_this_process(monkeypatch, ChoiceStates())
    grammars = ChoiceGrammars()
    grammar = Grammar(spec=one_of(WORDS), ends=(END,))
    submissions = [
        make_submission(
            f"r{i}",
            PROMPTS[i % len(PROMPTS)],
            replace(SAMPLINGS[sampling], seed=SAMPLINGS[sampling].seed + i, grammar=grammar),
            max_tokens=MAX_TOKENS,
            stop_ids=(END,),
        )
        for i in range(6)  # more than there are rows: owners change in flight
    ]
    free = make_submission("free", PROMPTS[1], SAMPLINGS[sampling], max_tokens=MAX_TOKENS)
    shape = Shape(device="cuda", pad=4, depth=depth, step_tokens=60, executor=executor)
    engine = engine_of(models.target, shape, models.draft(drafter, TREES[tree]), grammars)
    outputs = run_all(engine, [*submissions, free])
    assert engine.num_failed_steps == 0
    masks = PlainMasks(ChoiceStates())
    for each in submissions:
        right = decode_plainly(
            models.theirs,
            masks,
            each.prompt,
            each.sampling,
            max_tokens=MAX_TOKENS,
            stop_ids=(END,),
        )
        assert outputs[each.request_id].tokens == right
        assert spelled(right) in WORDS
    alone = run_all(engine_of(models.target, replace(shape, executor="eager")), [free])
    assert outputs["free"].tokens == alone["free"].tokens
