// Expressions as trees: a constant, or an array of an operator's name and its arguments. See docs/reference/feeds-protocol.md.
//
// compile(tree) returns a function of slots, an array of arrays. NULL is null: what is strict is null where an argument is.

import { ProtocolError, expect, isList, isScalar, isText, isWhole } from "./errors.js";

export const MAX_DEPTH = 200;
const EARTH_DIAMETER_M = 12_742_017.6;

const STRICT = {
  "=": [(a, b) => a === b, 2],
  "!=": [(a, b) => a !== b, 2],
  "<": [(a, b) => compare(a, b) < 0, 2],
  "<=": [(a, b) => compare(a, b) <= 0, 2],
  ">": [(a, b) => compare(a, b) > 0, 2],
  ">=": [(a, b) => compare(a, b) >= 0, 2],
  "+": [(a, b) => a + b, 2],
  "-": [(a, b) => a - b, 2],
  "*": [(a, b) => a * b, 2],
  "/": [(a, b) => (b === 0 ? null : a / b), 2],
  "%": [(a, b) => (b === 0 ? null : a % b), 2],
  neg: [(a) => -a, 1],
  not: [(a) => !a, 1],
  abs: [(a) => Math.abs(a), 1],
};

const OTHERS = {
  and: [(parts) => (slots) => threeValued(parts, slots, false), 1],
  or: [(parts) => (slots) => threeValued(parts, slots, true), 1],
  in: [contains, 2],
  is: [([value, wanted]) => (slots) => value(slots) === wanted(slots), 2],
  coalesce: [(parts) => (slots) => firstValue(parts, slots), 1],
  least: [(parts) => (slots) => extreme(parts, slots, -1), 1],
  greatest: [(parts) => (slots) => extreme(parts, slots, 1), 1],
  case: [choose, 1],
};

export const OPERATORS = ["at", ...Object.keys(STRICT), ...Object.keys(OTHERS), "call"];

// The functions that every device has.
export const BUILT_IN = { distance };

export class UnknownFunctionError extends ProtocolError {
  constructor(name) {
    super(`the function '${name}' is not known here: functions of a project do not travel`);
  }
}

export function checkTree(tree, depth = 0) {
  expect(depth <= MAX_DEPTH, `an expression is nested more than ${MAX_DEPTH} deep`);
  if (!isList(tree)) {
    expect(isScalar(tree), "an expression holds something that is no constant");
    return;
  }
  const [name, ...parts] = tree;
  expect(isText(name) && OPERATORS.includes(name), () => `found the operator ${JSON.stringify(name)}`);
  expect(takes(name, parts), () => `'${name}' has ${parts.length} arguments, or wrong ones`);
  parts.forEach((part) => checkTree(part, depth + 1));
}

function takes(name, parts) {
  if (name === "at") return parts.length === 2 && parts.every((part) => isWhole(part) && part >= 0);
  if (name === "call") return parts.length >= 1 && isText(parts[0]);
  if (name === "is") return parts.length === 2 && (parts[1] === null || typeof parts[1] === "boolean");
  if (name === "case") return parts.length % 2 === 1;
  return name in STRICT ? parts.length === STRICT[name][1] : parts.length >= OTHERS[name][1];
}

// Yield the [slot, position] of everything that a tree reads.
export function* placesIn(tree) {
  if (!isList(tree)) return;
  if (tree[0] === "at") yield [tree[1], tree[2]];
  for (const part of tree.slice(1)) yield* placesIn(part);
}

export function compile(tree, functions = BUILT_IN) {
  if (!isList(tree)) return () => tree;
  const [name, ...parts] = tree;
  if (name === "at") return (slots) => slots[parts[0]][parts[1]];
  if (name === "call") {
    if (!Object.hasOwn(functions, parts[0])) throw new UnknownFunctionError(parts[0]);
    return strict(functions[parts[0]], parts.slice(1).map((part) => compile(part, functions)));
  }
  const compiled = parts.map((part) => compile(part, functions));
  return name in STRICT ? strict(STRICT[name][0], compiled) : OTHERS[name][0](compiled);
}

function strict(operation, parts) {
  return (slots) => {
    const values = parts.map((part) => part(slots));
    return values.includes(null) ? null : operation(...values);
  };
}

function threeValued(parts, slots, decisive) {
  let unknown = false;
  for (const part of parts) {
    const value = part(slots);
    if (value === decisive) return decisive;
    unknown ||= value === null;
  }
  return unknown ? null : !decisive;
}

function contains([value, ...choices]) {
  return (slots) => {
    const found = value(slots);
    const options = choices.map((choice) => choice(slots));
    if (found === null) return null;
    if (options.includes(found)) return true;
    return options.includes(null) ? null : false;
  };
}

function firstValue(parts, slots) {
  for (const part of parts) {
    const value = part(slots);
    if (value !== null) return value;
  }
  return null;
}

function extreme(parts, slots, sign) {
  const values = parts.map((part) => part(slots)).filter((value) => value !== null);
  return values.reduce((best, value) => (best === null || compare(value, best) * sign > 0 ? value : best), null);
}

function choose(parts) {
  return (slots) => {
    for (let at = 0; at + 1 < parts.length; at += 2) {
      if (parts[at](slots) === true) return parts[at + 1](slots);
    }
    return parts[parts.length - 1](slots);
  };
}

// Numbers and booleans by size, texts by code point: JavaScript itself would compare UTF-16 units.
function compare(a, b) {
  if (!isText(a) || !isText(b)) return a < b ? -1 : a > b ? 1 : a === b ? 0 : NaN;
  const left = Array.from(a);
  const right = Array.from(b);
  for (let at = 0; at < Math.min(left.length, right.length); at++) {
    const difference = left[at].codePointAt(0) - right[at].codePointAt(0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}

// Metres along the great circle between two positions in degrees.
function distance(latA, lonA, latB, lonB) {
  const radians = (degrees) => (degrees * Math.PI) / 180;
  const halfLat = radians(latB - latA) / 2;
  const halfLon = radians(lonB - lonA) / 2;
  const chord = Math.sin(halfLat) ** 2 + Math.cos(radians(latA)) * Math.cos(radians(latB)) * Math.sin(halfLon) ** 2;
  return EARTH_DIAMETER_M * Math.asin(Math.sqrt(Math.min(1, chord)));
}
