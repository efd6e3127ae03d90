"""Chats on the chat page, in a real browser: stored, restored, edited, answered again, deleted."""

import pytest

pytest.importorskip("playwright", reason="the page is tested with playwright: pip install it")

from playwright.sync_api import expect
from support.page_visits import BROWSER_MARKS, PHONE, QUESTION, Visit
from support.page_visits import browser as browser
from support.page_visits import open_page as open_page

pytestmark = BROWSER_MARKS

DEPTHS = "spans => spans.map(each => [each.textContent, each.dataset.depth])"


@pytest.fixture
def answered(open_page) -> Visit:
    """A chat of one turn."""
    visit = open_page()
    visit.settle(temperature="0.1", max_tokens="20")  # the server draws the seed
    visit.ask(QUESTION)
    visit.wait()
    return visit


def asked_for(body: dict) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in body["messages"]]


def test_a_chat_survives_a_reload(answered):
    page = answered.page
    seen = [".question", ".foot span", "#rate", "#speedup", "#share", "#positions-sum", "#how"]
    before = [page.locator(each).all_text_contents() for each in seen]
    tokens = page.locator(".text .token").evaluate_all(DEPTHS)
    page.reload()
    expect(page.locator("#speedup")).to_contain_text("\u00d7")
    assert [page.locator(each).all_text_contents() for each in seen] == before
    assert page.locator(".text .token").evaluate_all(DEPTHS) == tokens
    page.locator(".text .token").last.focus()
    expect(page.locator("#round")).to_contain_text("Draft trees are not stored")
    page.select_option("#form", "raw")
    text = page.locator(".text").text_content()
    answered.ask("the cat")
    answered.wait()
    assert asked_for(answered.bodies[-1]) == [
        ("user", QUESTION),
        ("assistant", text),
        ("user", "the cat"),
    ]


def test_a_comparison_survives_a_reload(answered):
    page = answered.page
    page.get_by_role("button", name="Same seed, spec off").click()
    expect(page.locator(".verdict")).to_contain_text("Identical")
    expect(page.locator("#send")).to_be_visible()
    words = [page.locator(each).all_text_contents() for each in (".verdict", ".head", ".text")]
    page.reload()
    expect(page.locator(".verdict")).to_be_visible()
    assert words == [
        page.locator(each).all_text_contents() for each in (".verdict", ".head", ".text")
    ]


def test_an_answer_that_a_reload_interrupts_is_stored_as_far_as_it_came(open_page):
    visit = open_page()
    visit.settle(temperature="1", max_tokens="3500", seed="1")
    visit.ask(QUESTION)
    visit.page.locator(".text .token").nth(3).wait_for()
    visit.page.reload()
    expect(visit.page.locator(".question")).to_have_text(QUESTION)
    assert visit.page.locator(".text .token").count() >= 4
    expect(visit.page.get_by_role("button", name="Regenerate")).to_be_visible()


def test_regenerate_replaces_the_last_answer_only(answered):
    page = answered.page
    answered.ask("the dog")
    answered.wait()
    first = page.locator(".foot").first.text_content()
    last = page.locator(".foot").last.text_content()
    regenerate = page.get_by_role("button", name="Regenerate")
    expect(regenerate).to_have_count(1)
    regenerate.click()
    expect(page.locator(".foot").last).not_to_have_text(last)
    answered.wait()
    expect(page.locator(".answer")).to_have_count(2)
    assert page.locator(".foot").first.text_content() == first
    assert asked_for(answered.bodies[-1]) == asked_for(answered.bodies[-2])


def test_an_edited_message_replaces_the_turns_after_it(answered):
    page = answered.page
    answered.ask("the dog")
    answered.wait()
    page.locator(".edit").first.click()
    editor = page.get_by_label("Edit the message", exact=True)
    expect(editor).to_be_focused()
    expect(page.locator(".editor")).to_contain_text("The messages after this one are removed.")
    page.keyboard.press("Escape")
    expect(page.locator(".edit").first).to_be_focused()
    page.keyboard.press("Enter")
    editor.fill("the bird")
    page.keyboard.press("Enter")
    answered.wait()
    assert page.locator(".question").all_text_contents() == ["the bird"]
    assert asked_for(answered.bodies[-1]) == [("user", "the bird")]
    page.reload()
    expect(page.locator(".question")).to_have_text(["the bird"])


