// One chat: its turns, and the request that runs.

import { AnswerView } from "./answer.js";
import { streamChat } from "./api.js";
import { newChat, rememberOpenChat, writeChat } from "./chat_store.js";
import { compareAnswers, headline } from "./compare.js";
import { button } from "./dom.js";
import { copyButton } from "./markdown_view.js";
import { TurnView } from "./turn_view.js";
import { count, seconds } from "./words.js";

const FULL = "The browser has no room to store this chat. Delete old chats, or copy what you need.";
const TITLES = ["Answer", "The same without speculation"];

export class Conversation {
  #place = document.getElementById("turns");
  #chat = newChat();
  #turns = []; // TurnView
  #running = null; // an AbortController while an answer is written
  #parts; // settings, panel, inspector, speech, scroll
  #changed; // called when the chat was stored, or another one is shown

  constructor(parts, changed) {
    this.#parts = parts;
    this.#changed = changed;
  }

  get id() {
    return this.#chat.id;
  }

  get isRunning() {
    return this.#running !== null;
  }

  /** Show a stored chat, or an empty one. */
  open(chat = newChat()) {
    this.stop();
    this.#setRunning(null); // the old chat stores what it has when its request has ended
    this.#chat = chat;
    this.#turns = [];
    this.#place.replaceChildren();
    this.#parts.inspector.hide();
    this.#parts.panel.clear();
    for (const record of chat.turns) this.#restore(record);
    rememberOpenChat(chat.id);
    this.#changed();
    this.#parts.scroll.toEnd();
  }

  stop() {
    this.#running?.abort();
  }

