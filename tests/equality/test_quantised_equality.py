"""With quantised targets, too, the tokens are those of the reference decoder, however a step runs.

Modules inside of the target are quantised like it; heads are not.
"""

from functools import cache

import pytest
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, mismatches, run_case, sampling_of, some_cases
from support.quantised_models import make_packed_llama, make_quantised

from outrider.ops.linear.tiled_product import why_no_products

DRAFTERS = ("twin", "relative", "relative+suffix", "eagle", "eagle3", "medusa", "mtp", "modules")
FORMS = {"llama": "fp8 blocks", "deepseek-v3": "int4 groups"}
OF_CODES = ("relative", "eagle", "eagle3", "medusa")
IN_CODES = [case for case in some_cases(40, seed=8, drafters=OF_CODES) if case.target == "llama"]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    return cache(lambda name: make_quantised(tmp_path_factory.mktemp(name), name, FORMS[name]))


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("case", some_cases(24, seed=5, drafters=DRAFTERS), ids=str)
def test_every_way_of_running_gives_the_reference_tokens(quantised, case):
    assert not mismatches(quantised(case.target), case)


@pytest.fixture(scope="module")
def in_codes(tmp_path_factory):
    models = make_packed_llama(tmp_path_factory.mktemp("codes"), "int4 groups of 32")
    stored = {each.storage for each in models.target.storage}
    assert "int4" in stored or why_no_products(), "widened"
    return models


@pytest.fixture(scope="module")
def plain_answer(in_codes):
    """A prompt alone, without drafts and cached prefixes."""

    @cache
    def answer(sampling, i):
        own = sampling_of(sampling, i)
        asked = make_submission(f"r{i}", PROMPTS[i], own, max_tokens=MAX_TOKENS)
        return run_all(engine_of(in_codes.target, Shape()), [asked])[f"r{i}"]

    return answer


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("case", IN_CODES, ids=str)
def test_drafts_change_no_bit_of_a_target_that_computes_with_codes(in_codes, plain_answer, case):
    found = run_case(in_codes, case)
    for i in range(len(PROMPTS)):
        right = plain_answer(case.sampling, i)
        assert found[f"r{i}"].tokens == right.tokens
        assert found[f"r{i}"].logprobs == right.logprobs
