// Messages as JSON arrays: [number, letter, field, ...]. What arrives is checked before anything is made of it.

import { ProtocolError, expect, isList, isNumber, isScalar, isText, isWhole } from "./errors.js";
import { VERSION, checkProgram } from "./program.js";

export const MAX_MESSAGE_BYTES = 1_000_000;

const isKey = (key) => isList(key) && key.length > 0 && key.every(isWhole);
const isValues = (values) => isList(values) && values.every(isScalar);
const isShare = (share) => isNumber(share) && share >= 0 && share <= 1;

const UP = {
  hello: (m) => ["h", m.boot, m.token ?? null, m.functions ?? [], VERSION],
  event: (m) => ["e", m.feed, m.key, m.atUs, m.values],
  notice: (m) => ["n", m.view, m.notified, m.key, m.atUs, m.values],
  rates: (m) => ["r", m.counts, m.periodUs],
  confirmed: (m) => ["c", m.tokens, m.sinceUs],
};

// Each reads the fields of one letter, or returns undefined where they are not as they should be.
const DOWN = {
  e: (feed, key, atUs, values) =>
    isText(feed) && feed && isKey(key) && isWhole(atUs) && isValues(values) ? { kind: "event", feed, key, atUs, values } : undefined,
  n: (view, notified, key, atUs, values) =>
    isText(view) && isText(notified) && isKey(key) && isWhole(atUs) && isValues(values)
      ? { kind: "notice", view, notified, key, atUs, values }
      : undefined,
  a: (boot) => (isWhole(boot) ? { kind: "admitted", boot } : undefined),
  d: (boot, reason) => (isWhole(boot) && isText(reason) ? { kind: "refused", boot, reason } : undefined),
  z: () => ({ kind: "reset" }),
  b: (...items) => ({ kind: "instructions", items: items.map(readItem) }),
};

const ITEMS = {
  p: (form) => ({ kind: "program", form: checkProgram(form) }),
  u: (feed, share, token) => (isText(feed) && isShare(share) && isWhole(token) ? { kind: "upload", feed, share, token } : undefined),
  i: (template, inputs, rows, token) => (isWhole(token) ? { kind: "install", view: readView(template, inputs, rows), token } : undefined),
  x: (view, token) => (isText(view) && isWhole(token) ? { kind: "uninstall", view, token } : undefined),
  m: (afterUs, token) => (isWhole(afterUs) && isWhole(token) ? { kind: "mark", afterUs, token } : undefined),
};

export function toWire(message) {
  return UP[message.kind](message);
}

export function encode(number, message) {
  return JSON.stringify([number, ...toWire(message)]);
}

// Return [number, message] of a text from the cloud; throw a ProtocolError for anything else.
export function decode(text) {
  expect(text.length <= MAX_MESSAGE_BYTES, `a message of ${text.length} characters is refused`);
  try {
    const [number, letter, ...fields] = JSON.parse(text);
    expect(isWhole(number), "a message has no number");
    return [number, fromWire(letter, fields)];
  } catch (error) {
    if (error instanceof ProtocolError) throw error;
    throw new ProtocolError(`a message is refused: ${error.message}; it begins ${text.slice(0, 60)}`);
  }
}

export function fromWire(letter, fields) {
  return read(DOWN, letter, fields);
}

function readItem([letter, ...fields]) {
  return read(ITEMS, letter, fields);
}

function read(readers, letter, fields) {
  expect(isText(letter) && Object.hasOwn(readers, letter), () => `found a message of kind ${JSON.stringify(letter)}`);
  const reader = readers[letter];
  expect(letter === "b" || fields.length === reader.length, () => `a message '${letter}' has ${fields.length} fields`);
  const message = reader(...fields);
  expect(message !== undefined, `a message '${letter}' has a field of the wrong type`);
  return message;
}

function readView(template, inputs, rows) {
  expect(isText(template) && isList(inputs) && inputs.every(isText) && isList(rows), "a view is not well formed");
  const name = `${template}(${inputs.join(",")})`;
  return { name, template, inputs, rows: rows.map((row) => readRow(inputs, ...row)) };
}

function readRow(inputs, swapped, shares, devices, params, notified) {
  const correct =
    isWhole(swapped) &&
    isList(shares) &&
    shares.every(isNumber) &&
    shares.length === inputs.length &&
    isValues(devices) &&
    devices.length === inputs.length &&
    isValues(params) &&
    isText(notified);
  expect(correct, "a row of a view is not well formed");
  return { inputs: swapped ? [...inputs].reverse() : inputs, shares, devices, params, notified };
}
