// Markdown inside a paragraph: emphasis, code, links. Draws nothing.
//
// The result is a flat list in order: {text: [from, to]} for characters that are shown, {open} and {close} for the tags
// around them. Characters that are in no text are marks and are not shown.

const ESCAPE = /\\[!-/:-@[-`{-~]/y;
const TICKS = /`+/y;
const MARKS = /\*+|_+|~~/y;
const LINK = /!?\[([^[\]]*)\]\(([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)(?:[ \t]+"[^"\n]*")?\)/y;
const ADDRESS = /https?:\/\/[^\s<>"'`|]+/y;
const MOST_OPENERS = 50; // that wait to be closed; bounds the work for texts full of marks
const WORD = /[\p{L}\p{N}]/u;

export function parseInline(text) {
  const parts = []; // in order; marks of emphasis become tags or text at the end
  const readers = [readEscape, readCode, readLink, readAddress, readMarks];
  let plain = 0; // where the characters that no reader took begin
  for (let at = 0; at < text.length; ) {
    const found = "\\`![h*_~".includes(text[at]) ? firstOf(readers, text, at) : null;
    if (!found) {
      at += 1;
      continue;
    }
    if (plain < at) parts.push({ text: [plain, at] });
    parts.push(...found.parts);
    plain = at = found.end;
  }
  if (plain < text.length) parts.push({ text: [plain, text.length] });
  return withEmphasis(parts);
}

function firstOf(readers, text, at) {
  for (const read of readers) {
    const found = read(text, at);
    if (found) return found;
  }
  return null;
}

function match(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function readEscape(text, at) {
  return match(ESCAPE, text, at) && { parts: [{ text: [at + 1, at + 2] }], end: at + 2 };
}

function readCode(text, at) {
  const ticks = match(TICKS, text, at)?.[0];
  if (!ticks) return null;
  const from = at + ticks.length;
  for (let end = from; (end = text.indexOf(ticks, end)) >= 0; ) {
    const [{ length }] = match(TICKS, text, end);
    if (length === ticks.length) {
      const inner = [{ open: "code" }, { text: [from, end] }, { close: "code" }];
      return { parts: inner, end: end + length };
    }
    end += length;
  }
  return { parts: [{ text: [at, from] }], end: from }; // never closed: text
}

/** A link or a picture; pictures are not loaded, so they are links too. */
function readLink(text, at) {
  const found = match(LINK, text, at);
  const href = found && safeAddress(found[2]);
  if (!href || !found[1].trim()) return null;
  const from = at + found[0].indexOf("[") + 1;
  const inner = [{ open: "a", href }, { text: [from, from + found[1].length] }, { close: "a" }];
  return { parts: inner, end: at + found[0].length };
}

function readAddress(text, at) {
  const found = at && WORD.test(text[at - 1]) ? null : match(ADDRESS, text, at);
  if (!found) return null;
  const address = withoutStops(found[0]);
  const href = safeAddress(address);
  if (!href) return null;
  const end = at + address.length;
  return { parts: [{ open: "a", href }, { text: [at, end] }, { close: "a" }], end };
}

/** An address without the full stop or bracket of the sentence around it. */
function withoutStops(address) {
  let end = address.length;
  while (".,;:!?*_~)]}".includes(address[end - 1])) end -= 1;
  return address.slice(0, end);
}

/** The address if a click on it can do no harm here, else null: no scripts, no pages of this server. */
function safeAddress(address) {
  const url = URL.canParse(address) ? new URL(address) : null;
  return url && ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** A run of marks opens before a word and closes after one; `_` inside a word is a letter. */
function readMarks(text, at) {
  const run = match(MARKS, text, at)?.[0];
  if (!run) return null;
  const [before, after] = [text[at - 1] ?? " ", text[at + run.length] ?? " "];
  const isInside = run[0] === "_" && WORD.test(before) && WORD.test(after);
  const canOpen = !isInside && !/\s/.test(after);
  const canClose = !isInside && !/\s/.test(before);
  const part = { run: run[0], from: at, left: run.length, canOpen, canClose, closed: 0, tags: [] };
  return { parts: [part], end: at + run.length };
}

/** Pair the runs of marks. What is left of a run is text. */
function withEmphasis(parts) {
  const openers = []; // runs that may still be closed
  for (const part of parts.filter((each) => each.run)) {
    while (part.canClose && part.left && closeOne(openers, part));
    if (part.canOpen && part.left) openers.push(part);
    if (openers.length > MOST_OPENERS) openers.shift();
  }
  return parts.flatMap((part) => (part.run ? written(part) : [part]));
}

/** Close the nearest opener of the same kind. Openers between the two stay text. */
function closeOne(openers, part) {
  const place = openers.findLastIndex((each) => each.run === part.run);
  if (place < 0) return false;
  const opener = openers[place];
  openers.length = place + 1;
  const used = opener.left >= 2 && part.left >= 2 ? 2 : 1;
  const tag = part.run === "~" ? "del" : used === 2 ? "strong" : "em";
  opener.left -= used;
  part.left -= used;
  part.closed += used;
  opener.tags.unshift({ open: tag });
  part.tags.push({ close: tag });
  if (!opener.left) openers.pop();
  return true;
}

/** Unused marks of an opener stand before its tags; those of a closer, after them. */
function written(part) {
  const from = part.from + part.closed;
  const shown = part.left ? [{ text: [from, from + part.left] }] : [];
  const closes = part.tags.filter((tag) => tag.close);
  return [...closes, ...shown, ...part.tags.filter((tag) => tag.open)];
}
