"""The chat page in a real browser, with a real server that accepts some of its drafts."""

import re

import pytest

pytest.importorskip("playwright", reason="the page is tested with playwright: pip install it")

from playwright.sync_api import Page, expect
from support.page_visits import BROWSER_MARKS, DESKTOP, PHONE, QUESTION, Visit
from support.page_visits import browser as browser
from support.page_visits import open_page as open_page

from outrider import SamplingParams

pytestmark = BROWSER_MARKS
IDENTICAL = re.compile(r"Identical: \d+ tokens")


@pytest.fixture
def answered(open_page) -> Visit:
    """A finished answer of 60 tokens, shown as generated."""
    visit = open_page()
    visit.page.select_option("#form", "raw")
    visit.settle(temperature="0.1", seed="4", max_tokens="60")
    visit.ask(QUESTION)
    visit.wait()
    return visit


def width_of(page: Page) -> int:
    return page.locator("html").evaluate("html => html.scrollWidth")


def test_an_answer_streams_token_by_token_and_each_says_how_it_came(answered, server):
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0.1,
        "seed": 4,
        "max_tokens": 60,
        "speculative": "off",
    }
    right = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"]
    text = answered.page.locator(".text")
    assert text.evaluate("text => text.textContent") == right
    tokens = text.locator(".token")
    descriptions = {token.get_attribute("aria-description") for token in tokens.all()}
    assert {"bonus token", "draft depth 1"} <= descriptions
    expect(answered.page.locator(".foot")).to_contain_text("60 tokens")
    expect(answered.page.locator(".foot")).to_contain_text("seed 4")
    expect(answered.page.locator("#rate")).to_have_text(re.compile(r"\d"))
    expect(answered.page.locator("#positions li").first).to_contain_text("%")


def test_the_figures_of_an_answer_agree_with_each_other_and_with_the_server(answered, server):
    page = answered.page
    body = {**answered.bodies[0], "stream": False}
    answer = server.post("/v1/chat/completions", body).json()
    figures = answer["metrics"]["speculative_decoding"]
    accepted, drafted = figures["num_accepted_draft_tokens"], figures["num_draft_tokens"]
    assert 0 < accepted < drafted
    expect(page.locator("#positions-sum")).to_have_text(
        f"All positions: {accepted} of {drafted} drafts accepted."
    )
    expect(page.locator("#share")).to_have_text(f"{round(100 * accepted / drafted)}%")
    counts = page.locator("#positions li > :nth-child(3)").all_text_contents()
    rows = [tuple(map(int, each.split("/"))) for each in counts]
    assert tuple(map(sum, zip(*rows, strict=True))) == (accepted, drafted)
    steps = figures["num_spec_steps"]
    expect(page.locator("#speedup")).to_have_text(f"{59 / steps:.2f}\u00d7")
    expect(page.locator("#how")).to_contain_text(f"59 tokens in {steps} steps after the prompt.")


def test_the_tree_of_a_round_shows_on_focus_and_goes_on_escape(answered):
    page = answered.page
    page.locator(".text .token").first.focus()
    expect(page.locator("#round-title")).to_have_text("After the prompt: nothing drafted")
    page.locator(".text .token[aria-description='draft depth 1']").first.focus()
    expect(page.locator("#round-title")).to_have_text(
        re.compile(r"Round \d+: \d+ of \d+ drafts? accepted")
    )
    expect(page.locator("#round-token")).to_contain_text("draft depth 1, the target agreed")
    assert page.locator("#round svg .node.root").count() == 1
    assert page.locator("#round svg .node.accepted.chosen").count() == 1
    assert page.locator("#round svg").get_attribute("aria-label").startswith("After ")
    page.keyboard.press("Escape")
    expect(page.locator("#round")).to_be_hidden()


def test_drafts_that_were_not_chosen_are_in_the_tree(answered):
    page, card = answered.page, answered.page.locator("#round")
    for token in page.locator(".text .token[data-depth='0']").all():
        token.hover()
        expect(card).to_be_visible()
        if card.locator(".node.other").count():
            break
    assert card.locator(".node.other title").first.text_content().endswith("not chosen")
    expect(card.locator("svg")).to_have_attribute("aria-label", re.compile("Not chosen: "))
    page.mouse.move(2, 2)
    expect(card).to_be_hidden()


