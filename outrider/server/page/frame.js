// The frame around the chat: light or dark, and the panel, which narrow windows hide.

const STORE = "outrider.theme";

export function startTheme() {
  const choice = document.getElementById("theme");
  const apply = () => (document.documentElement.dataset.theme = choice.value);
  choice.value = localStorage.getItem(STORE) ?? "system";
  choice.addEventListener("change", () => {
    apply();
    localStorage.setItem(STORE, choice.value);
  });
  apply();
}

/** On narrow windows the panel covers the chat until it is closed. */
export function startDrawer() {
  const panel = document.getElementById("panel");
  const opener = document.getElementById("open-panel");
  const closer = document.getElementById("close-panel");
  const rest = [document.getElementById("chat"), document.querySelector(".bar")];
  const show = (isOpen) => {
    panel.classList.toggle("is-open", isOpen);
    opener.setAttribute("aria-expanded", String(isOpen));
    for (const each of rest) each.inert = isOpen;
    (isOpen ? closer : opener).focus();
  };
  opener.addEventListener("click", () => show(true));
  closer.addEventListener("click", () => show(false));
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && panel.classList.contains("is-open")) show(false);
  });
}
