// One answer on the screen: its tokens, each with the round that emitted it, and the line under them.

import { element } from "./dom.js";
import { Tally, summaryOf } from "./tally.js";
import { TokenText } from "./token_text.js";
import { count, rateOf, seconds } from "./words.js";

export class AnswerView {
  #summaries = []; // of all rounds
  #rounds = []; // with their trees; of a restored answer there are none
  #tokens;
  #head = element("h3", { class: "head", hidden: "" });
  #foot = element("p", { class: "foot" });
  #restoredRate = 0;
  tally = new Tally();
  seed = null;
  totalMs = 0;
  firstMs = 0;
  finish = "";
  note = "";

  constructor(title, inspector) {
    this.element = element("article", { class: "answer", "aria-label": title });
    this.#tokens = new TokenText((span, token) => {
      if (!span) inspector.hideSoon();
      else inspector.show(span, this.#summaries[token.round], { ...token, trace: this.#rounds[token.round] });
    });
    this.element.append(this.#head, this.#tokens.element, this.#foot);
    this.#tokens.element.classList.add("is-running");
  }

  /** An answer of an earlier visit. */
  static restore(record, title, inspector) {
    const answer = new AnswerView(title, inspector);
    for (const summary of record.summaries) answer.#add(summary);
    answer.#restoredRate = record.rate;
    for (const name of ["seed", "totalMs", "firstMs", "finish"]) answer[name] = record[name];
    if (record.head) answer.head(record.head);
    answer.end(record.note);
    return answer;
  }

  /** What is stored of an answer. Trees are too large to store. */
  get record() {
    const { seed, totalMs, firstMs, finish, note, rate } = this;
    return { summaries: this.#summaries, seed, totalMs, firstMs, finish, note, rate, head: this.#head.textContent };
  }

  get text() {
    return this.#tokens.text;
  }

  /** Put a headline above the text, for comparisons. */
  head(words) {
    this.#head.textContent = words;
    this.#head.hidden = false;
  }

  /** Take in one chunk of the stream. */
  take(chunk) {
    for (const choice of chunk.choices) {
      this.seed = choice.seed ?? this.seed;
      this.finish = choice.finish_reason ?? this.finish;
      for (const round of choice.rounds ?? []) {
        this.#rounds.push(round);
        this.#add(summaryOf(round));
      }
    }
    if (chunk.metrics) {
      this.totalMs = chunk.metrics.total_time_ms;
      this.firstMs = chunk.metrics.time_to_first_token_ms;
    }
  }

  /** Tokens per second after the first token; by the server's times once they are known. */
  get rate() {
    const ms = this.totalMs - this.firstMs;
    const measured = this.#restoredRate || this.tally.rate;
    return ms > 0 ? (1000 * this.tally.numDecoded) / ms : measured;
  }

  end(note) {
    this.note = note;
    this.#tokens.element.classList.remove("is-running");
    this.#tokens.draw();
    const parts = [count(this.tally.tokens.length, "token")];
    if (this.totalMs) parts.push(seconds(this.totalMs));
    if (this.rate) parts.push(`${rateOf(this.rate)} tokens/s`);
    if (this.tally.drafted) parts.push(`${this.tally.perStep.toFixed(2)} per step`);
    if (this.seed !== null) parts.push(`seed ${this.seed}`);
    if (note) parts.push(note);
    this.#foot.replaceChildren(...parts.map((part) => element("span", {}, part)));
  }

  showRaw(isRaw) {
    this.#tokens.showRaw(isRaw);
  }

  /** Add a button under the text. */
  offer(button) {
    this.#foot.append(button);
  }

  #add(summary) {
    const number = this.#summaries.push(summary) - 1;
    this.tally.add(summary, performance.now());
    this.#tokens.add(summary.emitted, number);
  }
}
