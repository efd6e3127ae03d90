// The page: one conversation, and the actions on it.

import { AnswerView } from "./answer.js";
import { readServerInfo, streamChat } from "./api.js";
import { compareAnswers, headline } from "./compare.js";
import { button, element } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Panel } from "./panel.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";
import { startDrawer, startTheme } from "./frame.js";
import { count, seconds } from "./words.js";

const SUGGESTIONS = [
  "Write a short poem about a river. End it with its first two lines.",
  "Count from one to thirty in words.",
  "Say this three times, each in capitals: the early bird catches the worm.",
];
const NEAR_PX = 80; // this close to the end, the page scrolls with new text

const find = (id) => document.getElementById(id);
const settings = new Settings();
const inspector = new Inspector();
const panel = new Panel();
const speech = new Speech();
const turns = []; // {question, answer}: answer is null until there is one
let running = null; // an AbortController while an answer is written

async function ask(question) {
  if (running || !question.trim() || !settings.check()) return;
  const body = settings.request(messagesUpTo(question));
  const turn = { question, answer: null, element: element("section", { class: "turn" }) };
  turn.element.setAttribute("aria-label", `Turn ${turns.length + 1}`);
  turn.element.append(element("p", { class: "question" }, question));
  turns.push(turn);
  find("welcome").hidden = true;
  find("turns").append(turn.element);
  toEnd();
  await answerTurn(turn, body, find("compare").checked);
}

function messagesUpTo(question) {
  const said = turns.filter((turn) => turn.answer).flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.answer },
  ]);
  return [...said, { role: "user", content: question }];
}

/** Run the request of a turn, and again without speculation if the user wants to compare. */
async function answerTurn(turn, body, withComparison) {
  const place = element("div", { class: "answers" });
  turn.element.append(place);
  const again = () => {
    place.remove();
    answerTurn(turn, body, withComparison);
  };
  await whileRunning(turn, again, async (signal) => {
    const answer = await run(body, "Answer", place, signal);
    turn.answer = answer.text;
    if (signal.aborted) return;
    if (withComparison) await runPlain(answer, body, place, signal);
    else offerComparison(turn, answer, body, place);
    toEnd();
  });
}

function offerComparison(turn, answer, body, place) {
  const run = () => whileRunning(turn, run, (signal) => runPlain(answer, body, place, signal));
  const compare = button("Same seed, spec off", () => {
    if (running) return;
    compare.remove();
    run();
  });
  answer.offer(compare);
}

/** Run the same request and seed without speculation, and compare the two answers. */
async function runPlain(answer, body, place, signal) {
  const plainBody = { ...body, seed: answer.seed, speculative: "off" };
  const half = element("div");
  place.append(half);
  place.classList.add("is-pair");
  const plain = await run(plainBody, "The same without speculation", half, signal).catch((error) => {
    half.remove();
    place.classList.remove("is-pair");
    throw error;
  });
  if (signal.aborted) return;
  answer.head(headline("Speculation on", answer));
  plain.head(headline("Speculation off", plain));
  const { isSame, words } = compareAnswers(answer, plain);
  const verdict = element("p", { class: `verdict ${isSame ? "is-same" : "is-different"}` }, words);
  place.after(verdict);
  panel.follow(answer);
  speech.say(words);
  toEnd();
}

/** Stream one answer into view. Stopping it is not an error. */
async function run(body, title, place, signal) {
  const answer = new AnswerView(title, inspector);
  place.append(answer.element);
  let note = "";
  try {
    for await (const chunk of streamChat(body, settings.key, signal)) {
      const before = answer.text.length;
      const isFollowing = isNearEnd();
      answer.take(chunk);
      speech.hear(answer.text.slice(before));
      panel.follow(answer);
      if (isFollowing) toEnd();
    }
    if (answer.finish === "length") note = "cut at max tokens";
  } catch (error) {
    note = signal.aborted ? "stopped" : "incomplete";
    if (!signal.aborted) throw error;
  } finally {
    speech.finish();
    finishAnswer(answer, note);
  }
  return answer;
}

function finishAnswer(answer, note) {
  const isFollowing = isNearEnd();
  answer.end(note);
  if (!answer.element.isConnected) return; // the user has begun a new chat
  panel.follow(answer);
  const tokens = count(answer.tally.tokens.length, "token");
  speech.say(`Answer ${note || "complete"}, ${tokens}` +
    (answer.totalMs ? ` in ${seconds(answer.totalMs)}.` : "."));
  if (answer.text) answer.offer(copyButton(answer));
  if (isFollowing) toEnd();
}

function copyButton(answer) {
  const made = button("Copy", async () => {
    const isDone = await navigator.clipboard.writeText(answer.text).then(() => true, () => false);
    made.textContent = isDone ? "Copied" : "Not allowed here";
    speech.say(made.textContent);
    setTimeout(() => (made.textContent = "Copy"), 1600);
  });
  return made;
}

/** Show that a request runs; an error is shown in the turn, with a button to try again. */
async function whileRunning(turn, again, work) {
  running = new AbortController();
  showRunning(true);
  try {
    await work(running.signal);
  } catch (error) {
    showError(turn, error, again);
  } finally {
    running = null;
    showRunning(false);
  }
}

function showRunning(isRunning) {
  find("send").hidden = isRunning;
  find("stop").hidden = !isRunning;
  find("turns").setAttribute("aria-busy", String(isRunning));
}

function showError(turn, error, again) {
  if (error.status === 401) settings.askForKey();
  const box = element("div", { class: "error", role: "alert" });
  box.append(element("p", {}, error.message));
  box.append(button("Try again", () => {
    if (running) return;
    box.remove();
    again();
  }));
  turn.element.append(box);
  toEnd();
}

function newChat() {
  running?.abort();
  turns.length = 0;
  find("turns").replaceChildren();
  find("welcome").hidden = false;
  inspector.hide();
  panel.clear();
  find("prompt").focus();
}

function isNearEnd() {
  const scroll = find("scroll");
  return scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX;
}

function toEnd() {
  find("scroll").scrollTop = find("scroll").scrollHeight;
}

function startComposer() {
  const prompt = find("prompt");
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = prompt.value;
    if (running || !question.trim()) return;
    prompt.value = "";
    ask(question);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    find("composer").requestSubmit();
  });
  find("stop").addEventListener("click", () => {
    running?.abort();
    prompt.focus();
  });
  find("new-chat").addEventListener("click", newChat);
  for (const text of SUGGESTIONS) {
    const item = element("li");
    item.append(button(text, () => ask(text)));
    find("suggestions").append(item);
  }
}

async function greet() {
  try {
    const info = await readServerInfo(settings.key);
    find("model").textContent = info.served_model_name;
    settings.describe(info);
  } catch (error) {
    if (error.status === 401) settings.askForKey();
    find("model").textContent = error.status === 401 ? "an API key is needed" : error.message;
  }
}

startTheme();
startDrawer();
startComposer();
find("scroll").addEventListener("scroll", () => inspector.hide(), { passive: true });
find("key").addEventListener("change", greet);
greet();
