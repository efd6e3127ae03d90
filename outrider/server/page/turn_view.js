// One turn on the screen: the question, which can be edited, and what was answered.

import { button, element } from "./dom.js";
import { explain } from "./explain.js";

export class TurnView {
  #question;
  #place = element("div", { class: "answers" });
  #verdict = null; // {isSame, words} of a comparison
  answers = []; // AnswerView; a second one is the same without speculation
  isAnswered = false; // the answer ended, so later requests include it
  element = element("section", { class: "turn" });

  /** `onEdit(text)` is called with the new question. */
  constructor(question, number, onEdit) {
    this.question = question;
    this.element.setAttribute("aria-label", `Turn ${number}`);
    this.#question = element("div", { class: "asked" });
    this.#showQuestion(onEdit);
    this.element.append(this.#question, this.#place);
  }

  /** What is stored of a turn. */
  get record() {
    const { question, isAnswered } = this;
    return { question, isAnswered, answers: this.answers.map((each) => each.record), verdict: this.#verdict };
  }

  /** Show an answer; a second one stands beside the first. */
  add(answer) {
    this.answers.push(answer);
    this.#place.append(answer.element);
    this.#place.classList.toggle("is-pair", this.answers.length > 1);
  }

  /** Take away the last answer, for example because it failed. */
  removeLast() {
    this.answers.pop()?.element.remove();
    this.#place.classList.toggle("is-pair", this.answers.length > 1);
  }

  /** Back to the question alone. */
  clear() {
    while (this.answers.length) this.removeLast();
    for (const each of this.element.querySelectorAll(".verdict, .error")) each.remove();
    this.#verdict = null;
    this.isAnswered = false;
  }

  showVerdict(verdict) {
    this.#verdict = verdict;
    const kind = verdict.isSame ? "is-same" : "is-different";
    this.element.append(element("p", { class: `verdict ${kind}` }, verdict.words));
  }

  showError(error, again) {
    const { words, detail } = explain(error);
    const box = element("div", { class: "error", role: "alert" });
    const said = element("div");
    said.append(element("p", {}, words));
    if (detail) said.append(element("p", { class: "note" }, detail));
    box.append(said, button("Try again", () => again(() => box.remove())));
    this.element.append(box);
  }

  #showQuestion(onEdit) {
    const edit = button("Edit", () => this.#showEditor(onEdit));
    edit.classList.add("edit");
    edit.setAttribute("aria-label", `Edit the message: ${this.question.slice(0, 60)}`);
    this.#question.replaceChildren(element("p", { class: "question" }, this.question), edit);
  }

  #showEditor(onEdit) {
    const form = element("form", { class: "editor", autocomplete: "off" });
    const box = element("textarea", { "aria-label": "Edit the message", rows: 2 });
    box.value = this.question;
    const close = () => {
      this.#showQuestion(onEdit);
      this.#question.querySelector(".edit").focus();
    };
    const isLast = !this.element.nextElementSibling;
    const note = isLast ? "" : "The messages after this one are removed.";
    const row = element("div", { class: "row" });
    row.append(element("span", { class: "note" }, note), button("Cancel", close),
      element("button", { type: "submit", class: "primary" }, "Send"));
    form.append(box, row);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (box.value.trim()) onEdit(box.value);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      if (event.target !== box || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    this.#question.replaceChildren(form);
    box.focus();
  }
}