  async ask(question) {
    if (this.isRunning || !question.trim() || !this.#parts.settings.check()) return;
    const turn = this.#addTurn(question);
    this.#parts.scroll.toEnd();
    await this.#answer(turn);
  }

  showRaw(isRaw) {
    for (const turn of this.#turns) for (const answer of turn.answers) answer.showRaw(isRaw);
  }

  /** Store an answer as far as it came. Otherwise the chat is stored, and another tab may have a newer one. */
  saveRunning() {
    if (this.isRunning) this.#save(this.#chat, this.#turns);
  }

  #save(chat, turns) {
    if (chat.isDeleted || !turns.length) return;
    chat.turns = turns.map((turn) => turn.record);
    chat.updated = Date.now();
    const notice = document.getElementById("notice");
    notice.textContent = writeChat(chat) ? "" : FULL;
    this.#changed();
  }

  /** The chat was deleted: nothing of it is stored again. */
  forget() {
    this.#chat.isDeleted = true;
    this.open();
  }

  #addTurn(question) {
    const turn = new TurnView(question, this.#turns.length + 1, (text) => this.#edit(turn, text));
    this.#turns.push(turn);
    this.#place.append(turn.element);
    return turn;
  }

  #restore(record) {
    const turn = this.#addTurn(record.question);
    turn.isAnswered = record.isAnswered;
    for (const [index, each] of record.answers.entries()) {
      const answer = AnswerView.restore(each, TITLES[index], this.#parts.inspector);
      this.#show(turn, answer);
      this.#offerActions(turn, answer);
    }
    if (record.verdict) turn.showVerdict(record.verdict);
    if (turn.answers.length) this.#parts.panel.follow(turn.answers[0]);
    else this.#offerAgain(turn, { status: 0, message: "This message has no answer yet." });
  }

  /** Ask a changed question; the turns after it are removed. */
  #edit(turn, text) {
    if (this.isRunning || !this.#parts.settings.check()) return;
    for (const each of this.#turns.splice(this.#turns.indexOf(turn))) each.element.remove();
    this.ask(text);
    document.getElementById("prompt").focus();
  }

  /** Answer the last turn, again if it was answered before, with the settings as they are now. */
  async #answer(turn) {
    const body = this.#parts.settings.request(this.#messagesFor(turn));
    const isCompared = document.getElementById("compare").checked;
    turn.clear();
    await this.#whileRunning(turn, () => this.#answer(turn), async (signal) => {
      const answer = await this.#run(turn, body, signal);
      turn.isAnswered = true;
      if (isCompared && !signal.aborted) await this.#runPlain(turn, body, signal);
      this.#offerActions(turn, answer, body);
    });
  }

  #messagesFor(turn) {
    const before = this.#turns.slice(0, this.#turns.indexOf(turn)).filter((each) => each.isAnswered);
    const said = before.flatMap(({ question, answers }) => [
      { role: "user", content: question },
      { role: "assistant", content: answers[0].text },
    ]);
    return [...said, { role: "user", content: turn.question }];
  }

  /** Run the same request and seed without speculation, and compare the two answers. */
  async #runPlain(turn, body, signal) {
    const [answer] = turn.answers;
    const plain = await this.#run(turn, { ...body, seed: answer.seed, speculative: "off" }, signal)
      .catch((error) => {
        turn.removeLast(); // half a comparison says nothing
        throw error;
      });
    if (signal.aborted) return;
    answer.head(headline("Speculation on", answer));
    plain.head(headline("Speculation off", plain));
    const verdict = compareAnswers(answer, plain);
    turn.showVerdict(verdict);
    this.#parts.panel.follow(answer);
    this.#parts.speech.say(verdict.words);
  }

  /** Stream one answer into view. Stopping it is not an error. */
  async #run(turn, body, signal) {
    const { settings, inspector, speech, panel, scroll } = this.#parts;
    const answer = new AnswerView(TITLES[turn.answers.length], inspector);
    this.#show(turn, answer);
    let note = "";
    try {
      for await (const chunk of streamChat(body, settings.key, signal)) {
        const before = answer.text.length;
        answer.take(chunk);
        speech.hear(answer.text.slice(before));
        if (!signal.aborted) panel.follow(answer);
        scroll.follow();
      }
      if (answer.finish === "length") note = "cut at max tokens";
    } catch (error) {
      note = signal.aborted ? "stopped" : "incomplete";
      if (!signal.aborted) throw error;
    } finally {
      this.#finish(answer, note);
    }
    return answer;
  }

  #finish(answer, note) {
    const { speech, panel, scroll } = this.#parts;
    speech.finish();
    answer.end(note);
    if (!answer.element.isConnected) return; // another chat is shown now
    panel.follow(answer);
    const tokens = count(answer.tally.tokens.length, "token");
    const time = answer.totalMs ? ` in ${seconds(answer.totalMs)}.` : ".";
    speech.say(`Answer ${note || "complete"}, ${tokens}${time}`);
    scroll.follow();
  }

  #show(turn, answer) {
    answer.showRaw(this.#parts.settings.form === "raw");
    turn.add(answer);
  }

  /** Buttons under an answer. Only the last turn shows "Regenerate" (the style sheet hides the others). */
  #offerActions(turn, answer, body = null) {
    if (answer.text) answer.offer(copyButton("Copy", () => answer.text));
    if (answer !== turn.answers[0]) return;
    const regenerate = button("Regenerate", () => {
      if (!this.isRunning && this.#parts.settings.check()) this.#answer(turn);
    });
    regenerate.classList.add("regenerate");
    regenerate.title = "Answer again with the settings as they are now; a fixed seed gives the same answer";
    answer.offer(regenerate);
    if (body && turn.answers.length === 1 && answer.note !== "stopped") this.#offerComparison(turn, answer, body);
  }

  #offerComparison(turn, answer, body) {
    const run = () => this.#whileRunning(turn, run, (signal) => this.#runPlain(turn, body, signal));
    const compare = button("Same seed, spec off", () => {
      if (this.isRunning) return;
      compare.remove();
      run();
    });
    answer.offer(compare);
  }

  /** Show that a request runs. An error is shown in the turn, with a button to try again. */
  async #whileRunning(turn, again, work) {
    const [chat, turns] = [this.#chat, this.#turns];
    const running = new AbortController();
    this.#setRunning(running);
    this.#save(chat, turns);
    try {
      await work(running.signal);
    } catch (error) {
      if (!turn.answers.at(-1)?.tally.tokens.length) turn.removeLast(); // refused before its first token
      if (turn.element.isConnected) this.#offerAgain(turn, error, again);
    } finally {
      if (this.#running === running) this.#setRunning(null);
      this.#save(chat, turns);
      this.#parts.scroll.follow();
    }
  }

  #setRunning(running) {
    this.#running = running;
    document.getElementById("send").hidden = this.isRunning;
    document.getElementById("stop").hidden = !this.isRunning;
    this.#place.setAttribute("aria-busy", String(this.isRunning));
  }

  #offerAgain(turn, error, again = () => this.#answer(turn)) {
    if (error.status === 401) this.#parts.settings.askForKey();
    turn.showError(error, (removeBox) => {
      if (this.isRunning || !this.#parts.settings.check()) return;
      removeBox();
      again();
    });
    this.#parts.scroll.toEnd();
  }
}
