// Requests to the server, and the events of a stream.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Information about the server; throws ApiError. */
export async function readServerInfo(key) {
  const response = await reach("server_info", { headers: headersOf(key) });
  if (!response.ok) throw await refusalOf(response);
  return response.json();
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
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 503);
    yield chunk;
  }
  throw new ApiError("The connection ended before the answer did.", 0);
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
    throw new ApiError("The server cannot be reached.", 0);
  });
}

function lost(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError("The connection was lost.", 0);
}

async function refusalOf(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? `The server answered ${response.status}.`;
  return new ApiError(message, response.status);
}

function headersOf(key) {
  return key ? { authorization: `Bearer ${key}` } : {};
}
