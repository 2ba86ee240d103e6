// Values in the browser's storage, as JSON. A browser may forbid or lose it; the page then works without.

export function load(storage, key, otherwise) {
  try {
    const text = storage.getItem(key);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

// Whether it was kept.
export function save(storage, key, value) {
  try {
    if (value === null || value === undefined) storage.removeItem(key);
    else storage.setItem(key, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
