// The page: makes its parts and connects the controls.

import { readServerInfo } from "./api.js";
import { ChatList } from "./chat_list.js";
import { lastOpenChat, readChat, whenOthersChange } from "./chat_store.js";
import { Conversation } from "./conversation.js";
import { button, element } from "./dom.js";
import { explain } from "./explain.js";
import { startDrawer, startTheme } from "./frame.js";
import { Inspector } from "./inspector.js";
import { Panel } from "./panel.js";
import { Scroll } from "./scroll.js";
import { Settings } from "./settings.js";
import { Speech } from "./speech.js";

const SUGGESTIONS = [
  "Write a short poem about a river. End it with its first two lines.",
  "Write a Python function that adds up a list, then the same in JavaScript.",
  "Say this three times, each in capitals: the early bird catches the worm.",
];

const find = (id) => document.getElementById(id);
const settings = new Settings();
const inspector = new Inspector();
const scroll = new Scroll(() => inspector.hide());
const parts = { settings, inspector, scroll, panel: new Panel(), speech: new Speech() };
const conversation = new Conversation(parts, showChange);
const list = new ChatList({ open: openChat, deleted: forgetChat });

function showChange() {
  find("welcome").hidden = find("turns").children.length > 0;
  list.draw(conversation.id);
}

function openChat(id) {
  closeChats(false);
  conversation.open(readChat(id) ?? undefined);
  find("prompt").focus();
}

function forgetChat(id) {
  if (id === conversation.id) conversation.forget();
  else list.draw(conversation.id);
}

/** Another tab has changed a chat; if this tab shows it, it shows the new one. */
function showOthersChange(id) {
  const chat = id === conversation.id && !conversation.isRunning ? readChat(id) : null;
  if (chat) conversation.open(chat);
  else list.draw(conversation.id);
}

function startComposer() {
  const prompt = find("prompt");
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const question = prompt.value;
    if (conversation.isRunning || !question.trim() || !settings.check()) return;
    prompt.value = "";
    conversation.ask(question);
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Escape") conversation.stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    find("composer").requestSubmit();
  });
  find("stop").addEventListener("click", () => {
    conversation.stop();
    prompt.focus();
  });
  find("new-chat").addEventListener("click", () => {
    conversation.open();
    prompt.focus();
  });
  for (const text of SUGGESTIONS) {
    const item = element("li");
    item.append(button(text, () => conversation.ask(text)));
    find("suggestions").append(item);
  }
}

function startForm() {
  const apply = () => {
    document.documentElement.dataset.form = settings.form;
    conversation.showRaw(settings.form === "raw");
  };
  find("form").addEventListener("change", apply);
  apply();
}

async function greet() {
  try {
    const info = await readServerInfo(settings.key);
    find("model").textContent = info.served_model_name;
    settings.describe(info);
  } catch (error) {
    if (error.status === 401) settings.askForKey();
    find("model").textContent = error.status === 401 ? "an API key is needed" : explain(error).words;
  }
}

startTheme();
startDrawer("panel");
const closeChats = startDrawer("chats");
startComposer();
startForm();
conversation.open(lastOpenChat() ?? undefined);
window.addEventListener("pagehide", () => conversation.saveRunning());
whenOthersChange(showOthersChange);
find("key").addEventListener("change", greet);
greet();
