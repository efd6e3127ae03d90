"""What requests may ask of recurrent models besides tokens: grammars, scores of prompts."""

import pytest
from support.engines import engine_of, make_submission, run_all
from support.grammars import PlainMasks, decode_plainly
from support.matchers import MatcherStates
from support.recurrent import VOCAB, expected_logits
from support.row_matrix import CHAIN, PROMPTS, shape_of
from support.tiny_vocabulary import END, SPECS, TINY

from outrider import LLM, SamplingParams
from outrider.structured.grammar_cache import GrammarCache
from outrider.wire.grammar_spec import Grammar
from outrider.wire.row_sampling import RowSampling


@pytest.fixture(scope="module")
def grammar_cache():
    pytest.importorskip("xgrammar")
    grammar_cache = GrammarCache(lambda: TINY, vocab_size=VOCAB)
    yield grammar_cache
    grammar_cache.close()


@pytest.mark.slow
@pytest.mark.parametrize(("executor", "depth"), [("eager", 1), ("tape", 0)])
def test_grammars_are_obeyed_as_by_plain_decoding(theirs, target, grammar_cache, executor, depth):
    shape = shape_of(CHAIN, chunk=7, executor=executor, depth=depth, pad=3)
    masks, specs = PlainMasks(MatcherStates()), list(SPECS.values())
    submissions = [
        make_submission(
            f"r{i}",
            text,
            RowSampling(seed=i, grammar=Grammar(spec=specs[i % len(specs)], ends=(END,))),
            max_tokens=12,
            stop_ids=(END,),
        )
        for i, text in enumerate(PROMPTS)
    ]
    outputs = run_all(engine_of(target, shape, CHAIN, grammar_cache), submissions)
    for each in submissions:
        right = decode_plainly(
            theirs, masks, each.prompt, each.sampling, max_tokens=12, stop_ids=(END,)
        )
        assert outputs[each.request_id].tokens == right


def test_tokens_of_prompts_that_come_in_chunks_are_scored(theirs, folder):
    sizes = {"max_model_len": 96, "max_num_seqs": 2, "max_num_batched_tokens": 24}
    llm = LLM(folder, draft="ngram", adaptive=False, device="cpu", **sizes)
    params = SamplingParams(
        temperature=0.0, max_tokens=8, detokenize=False, ignore_eos=True, prompt_logprobs=1
    )
    texts = [PROMPTS[0], PROMPTS[2]]
    for text, said in zip(texts, llm.generate(texts, params, use_tqdm=False), strict=True):
        right = expected_logits(theirs, text).log_softmax(-1)
        for place in range(1, len(text)):
            token = text[place]
            score = said.prompt_logprobs[place][token].logprob
            assert score == pytest.approx(float(right[place - 1, token]), abs=1e-4)
