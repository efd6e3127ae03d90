// The frame around the chat: light or dark, and the side panels, which narrow windows hide.

import { readStored, store } from "./storage.js";

const STORE = "outrider.theme";

export function startTheme() {
  const choice = document.getElementById("theme");
  const apply = () => (document.documentElement.dataset.theme = choice.value);
  choice.value = readStored(STORE, "system");
  choice.addEventListener("change", () => {
    apply();
    store(STORE, choice.value);
  });
  apply();
}

/** On narrow windows a side panel covers the chat until it is closed. Returns what closes it. */
export function startDrawer(id) {
  const drawer = document.getElementById(id);
  const opener = document.getElementById(`open-${id}`);
  const closer = document.getElementById(`close-${id}`);
  const rest = [...document.querySelectorAll(".bar, #chat, .side")].filter((each) => each !== drawer);
  const isOpen = () => drawer.classList.contains("is-open");
  const show = (isShown, hasFocus = true) => {
    drawer.classList.toggle("is-open", isShown);
    opener.setAttribute("aria-expanded", String(isShown));
    for (const each of rest) each.inert = isShown;
    if (hasFocus) (isShown ? closer : opener).focus();
  };
  opener.addEventListener("click", () => show(true));
  closer.addEventListener("click", () => show(false));
  drawer.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isOpen()) show(false);
  });
  // A wide window shows the panel beside the chat, which must not stay inert.
  window.addEventListener("resize", () => {
    if (isOpen() && getComputedStyle(closer).display === "none") show(false, false);
  });
  return (hasFocus) => {
    if (isOpen()) show(false, hasFocus);
  };
}