def test_chats_are_listed_opened_and_deleted(answered):
    page = answered.page
    page.click("#new-chat")
    expect(page.locator("#welcome")).to_be_visible()
    answered.ask("the bird")
    answered.wait()
    titles = page.locator("#chat-list li button:first-child")
    expect(titles).to_have_text(["the bird", QUESTION])
    expect(titles.first).to_have_attribute("aria-current", "true")
    titles.nth(1).click()
    expect(page.locator(".question")).to_have_text([QUESTION])
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name=f"Delete the chat: {QUESTION}").click()
    expect(titles).to_have_text(["the bird"])
    expect(page.locator(".turn")).to_have_count(0)
    page.reload()
    expect(titles).to_have_text(["the bird"])
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete the chat: the bird").click()
    expect(titles).to_have_text(["the bird"])


def test_a_chat_that_is_deleted_while_it_is_answered_does_not_come_back(open_page, server):
    visit = open_page()
    visit.settle(temperature="1", max_tokens="3500", seed="1")
    visit.ask(QUESTION)
    visit.page.locator(".text .token").nth(3).wait_for()
    visit.page.once("dialog", lambda dialog: dialog.accept())
    visit.page.get_by_role("button", name="Delete the chat").click()
    expect(visit.page.locator("#send")).to_be_visible()
    assert not server.wait_until_idle()["has_leak"]
    expect(visit.page.locator("#chat-list li")).to_have_count(0)
    visit.page.reload()
    expect(visit.page.locator("#chat-list li")).to_have_count(0)


def test_two_tabs_show_one_chat_and_the_older_one_loses_nothing(answered):
    page = answered.page
    other = page.context.new_page()
    other.goto(page.url)
    other.locator("#chat-list li button").first.click()
    expect(other.locator(".question")).to_have_count(1)
    answered.ask("the bird")
    answered.wait()
    expect(other.locator(".question")).to_have_text([QUESTION, "the bird"])
    other.close(run_before_unload=True)
    page.reload()
    expect(page.locator(".question")).to_have_text([QUESTION, "the bird"])


def test_a_full_store_is_said_and_the_chat_goes_on(open_page):
    visit = open_page()
    visit.page.evaluate("""() => {
      for (let size = 2 ** 22; size >= 1; size /= 2) {
        try { localStorage.setItem(`filler.${size}`, "x".repeat(size)); } catch { continue; }
      }
    }""")
    visit.settle(temperature="0.1", seed="4", max_tokens="5")
    visit.ask(QUESTION)
    visit.wait()
    expect(visit.page.locator("#notice")).to_contain_text("no room to store this chat")
    expect(visit.page.locator(".foot")).to_contain_text("5 tokens")


def test_what_others_left_in_the_store_does_not_break_the_page(open_page):
    visit = open_page()
    visit.page.evaluate("""() => {
      localStorage.setItem("outrider.settings", "{");
      localStorage.setItem("outrider.chat.x", "null");
      localStorage.setItem("outrider.theme", "dark");
      sessionStorage.setItem("outrider.open-chat", "[");
    }""")
    visit.page.reload()
    visit.settle(max_tokens="5")
    visit.ask(QUESTION)
    visit.wait()
    expect(visit.page.locator("#chat-list li")).to_have_count(1)


def test_a_phone_opens_a_chat_from_the_list(open_page):
    visit = open_page(PHONE, has_touch=True)
    page = visit.page
    page.locator("#max-tokens").evaluate("field => (field.value = '5')")
    visit.ask(QUESTION)
    visit.wait()
    page.tap("#new-chat")
    page.tap("#open-chats")
    expect(page.locator("#close-chats")).to_be_focused()
    page.locator("#chat-list li button").first.tap()
    expect(page.locator("#chats")).to_be_hidden()
    expect(page.locator(".question")).to_have_text(QUESTION)
