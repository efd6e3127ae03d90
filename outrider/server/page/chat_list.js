// The list of stored chats: open one, or delete it.

import { deleteChat, listChats } from "./chat_store.js";
import { button, element } from "./dom.js";

export class ChatList {
  #list = document.getElementById("chat-list");
  #empty = document.getElementById("no-chats");
  #actions;

  /** `actions`: {open(id), deleted(id)}. */
  constructor(actions) {
    this.#actions = actions;
  }

  draw(openId) {
    const chats = listChats();
    this.#empty.hidden = chats.length > 0;
    this.#list.replaceChildren(...chats.map((chat) => this.#item(chat, openId)));
  }

  #item({ id, title, updated }, openId) {
    const open = button(title, () => this.#actions.open(id));
    open.title = new Date(updated).toLocaleString();
    if (id === openId) open.setAttribute("aria-current", "true");
    const remove = button("\u00d7", () => this.#delete(id, title));
    remove.setAttribute("aria-label", `Delete the chat: ${title}`);
    const item = element("li");
    item.append(open, remove);
    return item;
  }

  #delete(id, title) {
    if (!window.confirm(`Delete this chat?\n\n${title}`)) return;
    deleteChat(id);
    this.#actions.deleted(id);
    document.getElementById("new-chat").focus(); // the button that had the focus is gone
  }
}
