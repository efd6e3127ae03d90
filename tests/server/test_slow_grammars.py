"""A grammar that takes minutes to match ends its own request; other streams go on."""

import json
import threading
import time
from itertools import pairwise

import httpx
import pytest

from outrider import SamplingParams

pytest.importorskip("xgrammar")

LONG_S = 20.0  # a matcher that is not ended takes longer
AMBIGUOUS = 's ::= s s s s s s | s s s s s | s s s s | s s s | s s | "n" | ""'
GRAMMAR = f'root ::= "the1" s | [a-s0-9]+\n{AMBIGUOUS}'
BIAS = {"47": 100, "33": 100, "15": 100}  # "the", "1" and "n"
HOSTILE = {"prompt": "the1" + "n" * 40, "max_tokens": 600, "logit_bias": BIAS, "seed": 1}
NEIGHBOUR = {"prompt": "the", "max_tokens": 300, "ignore_eos": True, "stream": True, "seed": 1}


def read_stream(server, times, texts):
    with httpx.stream("POST", f"{server.url}/v1/completions", json=NEIGHBOUR, timeout=90) as lines:
        for line in lines.iter_lines():
            if line.startswith("data: {"):
                times.append(time.monotonic())
                texts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])


@pytest.mark.slow
def test_a_grammar_that_is_slow_to_match_holds_no_other_stream(server):
    alone, together, times = [], [], []
    read_stream(server, [], alone)
    neighbour = threading.Thread(target=read_stream, args=(server, times, together))
    neighbour.start()
    body = {**HOSTILE, "structured_outputs": {"grammar": GRAMMAR}}
    answer = server.post("/v1/completions", body, timeout=90)
    neighbour.join(90)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_failed")
    assert "Retry-After" not in answer.headers
    assert "make it less ambiguous" in answer.json()["error"]["message"]
    assert "".join(together) == "".join(alone)
    assert max(b - a for a, b in pairwise(times)) < LONG_S
    assert not server.wait_until_idle()["has_leak"]


@pytest.mark.slow
def test_offline_such_a_grammar_ends_its_own_answer_alone(llm):
    hostile = SamplingParams(
        max_tokens=600,
        seed=1,
        logit_bias={int(token): bias for token, bias in BIAS.items()},
        structured={"grammar": GRAMMAR},
    )
    plain = SamplingParams(max_tokens=60, ignore_eos=True, seed=1)
    (alone,) = llm.generate(["the"], plain)
    slow, other = llm.generate([HOSTILE["prompt"], "the"], [hostile, plain])
    assert slow.outputs[0].finish_reason == "error"
    assert "make it less ambiguous" in slow.outputs[0].error
    assert other.outputs[0].token_ids == alone.outputs[0].token_ids