def test_arrow_keys_walk_over_the_tokens_of_one_tab_stop(answered):
    page = answered.page
    page.focus("#prompt")
    for _ in range(4):  # past the three buttons under the answer
        page.keyboard.press("Shift+Tab")
    focused = page.locator(".token:focus")
    assert focused.count() == 1
    page.keyboard.press("ArrowRight")
    assert page.locator(".text .token").nth(1).evaluate("token => token.matches(':focus')")
    page.keyboard.press("End")
    assert page.locator(".text .token").last.evaluate("token => token.matches(':focus')")
    assert page.locator(".text .token[tabindex='0']").count() == 1


def test_the_same_seed_without_speculation_gives_an_identical_answer(open_page):
    visit = open_page()
    visit.settle(temperature="0.1", max_tokens="50")  # the server draws the seed
    visit.page.locator("#compare").press("Space")
    visit.ask(QUESTION)
    expect(visit.page.locator(".verdict")).to_contain_text(IDENTICAL, timeout=30_000)
    heads = visit.page.locator(".head").all_text_contents()
    assert [head.split(" \u00b7 ")[0] for head in heads] == ["Speculation on", "Speculation off"]
    assert all(re.search(r"\d m?s$", head) for head in heads)
    first, second = visit.page.locator(".text").all()
    assert first.text_content() == second.text_content()
    plain = second.locator(".token")
    assert {each.get_attribute("aria-description") for each in plain.all()} == {"bonus token"}


def test_a_finished_answer_can_be_compared_later(answered):
    answered.page.get_by_role("button", name="Same seed, spec off").click()
    expect(answered.page.locator(".verdict")).to_contain_text("Identical: 60 tokens")


def test_the_draft_budget_is_what_was_asked_for(open_page):
    visit = open_page()
    visit.settle(temperature="0", max_tokens="60")
    visit.page.select_option("#draft", "custom")
    visit.settle(steps="1", topk="1", nodes="2")
    visit.ask(QUESTION)
    visit.wait()
    assert visit.page.locator("#positions li").count() == 1
    visit.page.select_option("#draft", "off")
    visit.page.click("#new-chat")
    expect(visit.page.locator(".turn")).to_have_count(0)
    visit.ask(QUESTION)
    visit.wait()
    expect(visit.page.locator("#positions-sum")).to_have_text("Nothing was drafted yet.")


def seed_of_a_long_answer(llm, num_tokens=400):
    """A seed whose answer does not end by itself for a while."""
    turns = [{"role": "user", "content": QUESTION}]
    for seed in range(100):
        params = SamplingParams(seed=seed, temperature=1.0, max_tokens=num_tokens)
        if llm.chat(turns, params, use_tqdm=False)[0].outputs[0].finish_reason == "length":
            return seed
    raise AssertionError("every answer is short")


def test_an_answer_can_be_stopped(open_page, server, llm):
    visit = open_page()
    seed = str(seed_of_a_long_answer(llm))
    visit.settle(temperature="1", seed=seed, max_tokens="3500")
    visit.ask(QUESTION)
    visit.page.locator(".text .token").nth(3).wait_for()
    visit.page.get_by_role("button", name="Stop").click()
    visit.wait()
    expect(visit.page.locator(".foot")).to_contain_text("stopped")
    assert not server.wait_until_idle()["has_leak"]


def test_a_refusal_is_shown_and_can_be_tried_again(browser, server):
    visit = Visit(browser, server.url, viewport=DESKTOP)
    visit.ask("a" * 5000)  # more than the context holds
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("Shorten the message, lower max tokens, or start a new chat.")
    alert.get_by_role("button", name="Try again").click()
    expect(alert).to_contain_text("the context holds")
    expect(visit.page.locator(".answer")).to_have_count(0)  # nothing was answered
    assert all("400" in complaint for complaint in visit.complaints)  # the browser's own
    visit.page.context.close()


def test_what_people_and_models_say_is_never_markup(open_page):
    visit = open_page()
    visit.settle(max_tokens="5")
    visit.ask("<img src=x onerror=alert(1)>")
    visit.wait()
    expect(visit.page.locator(".question")).to_have_text("<img src=x onerror=alert(1)>")
    assert visit.page.locator(".turns img").count() == 0


