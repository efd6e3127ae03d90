// The panel beside the chat: numbers of speculation for the current answer.

import { element } from "./dom.js";
import { count, percent, rateOf, times } from "./words.js";

const NONE = "\u2013";

export class Panel {
  #rate = document.getElementById("rate");
  #speedup = document.getElementById("speedup");
  #share = document.getElementById("share");
  #brief = document.getElementById("brief");
  #how = document.getElementById("how");
  #positions = document.getElementById("positions");
  #sum = document.getElementById("positions-sum");
  #frame = 0;

  /** Draw the numbers of an answer in the next frame; several calls before it draw once. */
  follow(answer) {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#draw(answer));
  }

  clear() {
    cancelAnimationFrame(this.#frame);
    for (const each of [this.#rate, this.#speedup, this.#share]) each.textContent = NONE;
    for (const each of [this.#brief, this.#how]) each.textContent = "";
    this.#positions.replaceChildren();
    this.#sum.textContent = "Nothing was drafted yet.";
  }

  #draw({ tally, rate }) {
    const { drafted, accepted, numRounds, numDecoded, perStep } = tally;
    const figures = {
      rate: rate ? rateOf(rate) : NONE,
      perStep: numRounds ? perStep.toFixed(2) : NONE,
      share: drafted ? percent(accepted / drafted) : NONE,
    };
    this.#rate.textContent = figures.rate;
    this.#speedup.textContent = numRounds ? times(perStep) : NONE;
    this.#share.textContent = figures.share;
    this.#brief.textContent = briefOf(figures);
    this.#how.textContent = numRounds ? howOf(numDecoded, numRounds) : "";
    this.#drawPositions(tally.positions);
    this.#sum.textContent = drafted
      ? `All positions: ${accepted} of ${count(drafted, "draft")} accepted.`
      : "Nothing was drafted yet.";
  }

  #drawPositions(positions) {
    while (this.#positions.children.length > positions.length) this.#positions.lastChild.remove();
    while (this.#positions.children.length < positions.length) this.#positions.append(newPosition());
    positions.forEach(({ drafted, accepted }, index) => {
      const row = this.#positions.children[index];
      const [name, bar, counts, share] = row.children;
      name.textContent = String(index + 1);
      bar.firstChild.style.width = percent(accepted / drafted);
      counts.textContent = `${accepted}/${drafted}`;
      share.textContent = percent(accepted / drafted);
      const words = `Position ${index + 1}: ${accepted} of ${count(drafted, "draft")} accepted`;
      bar.setAttribute("aria-label", words);
      row.title = words;
    });
  }
}

/** The figures in one line, for windows that hide the panel. */
function briefOf({ rate, perStep, share }) {
  const parts = [rate !== NONE && `${rate} tok/s`, perStep !== NONE && `${perStep} tokens/step`,
    share !== NONE && `${share} accepted`];
  return parts.filter(Boolean).join(" \u00b7 ");
}

function howOf(numTokens, numSteps) {
  return `${count(numTokens, "token")} in ${count(numSteps, "step")} after the prompt. Plain decoding takes a step ` +
    `for each token. A step with drafts takes longer than a plain one: "Same seed, spec off" compares the times.`;
}

function newPosition() {
  const row = element("li");
  const bar = element("div", { class: "measure", role: "img" });
  bar.append(element("div"));
  const hidden = { "aria-hidden": "true" }; // the bar says it in words
  row.append(element("span", hidden), bar, element("span", hidden), element("span", hidden));
  return row;
}
