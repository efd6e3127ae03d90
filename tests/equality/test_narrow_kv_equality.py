"""With keys and values of one byte, the tokens do not depend on how a step is run, either."""

from dataclasses import replace

import pytest
from support import recurrent
from support.engines import Shape, engine_of, make_submission, run_all
from support.matrix import MAX_TOKENS, PROMPTS, TREES, run_case, sampling_of, some_cases
from support.role_traces import draft_of, pair_traces, submissions, traces
from support.roles import pair_of
from support.tiny import save_tiny

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError
from outrider.runtime.draft_kinds import NoDraft

CASES = [case for case in some_cases(40, seed=4) if case.target == "llama"]
DTYPES = ["fp8_e4m3", "fp8_e5m2"]
_plain: dict[tuple[str, str], dict[str, object]] = {}  # by type and sampling


def plain_answers(models, dtype, sampling):
    """Every prompt alone, without drafts and cached prefixes; computed once."""
    key = dtype, sampling
    if key not in _plain:
        _plain[key] = {}
        for i, prompt in enumerate(PROMPTS):
            engine = engine_of(models.target, Shape(kv_dtype=dtype))
            own = sampling_of(sampling, i)
            asked = make_submission(f"r{i}", prompt, own, max_tokens=MAX_TOKENS)
            _plain[key] |= run_all(engine, [asked])
    return _plain[key]


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, DTYPES[place % 3 == 2]) for place, case in enumerate(CASES)],
    ids=str,
)
def test_every_way_of_running_gives_the_tokens_of_plain_decoding(models, case, dtype):
    right = plain_answers(models, dtype, case.sampling)
    shape = replace(case.shape, kv_dtype=dtype)
    found = run_case(models, replace(case, shape=shape))
    for name, output in found.items():
        assert output.tokens == right[name].tokens
        assert output.logprobs == pytest.approx(right[name].logprobs, abs=1e-5)


def test_the_type_of_the_cache_matters(models):
    """Or the other tests would compare nothing."""
    wide, narrow = (plain_answers(models, dtype, "greedy") for dtype in ("auto", "fp8_e5m2"))
    assert any(wide[name].logprobs != narrow[name].logprobs for name in wide)


def test_a_preempted_request_goes_on_with_the_same_tokens(models):
    right = plain_answers(models, "fp8_e4m3", "greedy")
    shape = Shape(kv_dtype="fp8_e4m3", kv_tokens=40, max_context=40)  # two requests at most
    engine = engine_of(models.target, shape, models.draft("relative", TREES["tree"]))
    asked = [
        make_submission(f"r{i}", prompt, sampling_of("greedy", i), max_tokens=MAX_TOKENS)
        for i, prompt in enumerate(PROMPTS)
    ]
    found = run_all(engine, asked)
    assert {name: each.tokens for name, each in found.items()} == {
        name: each.tokens for name, each in right.items()
    }


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", ["none", "eagle3"])
def test_a_decode_engine_goes_on_with_the_codes_of_a_prefill_engine(models, name):
    draft, asked = draft_of(models, name), submissions("greedy")
    shape = Shape(kv_dtype="fp8_e4m3")
    alone = traces(engine_of(models.target, replace(shape, prefix_cache=False), draft), asked)
    with pair_of(models.target, draft, shape=shape) as pair:
        together = pair_traces(pair, asked)
        pair.assert_no_leak()
        assert any("float8_e4m3fn" in each for each in pair.decode.pages.layout)
    assert {key: each[:2] for key, each in together.items()} == {
        key: each[:2] for key, each in alone.items()
    }


def test_a_page_of_codes_takes_a_quarter_and_its_type_is_named(models):
    wide, narrow = (
        engine_of(models.target, Shape(kv_dtype=dtype)).facts.memory
        for dtype in ("auto", "fp8_e4m3")
    )
    assert wide.page_bytes == 4 * narrow.page_bytes
    assert (wide.kv_dtype, narrow.kv_dtype) == ("float32", "fp8_e4m3")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "ministral", "qwen3-next"])
def test_head_norms_windows_and_recurrent_layers_take_codes_too(family, tmp_path):
    if family in recurrent.FAMILIES:
        recurrent.saved_recurrent(tmp_path, family)
    else:
        save_tiny(family, tmp_path)
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    answers = []
    for draft, dtype in (("none", "fp8"), ("ngram", "fp8"), ("none", "auto")):
        llm = LLM(
            tmp_path,
            dtype="float32",
            device="cpu",
            draft=draft,
            adaptive=False,
            kv_cache_dtype=dtype,
            max_num_seqs=2,
            max_model_len=64,
        )
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_latents_are_refused_by_name(targets):
    with pytest.raises(ConfigError, match="--kv-cache-dtype fp8_e4m3 is for keys and values"):
        engine_of(targets["deepseek-v3"].target, Shape(kv_dtype="fp8_e4m3"), NoDraft())
