"""Images over HTTP: the tokens of transformers, and refusals that name their fix."""

import httpx
import openai
import pytest
from support.file_hosts import serving_files
from support.served import LONG_S, ServerProcess
from support.tiny_vision import data_url, make_tiny_vision, picture

ASKED = {"model": "tiny", "max_tokens": 9, "temperature": 0}
EXTRA = {"ignore_eos": True, "return_token_ids": True}
WIDE, SMALL = picture(1, 30, 20), picture(2, 10, 12)


def image_part(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def conversation(*parts):
    return [{"role": "user", "content": list(parts)}]


def text_part(text):
    return {"type": "text", "text": text}


def test_a_model_that_reads_text_only_refuses_images_by_name(client):
    with pytest.raises(openai.BadRequestError, match="reads text only"):
        client.chat.completions.create(messages=conversation(image_part(data_url(SMALL))), **ASKED)


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    return make_tiny_vision(tmp_path_factory.mktemp("served-vision"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    WIDE.save(folder / "a.png")
    return folder


@pytest.fixture(scope="module")
def seeing_server(vision, files, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log"
    flags = ["--served-model-name", "tiny", "--draft", "ngram", "--dtype", "float32"]
    flags += ["--limit-mm-per-prompt", "image=2", "--allowed-local-media-path", str(files)]
    flags += ["--allowed-media-domains", "127.0.0.1"]
    server = ServerProcess(vision.folder, log, *flags)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def seeing(seeing_server):
    url = f"{seeing_server.url}/v1"
    return openai.OpenAI(base_url=url, api_key="x", max_retries=0, timeout=LONG_S)


@pytest.mark.slow
def test_a_chat_with_images_has_the_tokens_of_transformers(seeing, vision, files):
    parts = [text_part("see "), image_part(data_url(WIDE)), image_part(data_url(SMALL, "BMP"))]
    text = "user: see <image><image><end_of_utterance>\nassistant:"
    ids, wanted = vision.reference(text, [WIDE, SMALL])
    by_file = [parts[0], image_part(f"file://{files}/a.png"), parts[2]]
    for num_cached, own in ((0, parts), (len(ids) - 1, parts), (len(ids) - 1, by_file)):
        answer = seeing.chat.completions.create(
            messages=conversation(*own), extra_body=EXTRA, **ASKED
        )
        assert answer.choices[0].token_ids == wanted
        assert answer.usage.prompt_tokens == len(ids)
        cached = answer.usage.prompt_tokens_details.cached_tokens
        assert num_cached - 16 < cached <= num_cached


@pytest.mark.slow
def test_an_image_is_downloaded_from_a_host_that_is_allowed(seeing, vision, files):
    text = "user: see <image><end_of_utterance>\nassistant:"
    with serving_files(files) as address:
        parts = [text_part("see "), image_part(f"{address}/a.png")]
        answer = seeing.chat.completions.create(
            messages=conversation(*parts), extra_body=EXTRA, **ASKED
        )
    assert answer.choices[0].token_ids == vision.reference(text, [WIDE])[1]


@pytest.mark.slow
def test_images_that_are_not_read_are_refused_and_harm_no_other_request(seeing, vision):
    small = image_part(data_url(SMALL))
    for parts, reason in (
        ([small] * 3, "--limit-mm-per-prompt image=3"),
        ([image_part("http://example.com/a.png")], "not downloaded from example.com"),
        ([image_part("http://127.0.0.1:1/a.png")], "cannot be downloaded from 127.0.0.1"),
        ([image_part("file:///etc/passwd")], "outside"),
        ([image_part("file://[")], "file:"),
        ([image_part("data:image/png;base64,AAAA")], "cannot be read"),
        ([{"type": "image_url", "image_url": {}}], "image_url"),
        ([{"type": "video_url", "video_url": {"url": "data:"}}, small], "parts"),
        ([text_part("<image>"), small], "2 times <image> for 1 images"),
    ):
        with pytest.raises(openai.BadRequestError, match=reason):
            seeing.chat.completions.create(messages=conversation(*parts), **ASKED)
    answer = seeing.chat.completions.create(
        messages=[{"role": "user", "content": "abc"}], extra_body=EXTRA, **ASKED
    )
    text = "user: abc<end_of_utterance>\nassistant:"
    assert answer.choices[0].token_ids == vision.reference(text, [])[1]


@pytest.mark.slow
def test_other_apis_have_images_of_their_own_kind(seeing, seeing_server, vision):
    """Answers are texts there, so they are compared with that of a chat."""
    url = data_url(SMALL)
    data = url.partition(",")[2]
    messages = conversation(image_part(url), text_part("abc"))
    wanted = seeing.chat.completions.create(messages=messages, **ASKED).choices[0].message.content
    assert wanted
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "image", "source": source}, text_part("abc")]
    parts = [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": "abc"}]
    turn = {"role": "user", "content": "abc", "images": [data]}
    options = {"num_predict": 9, "temperature": 0}
    ollama = {"model": "tiny", "stream": False, "options": options}

    def answer(path, body, *keys):
        found = seeing_server.post(path, body).json()
        for key in keys:
            found = found[key]
        return found

    responses = {**ASKED, "input": conversation(*parts)}
    responses["max_output_tokens"] = responses.pop("max_tokens")
    answers = [
        answer("/v1/messages", {**ASKED, "messages": conversation(*blocks)}, "content", 0, "text"),
        answer("/v1/responses", responses, "output", 0, "content", 0, "text"),
        answer("/api/chat", {**ollama, "messages": [turn]}, "message", "content"),
        answer("/api/generate", {**ollama, "prompt": "abc", "images": [data]}, "response"),
    ]
    assert answers == [wanted] * 4
    count = len(vision.reference("user: <image>abc<end_of_utterance>\nassistant:", [SMALL])[0])
    assert answer("/tokenize", {"messages": messages}, "count") == count
    counted = {"model": "tiny", "messages": conversation(*blocks)}
    assert answer("/v1/messages/count_tokens", counted, "input_tokens") == count


def generate(server, **body):
    params = {"temperature": 0, "max_new_tokens": 9, "ignore_eos": True}
    return httpx.post(
        f"{server.url}/generate", json={"sampling_params": params, **body}, timeout=LONG_S
    )


@pytest.mark.slow
def test_generate_takes_the_images_of_each_prompt(seeing_server, vision, files):
    """SGLang's image_data: data: URLs, base64 alone, files, and objects with a URL."""
    right = [vision.reference("see <image> now", [each])[1] for each in (WIDE, SMALL)]
    both = vision.reference("<image> and <image>", [WIDE, SMALL])[1]
    bare = data_url(SMALL).partition(",")[2]
    for image, tokens in (
        (data_url(WIDE), right[0]),
        ([{"url": f"file://{files}/a.png"}], right[0]),
        (bare, right[1]),
    ):
        answer = generate(seeing_server, text="see <image> now", image_data=image).json()
        assert answer["output_ids"] == tokens
    pair = generate(
        seeing_server, text="<image> and <image>", image_data=[data_url(WIDE), bare]
    ).json()
    assert pair["output_ids"] == both
    texts = ["see <image> now", "plain", "<image> and <image>"]
    images = [bare, None, [data_url(WIDE), bare]]
    batch = generate(seeing_server, text=texts, image_data=images).json()
    plain = vision.reference("plain", [])[1]
    assert [each["output_ids"] for each in batch] == [right[1], plain, both]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"text": "no place", "image_data": data_url(SMALL)}, "0 times <image> for 1 images"),
        ({"text": "<image>", "image_data": "no base64!"}, "no base64"),
        ({"text": "<image>", "image_data": {"link": "x"}}, "is a URL"),
        ({"text": ["<image>"] * 2, "image_data": [data_url(SMALL)]}, "1 image_data for 2 prompts"),
        ({"input_ids": [5, 6], "image_data": data_url(SMALL)}, "image_data needs text"),
        ({"text": "<image>", "image_data": "http://10.0.0.1/a.png"}, "10.0.0.1"),
        ({"text": "<image>" * 3, "image_data": [data_url(SMALL)] * 3}, "image=3"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_images_of_generate_that_cannot_be_read_are_refused(seeing_server, body, reason):
    answer = generate(seeing_server, **body)
    assert (answer.status_code, reason in answer.text) == (400, True), answer.text


def test_a_model_that_reads_text_only_refuses_images_of_generate(server):
    answer = generate(server, text="a", image_data=data_url(SMALL))
    assert (answer.status_code, "reads text only" in answer.text) == (400, True)
