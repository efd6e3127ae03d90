// What a screen reader hears: whole sentences, not tokens.

const SENTENCE = /^[\s\S]*?(?:[.!?:](?=\s)|\n)/;
const MOST_KEPT = 4; // sentences in the region; older ones were read or skipped

export class Speech {
  #region = document.getElementById("said");
  #pending = "";

  /** Hear more of an answer; complete sentences are said. */
  hear(text) {
    this.#pending += text;
    for (let match; (match = SENTENCE.exec(this.#pending)); ) {
      this.#pending = this.#pending.slice(match[0].length);
      this.say(match[0]);
    }
  }

  /** Say what is left, as the answer has ended. */
  finish() {
    this.say(this.#pending);
    this.#pending = "";
  }

  say(words) {
    if (!words.trim()) return;
    const line = document.createElement("p");
    line.textContent = words.trim();
    this.#region.append(line);
    while (this.#region.children.length > MOST_KEPT) this.#region.firstChild.remove();
  }
}
