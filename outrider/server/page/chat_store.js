// Chats as the browser stores them: {id, updated, turns}. Each has a key of its own, so that tabs do not overwrite
// each other's chats.

import { readStored, removeStored, store, storedKeys } from "./storage.js";

const PREFIX = "outrider.chat.";
const OPEN = "outrider.open-chat"; // of this tab
const TITLE_LETTERS = 60;

export function newChat() {
  const id = Date.now().toString(36) + Math.random().toString(36).slice(2, 8);
  return { id, updated: Date.now(), turns: [] };
}

/** Id and title of all chats, the newest first. */
export function listChats() {
  const chats = storedKeys(PREFIX).map((key) => readStored(key, null)).filter(isChat);
  chats.sort((a, b) => b.updated - a.updated);
  return chats.map((chat) => ({ id: chat.id, title: titleOf(chat), updated: chat.updated }));
}

export function readChat(id) {
  const chat = readStored(PREFIX + id, null);
  return isChat(chat) ? chat : null;
}

/** Whether there was room for the chat. */
export function writeChat(chat) {
  return store(PREFIX + chat.id, chat);
}

export function deleteChat(id) {
  removeStored(PREFIX + id);
}

/** The chat that this tab had open when it was reloaded. */
export function lastOpenChat() {
  return readChat(readStored(OPEN, "", "session"));
}

export function rememberOpenChat(id) {
  store(OPEN, id, "session");
}

/** Call `act(id)` when another tab has stored or deleted a chat. */
export function whenOthersChange(act) {
  window.addEventListener("storage", ({ key }) => {
    if (key === null || key.startsWith(PREFIX)) act(key?.slice(PREFIX.length));
  });
}

function isChat(value) {
  return Boolean(value?.id) && Array.isArray(value.turns) && value.turns.length > 0;
}

function titleOf({ turns }) {
  const words = turns[0].question.trim().replace(/\s+/g, " ");
  return words.length > TITLE_LETTERS ? `${words.slice(0, TITLE_LETTERS - 1)}\u2026` : words;
}
