"""Random and hostile grammars: the answer matches, or its request alone fails with a reason."""

import json
import re
import threading
from random import Random
from typing import Any

import httpx
import jsonschema_rs

from hostile.grammar_forms import HOSTILE, draw_form, draw_schema
from hostile.odd_values import ODD_TEXTS, damage_json
from hostile.parts import CaseReport
from hostile.served_bytes import ByteServer, byte_server

NUM_REQUESTS = 4  # at the same time, besides two neighbours
TIMEOUT_S = 120.0

_SAME: dict[str, str] = {}  # regular expressions of the EBNF grammars that were drawn


def run_case(seed: int) -> CaseReport:
    """Some structured requests at once, while others without a grammar are answered."""
    rng, report, server = Random(seed), CaseReport(), byte_server()
    bodies = [_draw_body(rng) for _ in range(NUM_REQUESTS)]
    outcomes: list[str] = []
    threads = [
        threading.Thread(target=lambda body=body: outcomes.append(_try(server, body, report)))
        for body in bodies
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if server.ask_known(TIMEOUT_S) != server.right_answer:
            report.failures.append(f"a neighbour is answered differently beside {bodies}")
        report.counts["neighbours"] += 1
    report.failures += [outcome for outcome in outcomes if outcome]
    report.failures += server.new_tracebacks()
    return report


def _draw_body(rng: Random) -> dict[str, Any]:
    sampling = {"max_tokens": rng.choice([5, 60, 200]), "seed": rng.getrandbits(31)}
    sampling["temperature"] = rng.choice([0.0, 0.7, 1.0])
    prompt = rng.choice(["the", "y", "y" + "#" * 60, '{"a": '])
    return {"prompt": prompt, **sampling, "structured_outputs": _draw_grammar(rng)}


def _draw_grammar(rng: Random) -> dict[str, Any]:
    kind = rng.random()
    if kind < 0.25:
        return rng.choice(HOSTILE)
    if kind < 0.45:
        return {"regex": draw_form(rng).regex}
    if kind < 0.6:
        form = draw_form(rng)
        _SAME[f"root ::= {form.ebnf}"] = form.regex
        return {"grammar": f"root ::= {form.ebnf}"}
    if kind < 0.85:
        return {"json": draw_schema(rng)}
    if kind < 0.95:
        return {"json": damage_json(rng, draw_schema(rng))[0]}
    return {rng.choice(["regex", "grammar"]): rng.choice(ODD_TEXTS)}


def _try(server: ByteServer, body: dict[str, Any], report: CaseReport) -> str:
    """Send one request; returns what is wrong with its outcome."""
    content = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    url = f"{server.process.url}/v1/completions"
    try:
        response = httpx.post(url, content=content, headers=headers, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"no answer ({error!r}): {content!a}"
    report.counts[f"status {response.status_code}"] += 1
    if response.status_code != 200:
        # 503 says that its matcher process was lost.
        is_own = response.status_code in (400, 503) and response.json()["error"]["message"]
        return "" if is_own else f"status {response.status_code} {response.text}: {content!a}"
    (choice,) = response.json()["choices"]
    if choice["finish_reason"] != "stop":
        return ""
    report.counts["complete"] += 1
    if _matches(body["structured_outputs"], choice["text"]):
        return ""
    return f"{choice['text']!a} does not match: {content!a}"


def _matches(grammar: dict[str, Any], text: str) -> bool:
    """Whether a complete answer is in its language, by libraries that the engine does not use."""
    ((kind, form),) = grammar.items()
    if kind == "regex":
        return _is_beyond_python(form) or re.fullmatch(form, text) is not None
    if kind == "choice":
        return text in form
    if kind == "json":
        return _is_valid(form, text)
    return form not in _SAME or re.fullmatch(_SAME[form], text) is not None


def _is_beyond_python(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return True
    return False


def _is_valid(schema: Any, text: str) -> bool:
    value = json.loads(text)
    try:
        return jsonschema_rs.is_valid(schema, value)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        return True  # not a schema by the standard: any JSON will do