def test_a_screen_reader_hears_sentences_and_every_control_has_a_name(answered):
    page = answered.page
    expect(page.locator("#said")).to_contain_text("Answer cut at max tokens, 60 tokens")
    assert page.locator("#said").get_attribute("aria-live") == "polite"
    assert page.locator("#turns").get_attribute("aria-live") == "off"
    named = "c => Boolean(c.labels?.length || c.getAttribute('aria-label') || c.textContent.trim())"
    for control in page.locator("button, input, select, textarea").all():
        assert control.evaluate(named), control.evaluate("c => c.outerHTML")


def test_a_retry_uses_the_settings_as_they_are_now(browser, server):
    visit = Visit(browser, server.url, viewport=DESKTOP)
    # More than the context holds.
    visit.settle(temperature="0.1", seed="4", max_tokens="5", system="a" * 5000)
    visit.ask(QUESTION)
    alert = visit.page.get_by_role("alert")
    expect(alert).to_contain_text("the context holds")
    visit.settle(system="")
    alert.get_by_role("button", name="Try again").click()
    expect(visit.page.locator(".foot")).to_contain_text("5 tokens")
    expect(alert).to_have_count(0)
    visit.page.context.close()


def test_a_phone_shows_the_model_and_the_figures(open_page):
    visit = open_page(PHONE, has_touch=True)
    page = visit.page
    page.tap("#open-panel")
    visit.settle(temperature="0.1", seed="4", max_tokens="60")
    page.keyboard.press("Escape")
    visit.ask(QUESTION)
    visit.wait()
    expect(page.locator("#model")).to_be_visible()
    brief = re.compile(r"^[\d.]+ tok/s . [\d.]+ tokens/step . \d+% accepted$")
    expect(page.locator("#brief")).to_have_text(brief)
    is_whole = "each => each.scrollWidth <= each.clientWidth"
    assert page.locator("#brief").evaluate(is_whole)
    assert page.locator("#model").evaluate(is_whole)
    assert width_of(page) == PHONE["width"]


def test_a_phone_needs_no_sideways_scrolling_and_unfolds_the_settings(open_page):
    visit = open_page(PHONE, has_touch=True)
    page = visit.page
    assert width_of(page) == PHONE["width"]
    page.tap("#open-panel")
    expect(page.locator("#close-panel")).to_be_focused()
    visit.settle(temperature="0.1", seed="4", max_tokens="60")
    page.keyboard.press("Escape")
    expect(page.locator("#panel")).to_be_hidden()
    expect(page.locator("#open-panel")).to_be_focused()
    page.locator("#compare").tap()
    visit.ask(QUESTION)
    expect(page.locator(".verdict")).to_contain_text("Identical")
    page.locator(".text .token[data-depth='1']").first.tap()
    card = page.locator("#round")
    expect(card).to_be_visible()
    box = card.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= PHONE["width"]
    assert width_of(page) == PHONE["width"]


def test_the_page_is_dark_where_the_system_is(open_page):
    colour = "body => getComputedStyle(body).backgroundColor"
    light, dark = (
        open_page(color_scheme=scheme).page.locator("body").evaluate(colour)
        for scheme in ("light", "dark")
    )
    assert light != dark


def test_a_server_with_a_key_is_asked_with_the_key_that_the_page_asks_for(browser, start_server):
    server = start_server("--api-key", "sesame", "--draft", "ngram", "--kv-tokens", "16384")
    page = browser.new_context(viewport=DESKTOP).new_page()
    page.goto(server.url)
    expect(page.locator("#model")).to_have_text("an API key is needed")
    expect(page.get_by_label("API key")).to_be_focused()
    page.keyboard.type("sesame")
    page.keyboard.press("Tab")
    expect(page.locator("#model")).to_have_text("tiny")
    page.fill("#max-tokens", "5")
    page.fill("#prompt", QUESTION)
    page.press("#prompt", "Enter")
    expect(page.locator(".foot")).to_contain_text("5 tokens", timeout=30_000)
    page.context.close()
    assert server.stop() == 0
