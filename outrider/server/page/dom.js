// Makes elements. Their text is always set as text, never as markup.

export function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

export function button(text, act) {
  const made = element("button", { type: "button", class: "quiet" }, text);
  made.addEventListener("click", act);
  return made;
}
