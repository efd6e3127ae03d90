"""Hidden states over HTTP are those of the offline model, in SGLang's places."""

import numpy as np
import pytest

from outrider import LLM, SamplingParams

IDS = [5, 9, 11, 3, 44, 9, 11]
ASKED = {"prompt": IDS, "max_tokens": 7, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected(llm):
    """[positions, hidden] of the prompt and the answer."""
    params = SamplingParams(
        temperature=0, max_tokens=7, ignore_eos=True, return_hidden_states="all"
    )
    states = llm.generate({"prompt_token_ids": IDS}, params, use_tqdm=False)[0].outputs[0]
    assert states.hidden_states.shape == (len(IDS) + 6, 32)
    return states.hidden_states


def test_a_completion_has_the_last_one_or_all(server, expected):
    for given, right in ((True, expected[-1]), ("last", expected[-1]), ("all", expected)):
        answer = server.post("/v1/completions", {**ASKED, "return_hidden_states": given}).json()
        assert np.array(answer["choices"][0]["hidden_states"]) == pytest.approx(right, abs=1e-4)
    answer = server.post("/v1/completions", {**ASKED, "return_hidden_states": False}).json()
    assert "hidden_states" not in answer["choices"][0]


def test_a_chat_has_the_last_one(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "once"}],
        max_tokens=3,
        extra_body={"return_hidden_states": True},
    )
    assert len(answer.choices[0].hidden_states) == 32


def test_generate_has_a_list_of_the_prompts_and_then_one_per_position(server, expected):
    sampling = {"max_new_tokens": 7, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": IDS, "sampling_params": sampling, "return_hidden_states": True}
    states = server.post("/generate", body).json()["meta_info"]["hidden_states"]
    assert np.array(states[0]) == pytest.approx(expected[: len(IDS)], abs=1e-4)
    assert np.array(states[1:]) == pytest.approx(expected[len(IDS) :], abs=1e-4)
    several = {**body, "input_ids": [IDS, IDS], "return_hidden_states": [False, "last"]}
    first, second = server.post("/generate", several).json()
    assert "hidden_states" not in first["meta_info"]
    assert np.array(second["meta_info"]["hidden_states"]) == pytest.approx(expected[-1:], abs=1e-4)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"return_hidden_states": "some"}, "return_hidden_states"),
        ({"return_hidden_states": True, "stream": True}, "set stream to false"),
        ({"return_hidden_states": "all", "n": 128, "max_tokens": 2048}, "set a smaller max_tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_the_reason(server, more, reason):
    refused = server.post("/v1/completions", {**ASKED, **more})
    assert refused.status_code == 400
    assert reason in refused.text


@pytest.mark.slow
def test_a_server_without_the_flag_refuses_them_by_name(start_server):
    plain = start_server("--draft", "none", "--kv-tokens", "1024")
    refused = plain.post("/v1/completions", {**ASKED, "return_hidden_states": True})
    assert refused.status_code == 400
    assert "--enable-return-hidden-states" in refused.text
    assert plain.stop() == 0


def test_a_stop_string_ends_the_hidden_states_with_the_text(llm: LLM):
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    text = llm.generate("once upon", params, use_tqdm=False)[0].outputs[0].text
    stop = text[len(text) // 2 :][:3]
    for mode in ("all", "last"):
        cut = SamplingParams(
            temperature=0, max_tokens=24, ignore_eos=True, stop=stop, return_hidden_states=mode
        )
        output = llm.generate("once upon", cut, use_tqdm=False)[0]
        answer, num_prompt = output.outputs[0], len(output.prompt_token_ids)
        num_states = num_prompt + len(answer.token_ids) - 1 if mode == "all" else 1
        assert answer.finish_reason == "stop"
        assert answer.hidden_states.shape == (num_states, 32)
