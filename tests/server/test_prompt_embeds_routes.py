"""Prompts of embeddings over HTTP: the answers of the ids they are of, and hostile files."""

import base64
import io
import pickle
import tracemalloc
import zipfile
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save

from outrider import SamplingParams
from outrider.errors import RequestError
from outrider.server.protocol.embeds_body import decode_embeds

IDS = [5, 9, 11, 3, 44, 9, 11]
ASKED = {"model": "tiny", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def table(served_folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(served_folder).get_input_embeddings().weight.data


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def encoded(body):
    return base64.b64encode(body).decode()


def test_a_completion_of_embeddings_is_that_of_their_ids(client, table, llm):
    vectors = table[torch.tensor(IDS)]
    random = torch.randn(9, table.shape[1], generator=torch.Generator().manual_seed(3))
    given = [encoded(saved(vectors)), encoded(save({"x": vectors})), encoded(saved(random))]
    body = {**ASKED, "prompt_embeds": given}
    answer = client.completions.create(model="tiny", prompt=IDS, extra_body=body)
    texts = [choice.text for choice in answer.choices]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    prompts = [{"prompt_token_ids": IDS}, {"prompt_embeds": random}]
    ids, others = (each.outputs[0].text for each in llm.generate(prompts, params, use_tqdm=False))
    assert texts == [ids, ids, others, ids]
    assert answer.usage.prompt_tokens == 3 * len(IDS) + 9


def test_generate_takes_nested_lists(server, table, llm):
    vectors = table[torch.tensor(IDS)].tolist()
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    answers = [
        server.post("/generate", {**given, "sampling_params": sampling}).json()["output_ids"]
        for given in ({"input_ids": IDS}, {"input_embeds": vectors})
    ]
    assert answers[0] == answers[1]
    several = {"input_embeds": [vectors, vectors[:3]], "sampling_params": sampling}
    assert server.post("/generate", several).json()[0]["output_ids"] == answers[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_every_type_is_read_from_both_formats(dtype):
    vectors = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = vectors.float().numpy().tobytes()
    for body in (saved(vectors), saved(torch.nn.Parameter(vectors)), save({"any": vectors})):
        span = decode_embeds(encoded(body))
        assert (span.first, span.width, span.values) == (0, 5, expected)


class Evil:
    def __reduce__(self):
        return print, ("this must not run",)


def hostile_zip(pickled):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", pickled)
    return file.getvalue()


def repacked(change, num_tokens=2):
    """The file of a tensor with another pickle."""
    old, file = io.BytesIO(saved(torch.ones(num_tokens, 3))), io.BytesIO()
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(file, "w") as archive:
        for name in source.namelist():
            is_pickle, data = name.endswith("data.pkl"), source.read(name)
            archive.writestr(name, change(data) if is_pickle else data)
    return file.getvalue()


def with_opcodes(opcodes):
    return repacked(lambda pickled: pickled[:-1] + opcodes + b".")


def repeated_storage():
    """A tensor whose pickle keeps fifty copies of its storage in the memo."""

    def repeat(pickled):
        named = pickled[pickled.index(b"((") + 1 : pickled.index(b"Q") + 1]
        copies = [named + bytes([ord("q"), 100 + index, ord("0")]) for index in range(50)]
        return pickled[:2] + b"".join(copies) + pickled[2:]

    return repacked(repeat, num_tokens=1000)


def many_files():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for index in range(2000):
            archive.writestr(f"x/{index}", b"")
    return file.getvalue()


HOSTILE = {
    "code": saved(Evil()),
    "a bare pickle": pickle.dumps(Evil()),
    "sparse": saved(torch.eye(4).to_sparse()),
    "a list": saved([torch.ones(2, 2)] * 3),
    "many": saved([torch.ones(2, 2), torch.zeros(2, 2)]),
    "transposed": saved(torch.ones(2, 3).t()),
    "integers": saved(torch.ones(2, 3, dtype=torch.int64)),
    "NaN": saved(torch.full((2, 3), float("nan"))),
    "one dimension": saved(torch.ones(6)),
    "empty": saved(torch.ones(0, 3)),
    "no pickle": hostile_zip(b""),
    "a large memo": with_opcodes(b"r\x00\x00\x00\x02"),
    "the largest memo": with_opcodes(b"r\xff\xff\xff\xff"),
    "an attribute of a class": with_opcodes(b"h\x00}X\x01\x00\x00\x00aK\x01sb0"),
    "a storage fifty times": repeated_storage(),
    "many files": many_files(),
    "protocol 4": hostile_zip(pickle.dumps(OrderedDict(), protocol=4)),
    "broken pickle": hostile_zip(b"\x80\x02X\xff\xff\xff\xff"),
    "past its storage": saved(torch.ones(2, 3)).replace(b"K\x02K\x03\x86", b"K\x09K\x03\x86"),
    "two tensors": save({"x": torch.ones(2, 3), "y": torch.ones(2, 3)}),
    "bad offsets": save({"x": torch.ones(2, 3)}).replace(b"[0,24]", b"[0,99]"),
    "bad shape": save({"x": torch.ones(2, 3)}).replace(b"[2,3]", b"[9,3]"),
    "huge header": b"\xff" * 8 + b"{}",
    "nothing": b"",
}


@pytest.mark.fast_cases(24)
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_hostile_files_are_refused_with_the_reason(body, capsys):
    with pytest.raises(RequestError, match="prompt_embeds"):
        decode_embeds(encoded(body))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["a large memo", "a storage fifty times", "many files"])
def test_a_small_file_takes_little_memory(name):
    body = encoded(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="prompt_embeds"):
            decode_embeds(body)
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_every_byte_of_a_pickle_is_checked():
    """Whatever one byte becomes, the file is refused or has its six values."""
    with zipfile.ZipFile(io.BytesIO(saved(torch.ones(2, 3)))) as archive:
        pickled, num_read = archive.read("archive/data.pkl"), 0
    for place in range(len(pickled)):
        for other in b"\x00\x01.(0RQbhrt\x89\xff":
            changed = pickled[:place] + bytes([other]) + pickled[place + 1 :]
            body = repacked(lambda _, changed=changed: changed)
            try:
                span = decode_embeds(encoded(body))
            except RequestError:
                continue
            num_read += 1
            assert set(memoryview(span.values).cast("f")) == {1.0}
    assert num_read  # numbers of the memo, the device


def test_every_cut_of_a_file_is_refused_or_read():
    for body in (saved(torch.ones(2, 3)), save({"x": torch.ones(2, 3)})):
        for stop in range(0, len(body), 7):
            with pytest.raises(RequestError):
                decode_embeds(encoded(body[:stop]))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"prompt_embeds": "!"}, "base64"),
        ({"prompt_embeds": encoded(saved(torch.ones(2, 3)))}, "3 channels and the model 32"),
        ({"prompt_embeds": encoded(saved(torch.ones(2, 32))), "echo": True}, "no text to echo"),
        ({"prompt_embeds": encoded(saved(torch.ones(2, 32))), "prompt_logprobs": 1}, "token ids"),
        ({"prompt_embeds": encoded(saved(torch.ones(9999, 1)))}, "context"),
        ({}, "needs a prompt"),
    ],
)
def test_what_cannot_be_run_is_a_bad_request(server, more, reason):
    refused = server.post("/v1/completions", {**ASKED, **more})
    assert refused.status_code == 400
    assert reason in refused.text


