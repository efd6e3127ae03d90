// The text of an answer as tokens, formatted or as generated. A token may be shown in parts, or not at all if it is
// only marks of the format.

import { element } from "./dom.js";
import { linesOf, parseBlocks } from "./markdown_blocks.js";
import { drawBlock } from "./markdown_view.js";
import { origin } from "./words.js";

const DEEPEST = 6; // greater depths have the same shade

export class TokenText {
  #tokens = []; // {round, place, depth, end}: the token ends before this character
  #shown = []; // blocks that are drawn, in order
  #isRaw = false;
  #frame = 0;
  text = "";
  element = element("div", { class: "text", role: "group", "aria-label": "Answer, token by token" });

  /** `inspect(span, {round, place})` is called for a token that gets the pointer or the focus, `inspect(null)` after it. */
  constructor(inspect) {
    this.element.addEventListener("pointerover", (event) => this.#inspect(event.target, inspect));
    this.element.addEventListener("pointerleave", () => inspect(null));
    this.element.addEventListener("click", (event) => tokenOf(event.target)?.focus());
    this.element.addEventListener("focusin", (event) => this.#inspect(event.target, inspect));
    this.element.addEventListener("focusin", (event) => this.#makeTabStop(tokenOf(event.target)));
    this.element.addEventListener("focusout", () => inspect(null));
    this.element.addEventListener("keydown", (event) => this.#walk(event));
  }

  /** Add the tokens of a round. Several calls before the next frame are drawn together. */
  add(emitted, round) {
    for (const [place, { text, depth }] of emitted.entries()) {
      if (!text) continue; // a part of a character, or the end of the answer
      this.text += text;
      this.#tokens.push({ round, place, depth, end: this.text.length });
    }
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.draw());
  }

  /** Show every token as generated, or the text with its format. */
  showRaw(isRaw) {
    if (isRaw === this.#isRaw) return;
    this.#isRaw = isRaw;
    this.#shown = [];
    this.element.replaceChildren();
    this.draw();
  }

  /** Draw the blocks that have changed since the last time: those at the end. */
  draw() {
    cancelAnimationFrame(this.#frame);
    const blocks = this.#isRaw ? rawBlocks(this.text) : parseBlocks(linesOf(this.text));
    const isSame = (block, index) => block.start === this.#shown[index]?.start &&
      block.end === this.#shown[index].end && block.kind === this.#shown[index].kind;
    const changed = blocks.findIndex((block, index) => !isSame(block, index));
    const first = changed < 0 ? blocks.length : changed;
    const focused = tokenOf(document.activeElement)?.dataset.token;
    const hadFocus = this.element.contains(document.activeElement);
    while (this.element.children.length > first) this.element.lastChild.remove();
    this.element.append(...blocks.slice(first).map((block) => this.#drawn(block)));
    this.#shown = blocks;
    if (hadFocus && !this.element.contains(document.activeElement)) this.#spanOf(focused)?.focus();
    if (!this.element.querySelector('.token[tabindex="0"]')) this.#makeTabStop(this.#spans()[0]);
  }

  #drawn(block) {
    const leaf = (text, offsets) => this.#leaf(text, offsets);
    if (block.kind !== "raw") return drawBlock(block, leaf);
    const made = element("span", { class: "raw" });
    const text = this.text.slice(block.start, block.end);
    made.append(...leaf(text, Array.from({ length: text.length }, (_, place) => block.start + place)));
    return made;
  }

  /** A span for every token in a range of characters. */
  #leaf(text, offsets) {
    const spans = [];
    for (let from = 0, to; from < text.length; from = to) {
      const number = this.#tokenAt(offsets[from]);
      to = from + 1;
      while (to < text.length && offsets[to] < this.#tokens[number].end) to += 1;
      spans.push(this.#span(number, text.slice(from, to)));
    }
    return spans;
  }

  #span(number, text) {
    const { depth } = this.#tokens[number];
    const span = element("span", { class: "token", tabindex: -1 }, text);
    span.classList.toggle("is-break", !text.trim() && text.includes("\n"));
    span.dataset.depth = String(Math.min(depth, DEEPEST));
    span.dataset.token = String(number);
    span.setAttribute("aria-description", origin(depth));
    return span;
  }

  /** The number of the token that holds a character: the first token that ends after it. */
  #tokenAt(offset) {
    let [low, high] = [0, this.#tokens.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tokens[middle].end > offset) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  #spans() {
    return [...this.element.querySelectorAll(".token")];
  }

  #spanOf(number) {
    return this.element.querySelector(`.token[data-token="${number}"]`);
  }

  #inspect(target, inspect) {
    const span = tokenOf(target);
    if (span) inspect(span, this.#tokens[Number(span.dataset.token)]);
  }

  /** The answer is one tab stop: the token that had the focus last. */
  #makeTabStop(span) {
    if (!span) return;
    this.element.querySelector('.token[tabindex="0"]')?.setAttribute("tabindex", "-1");
    span.setAttribute("tabindex", "0");
  }

  #walk(event) {
    const span = tokenOf(event.target);
    if (!span) return;
    const spans = this.#spans();
    const isOther = (each) => each.dataset.token !== span.dataset.token;
    const place = spans.indexOf(span);
    const next = {
      ArrowRight: () => spans.slice(place).find(isOther),
      ArrowLeft: () => spans.slice(0, place).findLast(isOther),
      Home: () => spans[0],
      End: () => spans.at(-1),
    }[event.key]?.();
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}

function tokenOf(node) {
  return node?.closest(".text .token") ?? null;
}

/** One block per line, so that a long answer is not drawn again as a whole. */
function rawBlocks(text) {
  return linesOf(text).map(({ text: line, start }) => {
    const end = Math.min(start + line.length + 1, text.length);
    return { kind: "raw", start, end };
  }).filter(({ start, end }) => start < end);
}
