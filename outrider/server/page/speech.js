// What a screen reader announces: whole sentences, not tokens.

const SENTENCE = /^[\s\S]*?(?:[.!?:](?=\s)|\n)/;
const MOST_LINES = 4; // sentences in the live region; older ones are removed

export class Speech {
  #region = document.getElementById("said");
  #pending = "";

  /** Add text of an answer; complete sentences are announced. */
  hear(text) {
    this.#pending += text;
    for (let match; (match = SENTENCE.exec(this.#pending)); ) {
      this.#pending = this.#pending.slice(match[0].length);
      this.say(withoutMarks(match[0]));
    }
  }

  /** Announce the rest of the answer, which has ended. */
  finish() {
    this.say(withoutMarks(this.#pending));
    this.#pending = "";
  }

  say(words) {
    if (!words.trim()) return;
    const line = document.createElement("p");
    line.textContent = words.trim();
    this.#region.append(line);
    while (this.#region.children.length > MOST_LINES) this.#region.firstChild.remove();
  }
}

/** Text without the marks of Markdown, which would be read out as "star star". */
function withoutMarks(text) {
  return text.replace(/[*_`#|~]+/g, " ");
}
