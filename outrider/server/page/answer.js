// One answer on the screen: its tokens, each with the round that emitted it.

import { Tally } from "./tally.js";
import { element } from "./dom.js";
import { count, origin, rateOf, seconds } from "./words.js";

const DEEPEST = 6; // greater depths have the same shade

export class AnswerView {
  #rounds = [];
  #body = element("div", { class: "text", role: "group", "aria-label": "Answer, token by token" });
  #foot = element("p", { class: "foot" });
  tally = new Tally();
  text = "";
  seed = null;
  totalMs = 0;
  firstMs = 0;
  finish = "";

  constructor(title, inspector) {
    this.element = element("article", { class: "answer", "aria-label": title });
    this.element.append(this.#body, this.#foot);
    this.#body.classList.add("is-running");
    this.#listen(inspector);
  }

  /** Put a headline above the text, for comparisons. */
  head(words) {
    this.element.prepend(element("h3", { class: "head" }, words));
  }

  /** Take in one chunk of the stream. */
  take(chunk) {
    for (const choice of chunk.choices) {
      this.text += choice.delta.content ?? "";
      this.seed = choice.seed ?? this.seed;
      this.finish = choice.finish_reason ?? this.finish;
      const rounds = choice.rounds ?? [];
      this.tally.add(rounds, performance.now());
      for (const round of rounds) this.#write(round);
    }
    if (chunk.metrics) {
      this.totalMs = chunk.metrics.total_time_ms;
      this.firstMs = chunk.metrics.time_to_first_token_ms;
    }
  }

  /** Tokens per second after the first token; by the server's times once they are known. */
  get rate() {
    const ms = this.totalMs - this.firstMs;
    return ms > 0 ? (1000 * (this.tally.tokens.length - 1)) / ms : this.tally.rate;
  }

  end(note) {
    this.#body.classList.remove("is-running");
    const parts = [count(this.tally.tokens.length, "token")];
    if (this.totalMs) parts.push(seconds(this.totalMs));
    if (this.rate) parts.push(`${rateOf(this.rate)} tokens/s`);
    if (this.tally.drafted) parts.push(`${this.tally.perRound.toFixed(2)} per round`);
    if (this.seed !== null) parts.push(`seed ${this.seed}`);
    if (note) parts.push(note);
    this.#foot.replaceChildren(...parts.map((part) => element("span", {}, part)));
  }

  /** Add a button under the text. */
  offer(button) {
    this.#foot.append(button);
  }

  #write(round) {
    const number = this.#rounds.push(round) - 1;
    for (const [place, { text, depth }] of round.emitted.entries()) {
      if (!text) continue; // a part of a character, or the end of the answer
      const tabindex = this.#body.childNodes.length ? -1 : 0;
      const token = element("span", { class: "token", tabindex });
      token.textContent = text;
      token.classList.toggle("is-break", !text.trim() && text.includes("\n"));
      token.dataset.depth = String(Math.min(depth, DEEPEST));
      token.dataset.round = String(number);
      token.dataset.place = String(place);
      token.setAttribute("aria-description", origin(depth));
      this.#body.append(token);
    }
  }

  #listen(inspector) {
    const show = (target) => {
      const token = target.closest(".token");
      if (!token) return;
      const number = Number(token.dataset.round);
      const place = Number(token.dataset.place);
      inspector.show(token, this.#rounds[number], { number, place });
    };
    this.#body.addEventListener("pointerover", (event) => show(event.target));
    this.#body.addEventListener("pointerleave", () => inspector.hideSoon());
    this.#body.addEventListener("click", (event) => event.target.closest(".token")?.focus());
    this.#body.addEventListener("focusin", (event) => {
      this.#body.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
      event.target.setAttribute("tabindex", "0");
      show(event.target);
    });
    this.#body.addEventListener("focusout", () => inspector.hideSoon());
    this.#body.addEventListener("keydown", (event) => this.#walk(event));
  }

  #walk(event) {
    const step = { ArrowRight: "nextSibling", ArrowLeft: "previousSibling" }[event.key];
    const end = { Home: "firstChild", End: "lastChild" }[event.key];
    const next = step ? event.target[step] : end ? this.#body[end] : null;
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
