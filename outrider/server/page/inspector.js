// The card with the round of the token that has the pointer or the focus.

import { element } from "./dom.js";
import { drawTree } from "./tree.js";
import { numAccepted, numDrafted } from "./tally.js";
import { count, origin, visible } from "./words.js";

const LINGER_MS = 140; // time to move the pointer from a token to its card
const MARGIN = 12;
const NO_TREE = "Draft trees are not stored. Regenerate the answer to see them.";

export class Inspector {
  #card = document.getElementById("round");
  #title = document.getElementById("round-title");
  #token = document.getElementById("round-token");
  #tree = document.getElementById("round-tree");
  #anchor = null;
  #timer = 0;

  constructor() {
    this.#card.addEventListener("pointerenter", () => clearTimeout(this.#timer));
    this.#card.addEventListener("pointerleave", () => this.hideSoon());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.hide();
    });
    window.addEventListener("resize", () => this.hide());
  }

  /** Show a round beside one of its tokens: `place` is the index of the token in the round, `trace` has the tree. */
  show(anchor, summary, { round, place, trace }) {
    clearTimeout(this.#timer);
    if (anchor === this.#anchor) return;
    this.#release();
    this.#anchor = anchor;
    anchor.classList.add("is-shown");
    anchor.setAttribute("aria-describedby", "round-title round-token");
    const drafted = numDrafted(summary);
    const name = round ? `Round ${round}` : "After the prompt";
    this.#title.textContent = drafted
      ? `${name}: ${numAccepted(summary)} of ${count(drafted, "draft")} accepted`
      : `${name}: nothing drafted`;
    const { text, token, depth } = summary.emitted[place];
    const what = depth ? "the target agreed" : "the target's own choice";
    const code = element("code", {}, visible(text, token));
    this.#token.replaceChildren(code, `${origin(depth)}, ${what}`);
    this.#tree.replaceChildren(trace ? drawTree(trace, place) : element("p", { class: "note" }, NO_TREE));
    this.#card.hidden = false;
    this.#place(anchor);
    this.#tree.querySelector(".chosen rect")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  hideSoon() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.hide(), LINGER_MS);
  }

  hide() {
    clearTimeout(this.#timer);
    this.#release();
    this.#card.hidden = true;
  }

  #release() {
    this.#anchor?.classList.remove("is-shown");
    this.#anchor?.removeAttribute("aria-describedby");
    this.#anchor = null;
  }

  /** Below the token if there is room, else above; never over the panel or outside the window. */
  #place(anchor) {
    const rect = anchor.getClientRects()[0] ?? anchor.getBoundingClientRect();
    const { width, height } = this.#card.getBoundingClientRect();
    const right = document.getElementById("chat").getBoundingClientRect().right - width - MARGIN;
    const below = rect.bottom + 6;
    const fits = below + height < window.innerHeight - MARGIN;
    this.#card.style.left = `${Math.max(MARGIN, Math.min(rect.left - 16, right))}px`;
    this.#card.style.top = `${fits ? below : Math.max(MARGIN, rect.top - height - 6)}px`;
  }
}
