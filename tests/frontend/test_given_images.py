"""Images as users give them: what is read, and what is refused with its fix."""

import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from support.tiny_vision import picture

from outrider.errors import ConfigError, RequestError
from outrider.frontend.continued_message import render_continued
from outrider.frontend.images.given_image import image_at, open_image
from outrider.frontend.images.image_limits import ImageLimits, parse_limits
from outrider.frontend.images.image_processor import ProcessedImage, pixels_of
from outrider.frontend.images.image_prompts import TEXT_ONLY, ImagePrompts
from outrider.frontend.prompts import TextPrompt, parse_prompt
from outrider.frontend.tokenizer.chat_template import ChatTemplate, ContentParts

LIMITS = ImageLimits(per_prompt=2)


def encoded(image, form="PNG"):
    out = io.BytesIO()
    image.save(out, form)
    return out.getvalue()


def data_url(content, kind="png"):
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_a_data_url_is_decoded(form):
    image = picture(1, 5, 4)
    opened = open_image(image_at(data_url(encoded(image, form)), LIMITS))
    assert (opened.mode, opened.size) == ("RGB", (5, 4))
    if form in ("PNG", "BMP"):
        assert np.array_equal(np.asarray(opened), np.asarray(image))


def test_transparent_parts_are_white():
    clear = Image.new("RGBA", (2, 2), (200, 0, 0, 0))
    opened = open_image(image_at(data_url(encoded(clear)), LIMITS))
    assert (np.asarray(opened) == 255).all()


def test_greys_of_16_bits_keep_their_order():
    """PIL alone makes them white."""
    greys = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    image = Image.fromarray(greys)
    opened = open_image(image_at(data_url(encoded(image)), LIMITS))
    assert np.array_equal(np.asarray(opened)[:, :, 0], greys >> 8)
    with io.BytesIO() as keyed:
        image.save(keyed, "PNG", transparency=4096)
        opened = open_image(image_at(data_url(keyed.getvalue()), LIMITS))
    assert np.array_equal(np.asarray(opened)[:, :, 0], greys >> 8)


def large_png(width, height):
    """A small file whose header promises so many pixels."""
    plain = encoded(picture(1, 1, 1))
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return plain[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + plain[33:]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no image", "cannot be read"),
        (encoded(picture(1, 5, 4))[:60], "cannot be read"),
        (large_png(8_000, 8_000), "8000 x 8000 pixels"),
        (large_png(100_000, 100_000), "pixels"),
    ],
    ids=["text", "cut", "large", "bomb"],
)
def test_bytes_that_are_no_usable_image_are_refused(content, reason):
    with pytest.raises(RequestError, match=reason):
        open_image(image_at(data_url(content), LIMITS))


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("http://example.com/a.png", "data: URL"),
        ("/etc/passwd", "data: URL"),
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,!!!", "no base64"),
        (None, "data:image/png;base64"),
    ],
)
def test_addresses_that_are_not_read_name_the_fix(url, fix):
    with pytest.raises(RequestError, match=fix):
        image_at(url, LIMITS)


def test_files_are_read_inside_of_the_allowed_folder_only(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "a.png").write_bytes(encoded(picture(1, 5, 4)))
    (inside / "link.png").symlink_to(outside / "a.png")
    limits = ImageLimits(allowed_path=str(inside))
    assert open_image(image_at(f"file://{inside}/a.png", limits)).size == (5, 4)
    for path in (f"{outside}/a.png", f"{inside}/../out/a.png", f"{inside}/link.png"):
        with pytest.raises(RequestError, match="outside"):
            image_at(f"file://{path}", limits)


def test_a_file_that_cannot_be_looked_up_is_refused(tmp_path):
    """The system itself refuses such names."""
    limits = ImageLimits(allowed_path=str(tmp_path))
    for name in ("absent.png", "a" * 300, "a/" * 3000):
        with pytest.raises(RequestError, match="image file"):
            open_image(image_at(f"file://{tmp_path}/{name}", limits))


def test_limits_are_read_as_vllm_writes_them(tmp_path):
    for given in ({"image": 3}, "image=3", '{"image": 3}', "image=3,video=0"):
        assert parse_limits(given, "").per_prompt == 3
    for given in ("image", "picture=2", {"image": -1}, "[1]"):
        with pytest.raises(ConfigError, match="--limit-mm-per-prompt"):
            parse_limits(given, "")
    with pytest.raises(ConfigError, match="no folder"):
        parse_limits(None, str(tmp_path / "absent"))


class OneToken:
    """A processor whose images are one token each."""

    placeholder = "#"

    def process(self, image):
        return ProcessedImage("#", (pixels_of(np.asarray(image), (1, 1)),))


def expand(text, images):
    prompts = ImagePrompts(OneToken(), image_token=ord("#"), limits=LIMITS)
    parsed = parse_prompt({"prompt": text, "multi_modal_data": {"image": images}})
    return prompts.expand(parsed, lambda text: list(map(ord, text)))


def test_placeholders_and_images_must_be_equally_many():
    image = picture(1, 3, 2)
    assert [span.first for span in expand("a#b#", [image, image]).images] == [1, 3]
    with pytest.raises(RequestError, match="2 times # for 1 images"):
        expand("##", [image])
    with pytest.raises(RequestError, match="--limit-mm-per-prompt image=3"):
        expand("###", [image] * 3)


def test_a_model_without_a_vision_tower_refuses_images_by_name():
    part = {"type": "image_url", "image_url": {"url": data_url(encoded(picture(1, 3, 2)))}}
    with pytest.raises(RequestError, match="reads text only"):
        TEXT_ONLY.take([{"role": "user", "content": [part]}])
    with pytest.raises(RequestError, match="reads text only"):
        TEXT_ONLY.expand(TextPrompt("a"), lambda text: [1])
    plain = [{"role": "user", "content": "a"}]
    assert TEXT_ONLY.take(plain).messages is plain


def test_a_message_with_an_image_cannot_be_continued():
    parts = ContentParts([{"type": "image"}])
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": parts}]
    with pytest.raises(RequestError, match="without images"):
        render_continued(str, messages)


def test_other_kinds_of_data_are_refused_by_name():
    with pytest.raises(RequestError, match="got video"):
        parse_prompt({"prompt": "a", "multi_modal_data": {"video": 1}})
    with pytest.raises(RequestError, match=r"PIL\.Image"):
        parse_prompt({"prompt": "a", "multi_modal_data": {"image": "a.png"}})


def test_keys_that_would_change_an_answer_are_not_ignored():
    seen = {"prompt": "#", "multi_modal_data": {"image": picture(1, 3, 2)}}
    assert parse_prompt({**seen, "mm_processor_kwargs": {}, "cache_salt": None}).images
    for more, fix in (
        ({"mm_processor_kwargs": {"do_resize": False}}, "preprocessor_config"),
        ({"cache_salt": "mine"}, r"SamplingParams\(cache_salt"),
        ({"prompt_embeds": np.ones((1, 2), dtype=np.float32)}, "prompt that is a text"),
    ):
        with pytest.raises(RequestError, match=fix):
            parse_prompt({**seen, **more})


STRINGS = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PARTS = "{% for part in m['content'] %}{{ part['text'] }}{% endfor %}"
LISTS = STRINGS.replace("{{ m['content'] }}", PARTS)


@pytest.mark.parametrize("source", [LISTS, STRINGS])
def test_a_text_is_written_by_templates_of_both_forms(source):
    template = ChatTemplate({"default": source}, special_tokens={})
    messages = [{"role": "user", "content": "abc"}]
    assert template.render(messages, add_generation_prompt=True) == "abc"
