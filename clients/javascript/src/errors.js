// A message, a program or a record that is refused; the text says what was found and what was expected.
export class ProtocolError extends Error {
  constructor(message) {
    super(message);
    this.name = "ProtocolError";
  }
}

export function expect(condition, message) {
  if (!condition) throw new ProtocolError(typeof message === "function" ? message() : message);
}

export const isText = (value) => typeof value === "string";
export const isWhole = (value) => Number.isSafeInteger(value);
export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
export const isScalar = (value) => value === null || isText(value) || isNumber(value) || typeof value === "boolean";
export const isList = Array.isArray;
