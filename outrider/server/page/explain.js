// Errors in words for people: what happened, and what to do.

const BY_CODE = {
  engine_restarting: "The engine is being restarted. Try again in a few seconds.",
  engine_unresponsive: "The engine does not answer. It will be restarted; try again in a minute.",
  shutting_down: "The server is shutting down. Start it again, then try again.",
  queue_full: "The server is busy: too many requests wait. Try again in a moment.",
};
// Of a request that failed while it ran; the server gives the reason.
const BY_FAILURE = {
  engine_error: "The engine could not finish this answer. Try again.",
  engine_fault: "The engine fails with this request. Its log says more; trying again will not help.",
  not_finite: "The model cannot continue this text. Trying again will not help.",
  request_failed: "The answer cannot be what the request demands.",
};
const BY_STATUS = {
  401: "The server wants an API key. Enter it under Settings, then try again.",
  403: "The server does not allow this.",
  404: "The address of this page is not that of an Outrider server.",
  413: "The message is too large for this server. Shorten it, or start a new chat.",
  429: BY_CODE.queue_full,
  500: "The server made a mistake. Its log says more; trying again may help.",
  502: "The server behind the proxy does not answer. Is it running?",
  503: BY_FAILURE.engine_error,
  504: "The server behind the proxy takes too long. Try again.",
};
const TOO_LONG = "The chat and its answer are too long for this model. Shorten the message, lower max tokens, " +
  "or start a new chat.";

/** The words for an error, and a detail that the server gave, or "". */
export function explain(error) {
  const { status = -1, code = "", message = "" } = error;
  if (status === 0) return { words: message, detail: "" };
  if (status < 0) return { words: "The page made a mistake. Reload it, then try again.", detail: message };
  const detail = sentence(message);
  if (/context/.test(message) && status === 400) {
    return { words: TOO_LONG, detail };
  }
  if (BY_FAILURE[code]) return { words: BY_FAILURE[code], detail };
  const words = BY_CODE[code] ?? BY_STATUS[status];
  if (words) return { words, detail: "" };
  if (status === 400 && detail) return { words: "The server cannot take this request.", detail };
  return { words: `The server cannot answer (HTTP status ${status}). Try again.`, detail: "" };
}

/** A message of the server as a sentence; one that is data and not words is left out. */
function sentence(message) {
  const words = message.trim();
  if (!words || /^[[{<]/.test(words)) return "";
  return words[0].toUpperCase() + words.slice(1) + (/[.!?]$/.test(words) ? "" : ".");
}
