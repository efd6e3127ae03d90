"""The offline API over a tiny real model."""

import json
import shutil
import subprocess
import sys

import pytest
from support.reference import decode

from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, RequestError
from outrider.frontend.input_processor import child_seed
from outrider.frontend.vllm_arguments import read_arguments
from outrider.wire.row_sampling import RowSampling

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(model_folder):
    return LLM(model_folder)


@pytest.fixture(scope="module")
def peer(model_folder):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(model_folder).eval()


def only(outputs):
    ((completion,),) = [output.outputs for output in outputs]
    return completion


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_returns_what_the_reference_says_in_prompt_order(llm, peer, temperature):
    prompts = ["the rider", [5, 6, 7], {"prompt": "goes"}, {"prompt_token_ids": [9] * 20}]
    params = SamplingParams(temperature=temperature, max_tokens=8, seed=3, ignore_eos=True)
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == ["the rider", None, "goes", None]
    sampling = RowSampling(seed=3, temperature=temperature)
    for output in outputs:
        answer = decode(peer, output.prompt_token_ids, sampling, max_tokens=8)
        assert output.outputs[0].token_ids == answer.tokens


@pytest.mark.parametrize("draft", ["ngram", "suffix", "none+suffix"])
def test_drafters_without_a_model_load_by_name(llm, model_folder, draft):
    drafting = LLM(model_folder, draft=draft, adaptive=False)
    for _ in range(2):  # the second time there are finished answers
        answers = [only(each.generate("the road", GREEDY)).token_ids for each in (llm, drafting)]
        assert answers[0] == answers[1]


def test_each_prompt_may_have_params_of_its_own(llm):
    params = [SamplingParams(max_tokens=size, ignore_eos=True) for size in (2, 5)]
    outputs = llm.generate(["a", "b"], params)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]


def test_a_returned_seed_repeats_the_answer_and_a_childs_seed_repeats_the_child(llm):
    free = SamplingParams(n=3, max_tokens=12, ignore_eos=True)
    (output,) = llm.generate("the road", free)
    seed = output.outputs[0].seed
    assert [each.seed for each in output.outputs] == [child_seed(seed, i) for i in range(3)]
    assert len({tuple(each.token_ids) for each in output.outputs}) == 3
    for each in output.outputs:
        alone = SamplingParams(seed=each.seed, max_tokens=12, ignore_eos=True)
        assert only(llm.generate("the road", alone)).token_ids == each.token_ids


def test_logprobs_hold_the_chosen_token_and_the_most_likely_ones(llm, peer):
    params = SamplingParams(seed=1, max_tokens=6, ignore_eos=True, logprobs=3)
    (output,) = llm.generate("the rider", params)
    (completion,) = output.outputs
    answer = decode(peer, output.prompt_token_ids, RowSampling(seed=1), max_tokens=6)
    chosen = [
        position[token].logprob
        for token, position in zip(completion.token_ids, completion.logprobs, strict=True)
    ]
    assert chosen == pytest.approx(answer.logprobs, abs=1e-3)
    assert completion.cumulative_logprob == pytest.approx(sum(chosen))
    for position in completion.logprobs:
        assert {1, 2, 3} <= {each.rank for each in position.values()}
        assert len(position) in (3, 4)


def test_a_stop_string_is_trimmed_from_the_text(llm):
    whole = only(llm.generate("the rider", GREEDY))
    stop = whole.text[3:6]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=[stop])
    ended = only(llm.generate("the rider", params))
    assert ended.text == whole.text[: whole.text.index(stop)]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)


def test_a_stop_id_is_kept_in_the_tokens_and_named(llm):
    whole = only(llm.generate("the rider", GREEDY))
    stop = whole.token_ids[4]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop_token_ids=[stop])
    ended = only(llm.generate("the rider", params))
    assert ended.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", stop)


def test_chat_renders_one_conversation_or_several(llm):
    one = llm.chat(HELLO, GREEDY)
    several = llm.chat([HELLO, HELLO], GREEDY)
    assert one[0].prompt == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert len(several) == 2
    assert only(one).token_ids == several[1].outputs[0].token_ids


