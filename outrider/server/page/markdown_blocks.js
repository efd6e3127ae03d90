// The block structure of Markdown: paragraphs, headings, lists, quotes, tables, code. Draws nothing.
//
// Every character of a leaf keeps its offset in the source, so that tokens can be drawn in the formatted text.
// A top-level block depends on its own lines only, so blocks that are complete are not drawn again.

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;
const DEEPEST = 12; // nested lists and quotes; deeper ones stay text

/** The lines of a text, each with the offset of its first character. */
export function linesOf(text) {
  let start = 0;
  return text.split("\n").map((line) => {
    const made = { text: line, start };
    start += line.length + 1;
    return made;
  });
}

/** Lines as one string, and the offset in the source of each of its characters. */
export function joined(lines) {
  const offsets = [];
  for (const [index, line] of lines.entries()) {
    if (index) offsets.push(lines[index - 1].start + lines[index - 1].text.length);
    for (let place = 0; place < line.text.length; place++) offsets.push(line.start + place);
  }
  return { text: lines.map((line) => line.text).join("\n"), offsets };
}

export function parseBlocks(lines, depth = 0) {
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { end, ...block } = blockAt(lines, at, depth);
    blocks.push({ ...block, start: lines[at].start, end: endOf(lines[end - 1]) });
    at = end;
  }
  return blocks;
}

function blockAt(lines, at, depth) {
  const { text } = lines[at];
  if (FENCE.test(text)) return codeAt(lines, at);
  if (HEADING.test(text)) return headingAt(lines, at);
  if (RULE.test(text)) return { kind: "rule", end: at + 1 };
  if (depth < DEEPEST && QUOTE.test(text)) return quoteAt(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(text)) return listAt(lines, at, depth);
  if (isTable(lines, at)) return tableAt(lines, at);
  return paragraphAt(lines, at, depth);
}

/** Code up to the closing fence. While an answer is written there may be none yet. */
function codeAt(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at].text);
  const isClosing = ({ text }) => text.trim().length >= fence.length &&
    [...text.trim()].every((letter) => letter === fence[0]);
  let end = at + 1;
  while (end < lines.length && !isClosing(lines[end])) end += 1;
  const language = info.trim().split(/\s/)[0];
  return { kind: "code", language, lines: lines.slice(at + 1, end), end: Math.min(end + 1, lines.length) };
}

function headingAt(lines, at) {
  const [mark, { length }] = HEADING.exec(lines[at].text);
  const rest = without(lines[at], mark.length);
  return { kind: "heading", level: length, lines: [{ ...rest, text: withoutHashes(rest.text) }], end: at + 1 };
}

/** A heading may end with hashes that are not part of it. */
function withoutHashes(text) {
  const words = text.trimEnd().split(" ");
  const isClosed = words.length > 1 && [...words.at(-1)].every((letter) => letter === "#");
  return isClosed ? words.slice(0, -1).join(" ") : text.trimEnd();
}

function quoteAt(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end].text)) end += 1;
  const inner = lines.slice(at, end).map((line) => without(line, QUOTE.exec(line.text)[0].length));
  return { kind: "quote", blocks: parseBlocks(inner, depth + 1), end };
}

/** Items of one kind. A line that is indented more than the mark of an item belongs to the item. */
function listAt(lines, at, depth) {
  const first = ITEM.exec(lines[at].text);
  const isOrdered = /\d/.test(first[2]);
  const items = [];
  let end = at;
  while (end < lines.length && isItem(lines[end], first)) {
    const [mark, { length: indent }] = ITEM.exec(lines[end].text);
    const from = end;
    for (end += 1; end < lines.length; ) {
      const next = nextFilled(lines, end);
      if (next === lines.length || indentOf(lines[next]) <= indent) break;
      end = next + 1;
    }
    const inner = lines.slice(from, end).map((line, index) =>
      without(line, index ? Math.min(indentOf(line), mark.length) : mark.length));
    items.push(parseBlocks(inner, depth + 1));
    const next = nextFilled(lines, end);
    if (next < lines.length && isItem(lines[next], first)) end = next;
  }
  return { kind: "list", isOrdered, first: isOrdered ? parseInt(first[2], 10) : 1, items, end };
}

/** Whether a line begins an item of the same list as `first`. */
function isItem({ text }, first) {
  const match = RULE.test(text) ? null : ITEM.exec(text);
  return match !== null && match[1].length <= first[1].length + 1 && match[2].at(-1) === first[2].at(-1);
}

function isTable(lines, at) {
  if (at + 1 >= lines.length || !lines[at].text.includes("|")) return false;
  const marks = cellsOf(lines[at + 1]);
  return lines[at + 1].text.includes("|") && marks.length === cellsOf(lines[at]).length &&
    marks.every(({ text }) => /^:?-+:?$/.test(text));
}

function tableAt(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].text.includes("|")) end += 1;
  const aligns = cellsOf(lines[at + 1]).map(({ text }) =>
    text.endsWith(":") ? (text.startsWith(":") ? "center" : "right") : "left");
  const rows = lines.slice(at + 2, end).map((line) => cellsOf(line).slice(0, aligns.length));
  return { kind: "table", aligns, header: cellsOf(lines[at]), rows, end };
}

/** The cells of a table row as lines of their own. A backslash before a bar keeps the bar. */
function cellsOf({ text, start }) {
  const cells = [];
  let from = 0;
  for (let place = 0; place <= text.length; place++) {
    if (place < text.length && (text[place] !== "|" || text[place - 1] === "\\")) continue;
    const cell = text.slice(from, place);
    const lead = cell.length - cell.trimStart().length;
    cells.push({ text: cell.trim(), start: start + from + lead });
    from = place + 1;
  }
  if (!cells[0].text) cells.shift(); // before the first bar
  if (cells.length && !cells.at(-1).text) cells.pop();
  return cells;
}

function paragraphAt(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end += 1;
  return { kind: "paragraph", lines: lines.slice(at, end), end };
}

/** Whether a line ends the paragraph before it. A number other than 1 does not: "in\n1986. Then". */
function interrupts(lines, at, depth) {
  const { text } = lines[at];
  const item = depth < DEEPEST ? ITEM.exec(text) : null;
  return FENCE.test(text) || HEADING.test(text) || RULE.test(text) || isTable(lines, at) ||
    (depth < DEEPEST && QUOTE.test(text)) || (item !== null && item[3] !== "" && !/^(?!1\D)\d/.test(item[2]));
}

function nextFilled(lines, at) {
  while (at < lines.length && isBlank(lines[at])) at += 1;
  return at;
}

function isBlank({ text }) {
  return !text.trim();
}

function indentOf({ text }) {
  return text.length - text.trimStart().length;
}

function without({ text, start }, length) {
  return { text: text.slice(length), start: start + Math.min(length, text.length) };
}

function endOf({ text, start }) {
  return start + text.length;
}
