// Compares two runs of one request, with and without speculation: tokens and times.

import { count, seconds, times } from "./words.js";

const NOISE = 1.1; // two runs on a quiet machine differ by less

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
  const factor = ratio >= 1 ? ratio : 1 / ratio;
  if (factor < 1.05) return "As fast with speculation as without.";
  const words = `With speculation ${factor.toFixed(factor < 10 ? 1 : 0)}\u00d7 ${word} after the first token.`;
  return ratio > NOISE * fast.tally.perStep ? `${words} ${disturbed(fast)}` : words;
}

/** A step with drafts is never cheaper than a plain one, so the steps saved bound the speed-up. */
function disturbed(fast) {
  return `The steps saved explain only ${times(fast.tally.perStep)}: other work on the machine disturbed the times.`;
}