def test_a_stream_says_what_generate_says(llm):
    stream = llm.stream("the rider", GREEDY)
    text = "".join(delta.text for delta in stream)
    assert text == only(llm.generate("the rider", GREEDY)).text
    assert stream.output.finished
    assert stream.output.usage.completion_tokens == 12


def test_a_stream_takes_a_conversation(llm):
    stream = llm.stream(HELLO, GREEDY)
    list(stream)
    assert stream.output.outputs[0].text == only(llm.chat(HELLO, GREEDY)).text


def test_one_bad_prompt_is_named_before_anything_runs(llm):
    with pytest.raises(RequestError, match="prompt 1: the prompt is empty"):
        llm.generate(["a", "", "b"], GREEDY)
    with pytest.raises(RequestError, match="prompt 0: the prompt has 300 tokens"):
        llm.generate([[5] * 300, [5]], GREEDY)
    assert llm.frontend.is_idle


def test_as_many_params_as_prompts(llm):
    with pytest.raises(RequestError, match="one for each"):
        llm.generate(["a", "b"], [GREEDY])


def test_a_shorter_context_ends_an_answer_by_length(model_folder):
    llm = LLM(model_folder, max_model_len=16)
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    completion = only(llm.generate([[5] * 10], params))
    assert (len(completion.token_ids), completion.finish_reason) == (6, "length")


def test_a_folder_without_tokenizer_serves_token_ids(ids_only_folder, llm):
    ids_only = LLM(ids_only_folder)
    completion = only(ids_only.generate({"prompt_token_ids": [5, 6, 7]}, GREEDY))
    assert completion.text == ""
    assert completion.token_ids == only(llm.generate([[5, 6, 7]], GREEDY)).token_ids
    with pytest.raises(RequestError, match="prompt_token_ids"):
        ids_only.generate("text", GREEDY)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"draft": "eagle3"}, "neither auto, none, head, ngram, suffix nor mtp"),
        ({"max_model_len": 10_000}, "256"),
        ({"model": "no-such-model"}, "unknown model"),
    ],
)
def test_settings_that_cannot_work_are_refused(model_folder, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        LLM(**{"model": model_folder, **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, got 0"),
        ({"pipeline_parallel_size": 2}, "use --tensor-parallel-size"),
        ({"load_format": "bitsandbytes"}, "convert them, or use --load-format auto"),
        ({"cudagraph_capture_sizes": [1, 2]}, "sizes of captured steps are chosen"),
        ({"async_scheduling": "maybe"}, "takes no value, got maybe"),
        ({"enforce_eager": "yes"}, "enforce_eager must be a bool"),
        ({"enforce_eager": True, "executor": "tape"}, "choose the executor twice; keep one"),
        ({"adaptive": "no"}, "adaptive must be True, False or 'auto'"),
        ({"gpu_memory_utilization": "0.9"}, "gpu_memory_utilization must be above 0"),
        ({"max_model_length": 5}, "no argument 'max_model_length'"),
        ({"draft": ""}, "--draft is empty"),
        ({"model": ""}, "the name of the model .--model. is empty"),
        ({"device": "mps"}, "use auto, cpu, cuda or cuda:N"),
        ({"speculative_config": {}}, 'lacks "method"'),
    ],
)
def test_arguments_of_vllm_that_would_change_something_are_refused(model_folder, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        LLM(**{"model": model_folder, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"runner": "pooling"},
        {"task": "embed"},
        {"enable_chunked_prefill": True},
        {"trust_remote_code": True},
        {"disable_log_requests": True},  # a flag of servers
    ],
    ids=str,
)
def test_arguments_of_vllm_that_change_nothing_are_taken_with_a_note(settings, caplog):
    assert read_arguments(settings) == {}
    assert "changes nothing" in caplog.text


@pytest.mark.parametrize(
    ("settings", "ours"),
    [
        ({"disable_radix_cache": True}, {"enable_prefix_caching": False}),
        ({"disable_radix_cache": False}, {}),
        ({"async_scheduling": False}, {"depth": 0}),
        ({"chunked_prefill_size": 512}, {"max_num_batched_tokens": 512}),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, {"enforce_eager": True}),
        ({"optimization_level": 0}, {"enforce_eager": True}),
        ({"sampling_defaults": "openai"}, {"generation_config": "vllm"}),
        ({"language_model_only": True}, {"limit_mm_per_prompt": "image=0"}),
        ({"enable_hierarchical_cache": False, "load_format": None}, {}),
        ({"context_length": 64}, {"max_model_len": 64}),
    ],
    ids=str,
)
def test_arguments_with_names_of_their_flags_are_ours(settings, ours, caplog):
    assert read_arguments(settings) == ours
    assert not caplog.text


