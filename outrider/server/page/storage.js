// What the browser stores for this page. It may refuse, be full, or hold something else: then nothing is stored.

/** The value under a key, or `absent`. */
export function readStored(key, absent, kind = "local") {
  try {
    return JSON.parse(storageOf(kind).getItem(key)) ?? absent;
  } catch {
    return absent;
  }
}

/** Whether the value could be stored. */
export function store(key, value, kind = "local") {
  try {
    storageOf(kind).setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function removeStored(key, kind = "local") {
  try {
    storageOf(kind).removeItem(key);
  } catch {
    // nothing was stored
  }
}

export function storedKeys(prefix) {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(prefix));
  } catch {
    return [];
  }
}

function storageOf(kind) {
  return kind === "local" ? localStorage : sessionStorage;
}
