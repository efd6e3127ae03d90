// The settings form: the fields of a request, and how answers are shown. Stored on this device.

import { readStored, store } from "./storage.js";

const REQUEST = ["temperature", "seed", "max-tokens", "draft", "steps", "topk", "nodes", "system"];
const REMEMBERED = [...REQUEST, "form"];
const STORE = "outrider.settings";
const KEY_STORE = "outrider.key"; // stored for this tab only

const field = (id) => document.getElementById(id);

export class Settings {
  #form = field("settings");

  constructor() {
    this.#restore();
    this.#form.addEventListener("input", () => this.#keep());
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#showBudget();
  }

  get key() {
    return field("key").value;
  }

  /** How answers are shown: "tokens", "plain" or "raw". */
  get form() {
    return field("form").value;
  }

  /** Ask the user for the API key, if the server has one. */
  askForKey() {
    for (const id of ["key-label", "key"]) field(id).hidden = false;
    field("key").focus();
  }

  /** Whether every field is valid; if not, the browser points at one that is not. */
  check() {
    return this.#form.reportValidity();
  }

  /** The fields of a request. Fields that the user left empty are not sent. */
  request(messages) {
    const system = field("system").value.trim();
    const body = {
      messages: system ? [{ role: "system", content: system }, ...messages] : messages,
      max_tokens: Number(field("max-tokens").value),
      stream: true,
      return_metrics: true,
      trace: true,
    };
    if (field("temperature").value !== "") body.temperature = Number(field("temperature").value);
    if (field("seed").value !== "") body.seed = Number(field("seed").value);
    const speculative = this.#speculative();
    return speculative === null ? body : { ...body, speculative };
  }

  #speculative() {
    if (field("draft").value === "off") return "off";
    if (field("draft").value === "server") return null;
    const sizes = ["steps", "topk", "nodes"].filter((id) => field(id).value !== "");
    return Object.fromEntries(sizes.map((id) => [id, Number(field(id).value)]));
  }

  /** Show the draft budget of the server. */
  describe(info) {
    const steps = info.speculative_num_steps;
    const topk = info.speculative_eagle_topk;
    const nodes = info.speculative_num_draft_tokens;
    field("server-budget").textContent = steps
      ? `The server drafts at most ${steps} steps, topk ${topk}, ${nodes} nodes.`
      : "The server has no drafter: every token is the model's own.";
    field("max-tokens").max = String(info.context_length);
    if (steps && !this.#hasStored) {
      for (const [id, value] of Object.entries({ steps, topk, nodes })) field(id).value = value;
    }
  }

  #hasStored = false;

  #showBudget() {
    field("budget").hidden = field("draft").value !== "custom";
  }

  #keep() {
    this.#showBudget();
    const values = REMEMBERED.map((id) => [id, field(id).value]);
    store(STORE, Object.fromEntries(values));
    store(KEY_STORE, this.key, "session");
  }

  #restore() {
    const stored = readStored(STORE, {});
    for (const id of REMEMBERED) if (stored[id] !== undefined) field(id).value = stored[id];
    this.#hasStored = stored.steps !== undefined;
    field("key").value = readStored(KEY_STORE, "", "session");
  }
}
