"""The text of answers on the chat page: Markdown that is drawn from tokens, in a real browser."""

from collections.abc import Iterator

import pytest
from support.served import ServerProcess

pytest.importorskip("playwright", reason="the page is tested with playwright: pip install it")

from playwright.sync_api import Browser, Page, expect
from support.page_visits import BROWSER_MARKS
from support.page_visits import browser as browser

pytestmark = BROWSER_MARKS

# Draws tokens with the page's own modules, one more at each frame, as a stream does.
WRITE = """async ([tokens, isRaw]) => {
  const { TokenText } = await import("/page/token_text.js");
  const text = new TokenText(() => {});
  document.getElementById("turns").replaceChildren(text.element);
  text.showRaw(isRaw);
  for (const [round, token] of tokens.entries()) {
    text.add([{ text: token, depth: round % 3 }], round);
    text.draw();
  }
}"""
EXPLAIN = """async (error) => (await import("/page/explain.js")).explain(error)"""


@pytest.fixture(scope="module")
def page(browser: Browser, server: ServerProcess) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.goto(server.url)
    yield page
    page.close()


def write(page: Page, *tokens: str, is_raw: bool = False) -> None:
    page.evaluate(WRITE, [list(tokens), is_raw])


def letters(text: str) -> tuple[str, ...]:
    return tuple(text)


def test_marks_become_tags_and_tokens_keep_their_origin(page):
    write(page, "Say **b", "old", "** and `co", "de`.")
    expect(page.locator(".text p")).to_have_text("Say bold and code.")
    expect(page.locator(".text strong")).to_have_text("bold")
    expect(page.locator(".text code")).to_have_text("code")
    parts = page.locator(".text .token").evaluate_all(
        "spans => spans.map(each => [each.dataset.token, each.textContent])"
    )
    assert parts == [
        ["0", "Say "],
        ["0", "b"],
        ["1", "old"],
        ["2", " and "],
        ["2", "co"],
        ["3", "de"],
        ["3", "."],
    ]


def test_blocks_are_formatted_while_the_text_grows(page):
    source = (
        "# Rivers\n\nThree of *them*:\n\n1. **Rhine**\n   - long\n2. Elbe\n\n> quoted\n\n"
        "| river | km |\n|---|--:|\n| Rhine | 1233 |\n\n---\n\n```python\nprint('**no**')\n```\nend"
    )
    write(page, *letters(source))
    text = page.locator(".text")
    expect(text.locator("h3")).to_have_text("Rivers")
    expect(text.locator("ol > li")).to_have_count(2)
    expect(text.locator("ol ul li")).to_have_text("long")
    expect(text.locator("blockquote")).to_have_text("quoted")
    assert text.locator("th, td").all_text_contents() == ["river", "km", "Rhine", "1233"]
    expect(text.locator("pre code")).to_have_text("print('**no**')")
    expect(text.locator(".code-head")).to_contain_text("python")
    expect(text.locator("hr")).to_have_count(1)
    expect(text.locator("p").last).to_have_text("end")
    tops = text.evaluate("text => [...text.children].map(each => each.tagName)")
    assert tops == ["H3", "P", "OL", "BLOCKQUOTE", "DIV", "HR", "DIV", "P"]


def test_as_generated_shows_every_token(page):
    source = "# A\n\n**b** \U0001f600\n```\nc\n```"
    write(page, *letters(source), is_raw=True)
    text = page.locator(".text")
    assert text.evaluate("text => text.textContent") == source
    expect(text.locator(".token")).to_have_count(len(source))


def test_markup_and_harmful_links_stay_text(page):
    source = (
        "<img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](/v1/models) "
        "![c](https://example.com/c.png) <script>alert(1)</script> https://example.com/d."
    )
    write(page, source)
    text = page.locator(".text")
    assert text.locator("img, script").count() == 0
    links = text.locator("a").evaluate_all("all => all.map(each => [each.textContent, each.href])")
    assert links == [
        ["c", "https://example.com/c.png"],
        ["https://example.com/d", "https://example.com/d"],
    ]
    assert text.locator("a").first.get_attribute("rel") == "noopener noreferrer"
    expect(text).to_contain_text("<img src=x onerror=alert(1)> [a](javascript:alert(1))")


