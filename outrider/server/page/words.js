// How tokens, counts and times are written.

/** How many times plain decoding, as a number. */
export function times(value) {
  return `${value.toFixed(value < 10 ? 2 : 1)}\u00d7`;
}

/** Where a token came from, in words. */
export function origin(depth) {
  return depth ? `draft depth ${depth}` : "bonus token";
}

/** The text of a token with visible spaces; a token without text is shown by its number. */
export function visible(text, token) {
  if (!text) return `#${token}`;
  return text.replaceAll(" ", "\u00b7").replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5");
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
}

export function rateOf(value) {
  return value >= 100 ? value.toFixed(0) : value.toFixed(1);
}

export function percent(share) {
  return `${Math.round(100 * share)}%`;
}