@pytest.mark.slow
def test_arguments_of_their_names_reach_the_engine(model_folder):
    sizes = {"chunked_prefill_size": 32, "max_num_seqs": 2}
    llm = LLM(model_folder, draft="none", disable_radix_cache=True, async_scheduling=True, **sizes)
    facts = llm._engine.facts
    assert not facts.host.prefix_cache
    assert (facts.host.max_step_tokens, facts.depth) == (32, 1)


def test_a_default_seed_is_for_requests_without_one(model_folder):
    llm = LLM(
        model_folder,
        seed=7,
        tensor_parallel_size=1,
        trust_remote_code=False,
        enforce_eager=True,
        gpu_memory_utilization=0.9,
        tokenizer=None,
    )
    own = SamplingParams(seed=3)
    assert only(llm.generate("a")).seed == 7
    assert [each.outputs[0].seed for each in llm.generate(["a", "b"], [own, GREEDY])] == [3, 7]
    stream = llm.stream("a", SamplingParams(max_tokens=2))
    list(stream)
    assert stream.output.outputs[0].seed == 7


def test_the_top_level_exports_what_callers_name_without_loading_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from outrider import CompletionOutput, OutriderError, RequestOutput, SamplingParams\n"
        "from outrider.errors import ConfigError\n"
        "assert issubclass(ConfigError, OutriderError)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_min_tokens_works_with_an_end_of_sequence_outside_the_vocabulary(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 400]}))
    llm = LLM(folder, device="cpu", draft="none", max_model_len=64)
    params = [SamplingParams(max_tokens=5, min_tokens=least, seed=1) for least in (0, 5)]
    plain, banned = llm.generate(["the"] * 2, params, use_tqdm=False)
    assert {plain.outputs[0].finish_reason, banned.outputs[0].finish_reason} <= {"stop", "length"}
    assert len(banned.outputs[0].token_ids) == 5


def test_a_context_without_memory_is_refused_with_the_setting(model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2**31 - 1}))
    with pytest.raises(ConfigError, match=r"context of 2147483647 tokens; lower --max-context"):
        LLM(folder, device="cpu", draft="none", max_num_seqs=256)


def test_calls_without_parameters_take_the_sampling_of_the_generation_config(
    model_folder, tmp_path
):
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.0, "top_k": 5}')
    llm = LLM(model_folder, draft="none", generation_config=str(tmp_path), max_context=64)
    defaults = llm.get_default_sampling_params()
    assert (defaults.temperature, defaults.top_k) == (0.0, 5)
    greedy = SamplingParams(temperature=0.0)
    assert only(llm.generate("a")).token_ids == only(llm.generate("a", greedy)).token_ids
    assert llm.frontend.inputs.bounds.max_context == 64


def test_another_chat_template_can_be_given(model_folder, tmp_path):
    path = tmp_path / "template.jinja"
    path.write_text("<{{ messages[0].content }}>")
    llm = LLM(model_folder, draft="none", chat_template=str(path), max_model_len=64)
    assert llm.frontend.inputs.render([{"role": "user", "content": "a"}]).text == "<a>"
    with pytest.raises(ConfigError, match="--chat-template /no/file cannot be read"):
        LLM(model_folder, chat_template="/no/file")