def test_the_focused_token_keeps_the_focus_while_its_paragraph_grows(page):
    page.evaluate("""async () => {
      const { TokenText } = await import("/page/token_text.js");
      window.growing = new TokenText(() => {});
      document.getElementById("turns").replaceChildren(growing.element);
      growing.add([{ text: "one ", depth: 0 }, { text: "two ", depth: 1 }], 0);
      growing.draw();
    }""")
    page.locator(".text .token").nth(1).focus()
    page.evaluate("() => { growing.add([{ text: 'three', depth: 0 }], 1); growing.draw(); }")
    expect(page.locator(".text p")).to_have_text("one two three")
    expect(page.locator(".text .token:focus")).to_have_text("two ")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".text .token:focus")).to_have_text("three")


def test_a_screen_reader_hears_no_marks_of_the_format(page):
    page.evaluate("""async () => {
      const { Speech } = await import("/page/speech.js");
      const speech = new Speech();
      speech.hear("## The **Rhine** is long.\\nIt is `wide`");
      speech.finish();
    }""")
    words = page.locator("#said p").all_text_contents()
    assert [" ".join(each.split()) for each in words[-2:]] == ["The Rhine is long.", "It is wide"]


@pytest.mark.parametrize(("per_step", "is_disturbed"), [(2.0, False), (1.0, True)])
def test_a_speed_up_that_steps_cannot_explain_is_not_claimed(page, per_step, is_disturbed):
    words = page.evaluate(
        """async (perStep) => {
      const { compareAnswers } = await import("/page/compare.js");
      const answer = (rate) => ({ rate, tally: { tokens: [1, 2], perStep } });
      return compareAnswers(answer(15), answer(10)).words;
    }""",
        per_step,
    )
    assert words.startswith("Identical: 2 tokens. With speculation 1.5\u00d7 faster")
    assert ("explain only 1.00\u00d7" in words) == is_disturbed


def test_acceptance_by_position_adds_up_for_trees_too(page):
    """Two drafts at depth 1 and one at depth 2, of which a path of two is accepted; then none."""
    table = page.evaluate("""async () => {
      const { Tally, summaryOf } = await import("/page/tally.js");
      const nodes = [-1, 0, 0, 1].map((parent) => ({ parent }));
      const emitted = [1, 2, 0].map((depth) => ({ depth, token: 7 }));
      const tally = new Tally();
      tally.add(summaryOf({ nodes: [{ parent: -1 }], emitted: emitted.slice(2) }), 0);
      tally.add(summaryOf({ nodes, emitted }), 1);
      tally.add(summaryOf({ nodes, emitted: emitted.slice(2) }), 2);
      return [tally.positions, tally.accepted, tally.drafted, tally.perStep];
    }""")
    positions = [{"drafted": 4, "accepted": 1}, {"drafted": 2, "accepted": 1}]
    assert table == [positions, 2, 6, 2]  # 4 tokens in 2 steps


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"status": 503, "code": "engine_restarting"}, "being restarted"),
        ({"status": 503, "code": "engine_error", "message": "no number"}, "could not finish"),
        ({"status": 503, "code": "not_finite", "message": "no number"}, "will not help"),
        ({"status": 400, "code": "request_failed", "message": "no token"}, "cannot be what"),
        ({"status": 429, "code": "queue_full"}, "too many requests wait"),
        ({"status": 502, "message": "<html>Bad Gateway</html>"}, "behind the proxy"),
        ({"status": 400, "message": '{"detail": [{"loc": ["body"]}]}'}, "HTTP status 400"),
        ({"status": 400, "message": "unknown field 'x'; remove it"}, "cannot take this request"),
    ],
)
def test_errors_are_words_and_no_data(page, error, words):
    said = page.evaluate(EXPLAIN, error)
    assert words in said["words"]
    assert not set("{}<>") & set(said["words"] + said["detail"])