@pytest.mark.slow
def test_a_server_without_the_flag_refuses_embeddings_by_name(start_server):
    plain = start_server("--draft", "none", "--kv-tokens", "1024")
    given = [encoded(saved(torch.ones(2, 32))), "not even base64", encoded(HOSTILE["a large memo"])]
    asked = [("/v1/completions", {**ASKED, "prompt_embeds": each}) for each in given]
    asked += [("/generate", {"input_embeds": each}) for each in ([[1.0] * 32], [[]])]
    for route, body in asked:  # nothing is decoded before the permission is asked for
        refused = plain.post(route, body)
        assert refused.status_code == 400
        assert "--enable-prompt-embeds" in refused.text
    assert plain.stop() == 0


def test_tensors_of_any_kind_are_the_same_prompt(llm):
    vectors = torch.randn(6, 32, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    kinds = [vectors, vectors.float(), torch.nn.Parameter(vectors.float()), vectors.float().numpy()]
    outputs = llm.generate([{"prompt_embeds": each} for each in kinds], params, use_tqdm=False)
    assert len({tuple(each.outputs[0].token_ids) for each in outputs}) == 1
    assert outputs[0].prompt_token_ids == []
    assert outputs[0].usage.prompt_tokens == 6


@pytest.mark.parametrize("given", [torch.ones(3), torch.ones(2, 5), [[1, 2]], "x", None, []])
def test_other_values_are_refused_with_the_reason(llm, given):
    with pytest.raises(RequestError, match="prompt_embeds"):
        llm.generate({"prompt_embeds": given}, SamplingParams(max_tokens=1), use_tqdm=False)
