// Markdown as elements. All text is set as text; `leaf` makes the nodes of a range of characters.

import { button, element } from "./dom.js";
import { joined } from "./markdown_blocks.js";
import { parseInline } from "./markdown_inline.js";

const TOP_LEVEL = 2; // the headings of an answer stand below those of the page

/** The element of a block; `leaf(text, offsets)` gives nodes for characters and their offsets in the source. */
export function drawBlock(block, leaf) {
  return DRAW[block.kind](block, leaf);
}

const DRAW = {
  paragraph: ({ lines }, leaf) => withInline(element("p"), lines, leaf),
  heading: ({ level, lines }, leaf) =>
    withInline(element(`h${Math.min(level + TOP_LEVEL, 6)}`), lines, leaf),
  rule: () => element("hr"),
  quote: ({ blocks }, leaf) => withBlocks(element("blockquote"), blocks, leaf),
  list: drawList,
  table: drawTable,
  code: drawCode,
};

function withBlocks(parent, blocks, leaf) {
  parent.append(...blocks.map((block) => drawBlock(block, leaf)));
  return parent;
}

function withInline(parent, lines, leaf) {
  const { text, offsets } = joined(lines);
  let inner = parent;
  for (const part of parseInline(text)) {
    if (part.open) inner = inner.appendChild(tagOf(part));
    else if (part.close) inner = inner.parentElement;
    else inner.append(...leaf(text.slice(...part.text), offsets.slice(...part.text)));
  }
  return parent;
}

function tagOf({ open, href }) {
  return element(open, href ? { href, target: "_blank", rel: "noopener noreferrer" } : {});
}

function drawList({ isOrdered, first, items }, leaf) {
  const list = isOrdered ? element("ol", { start: first }) : element("ul");
  list.append(...items.map((blocks) => withBlocks(element("li"), blocks, leaf)));
  return list;
}

function drawTable({ aligns, header, rows }, leaf) {
  const rowOf = (cells, name) => {
    const row = element("tr");
    for (const [index, cell] of cells.entries()) {
      row.append(withInline(element(name, { class: `is-${aligns[index]}` }), [cell], leaf));
    }
    return row;
  };
  const [head, body, table] = [element("thead"), element("tbody"), element("table")];
  head.append(rowOf(header, "th"));
  body.append(...rows.map((cells) => rowOf(cells, "td")));
  table.append(head, body);
  const frame = element("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" });
  frame.append(table); // wide tables scroll in it
  return frame;
}

function drawCode({ language, lines }, leaf) {
  const { text, offsets } = joined(lines);
  const block = element("div", { class: "code" });
  const head = element("p", { class: "code-head" }, language || "code");
  const pre = element("pre", { tabindex: 0, "aria-label": `Code${language ? `, ${language}` : ""}` });
  const code = element("code");
  code.append(...leaf(text, offsets));
  pre.append(code);
  head.append(copyButton("Copy code", () => text));
  block.append(head, pre);
  return block;
}

/** A button that copies, and says whether it did. */
export function copyButton(name, textOf) {
  const made = button(name, async () => {
    const isDone = await navigator.clipboard?.writeText(textOf()).then(() => true, () => false);
    made.textContent = isDone ? "Copied" : "Not allowed here";
    setTimeout(() => (made.textContent = name), 1600);
  });
  made.setAttribute("aria-live", "polite");
  return made;
}
