// Requests to the server, and the events of a stream.

export class ApiError extends Error {
  constructor(message, status, code = "") {
    super(message);
    this.status = status; // of HTTP; 0 if there was no answer
    this.code = code;
  }
}

/** Information about the server; throws ApiError. */
export async function readServerInfo(key) {
  const response = await reach("server_info", { headers: headersOf(key) });
  if (!response.ok) throw await refusalOf(response);
  return parsed(await response.text());
}

/** The chunks of an answer in order; throws ApiError if the answer fails. */
export async function* streamChat(body, key, signal) {
  const response = await reach("v1/chat/completions", {
    method: "POST",
    headers: { ...headersOf(key), "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusalOf(response);
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const chunk = parsed(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 503, chunk.error.code);
    yield chunk;
  }
  throw new ApiError("The connection ended before the answer did. Try again.", 0);
}

async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const lines = event.split("\n").filter((line) => line.startsWith("data: "));
      if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
    }
  }
}

async function reach(path, options) {
  return fetch(path, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it running? Then try again.", 0);
  });
}

function lost(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError("The connection was lost. Try again.", 0);
}

async function refusalOf(response) {
  const body = await response.json().catch(() => ({}));
  return new ApiError(body.error?.message ?? "", response.status, body.error?.code ?? "");
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    throw new ApiError("The answer arrived damaged. Try again.", 0);
  }
}

function headersOf(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}
