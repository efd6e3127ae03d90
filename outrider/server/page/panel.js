// The panel beside the chat: numbers of speculation for the current answer.

import { element } from "./dom.js";
import { percent, rateOf } from "./words.js";

const NONE = "\u2013";

export class Panel {
  #rate = document.getElementById("rate");
  #length = document.getElementById("length");
  #share = document.getElementById("share");
  #brief = document.getElementById("brief");
  #positions = document.getElementById("positions");
  #nothing = document.getElementById("no-positions");
  #frame = 0;

  /** Draw the numbers of an answer in the next frame; several calls before it draw once. */
  follow(answer) {
    cancelAnimationFrame(this.#frame);
    this.#frame = requestAnimationFrame(() => this.#draw(answer));
  }

  clear() {
    cancelAnimationFrame(this.#frame);
    for (const each of [this.#rate, this.#length, this.#share]) each.textContent = NONE;
    this.#brief.textContent = "";
    this.#positions.replaceChildren();
    this.#nothing.hidden = false;
  }

  #draw(answer) {
    const { tally, rate } = answer;
    this.#rate.textContent = rate ? rateOf(rate) : NONE;
    this.#length.textContent = tally.numRounds ? tally.perRound.toFixed(2) : NONE;
    this.#share.textContent = tally.drafted ? percent(tally.kept / tally.drafted) : NONE;
    this.#brief.textContent = rate ? `${rateOf(rate)} tok/s` : "";
    this.#nothing.hidden = tally.positions.length > 0;
    this.#drawPositions(tally.positions);
  }

  #drawPositions(positions) {
    while (this.#positions.children.length > positions.length) this.#positions.lastChild.remove();
    while (this.#positions.children.length < positions.length) this.#positions.append(newPosition());
    positions.forEach(({ reached, kept }, index) => {
      const row = this.#positions.children[index];
      const [name, bar, share] = row.children;
      name.textContent = String(index + 1);
      bar.firstChild.style.width = percent(kept / reached);
      share.textContent = percent(kept / reached);
      const words = `Position ${index + 1}: kept in ${kept} of ${reached} rounds that drafted this far`;
      bar.setAttribute("aria-label", words);
      row.title = words;
    });
  }
}

function newPosition() {
  const row = element("li");
  const bar = element("div", { class: "measure", role: "img" });
  bar.append(element("div"));
  row.append(element("span", { "aria-hidden": "true" }), bar, element("span"));
  return row;
}
