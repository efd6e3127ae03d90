// Compares two runs of one request, with and without speculation: tokens and times.

import { count, seconds } from "./words.js";

/** The result as a sentence, and whether all tokens are equal. */
export function compareAnswers(fast, plain) {
  const [left, right] = [fast.tally.tokens, plain.tally.tokens];
  const place = firstDifference(left, right);
  if (place >= 0) return { isSame: false, words: difference(place, left.length, right.length) };
  return { isSame: true, words: `Identical: ${count(left.length, "token")}. ${speed(fast, plain)}` };
}

export function headline(name, answer) {
  return `${name} \u00b7 ${seconds(answer.totalMs)}`;
}

function firstDifference(left, right) {
  const length = Math.max(left.length, right.length);
  for (let place = 0; place < length; place++) if (left[place] !== right[place]) return place;
  return -1;
}

function difference(place, left, right) {
  return `The answers differ from token ${place + 1} on (${left} and ${right} tokens). In low ` +
    "precision two candidates can tie; outrider check prints the margin.";
}

function speed(fast, plain) {
  if (!fast.rate || !plain.rate) return "";
  const ratio = fast.rate / plain.rate;
  const word = ratio >= 1 ? "faster" : "slower";
  const times = ratio >= 1 ? ratio : 1 / ratio;
  return times < 1.05 ? "As fast with speculation as without."
    : `With speculation ${times.toFixed(times < 10 ? 1 : 0)}\u00d7 ${word} after the first token.`;
}

