// This implementation against the golden vectors that the Python implementation has written. Run: node --test

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { decode, fromWire, toWire } from "../src/codec.js";
import { Device } from "../src/device.js";
import { ProtocolError } from "../src/errors.js";
import { OPERATORS, checkTree, compile } from "../src/expression.js";
import { VERSION } from "../src/program.js";
import { rankOf } from "../src/sampling.js";

const golden = JSON.parse(readFileSync(new URL("../../../tests/golden/feeds_vectors.json", import.meta.url), "utf8"));

// Equal, numbers up to the last digits: libraries of mathematics differ there.
function same(left, right) {
  if (Array.isArray(left) && Array.isArray(right)) {
    return left.length === right.length && left.every((item, at) => same(item, right[at]));
  }
  if (typeof left === "number" && typeof right === "number") {
    return Math.abs(left - right) <= 1e-9 * Math.max(1, Math.abs(left), Math.abs(right));
  }
  return left === right;
}

test("the version is that of the vectors", () => assert.equal(VERSION, golden.version));

test("ranks are the golden ones, bit by bit", () => {
  for (const [feed, key, rank] of golden.ranks) assert.equal(rankOf(feed, key), rank, `${feed} ${key}`);
});

test("expressions have the golden values", () => {
  for (const [tree, slots, result] of golden.expressions) {
    checkTree(tree);
    const value = compile(tree)(slots);
    assert.ok(same(value, result), `${JSON.stringify(tree)} over ${JSON.stringify(slots)}: ${value}, expected ${result}`);
  }
});

test("every operator is in the vectors", () => {
  const text = JSON.stringify(golden.expressions);
  assert.deepEqual(OPERATORS.filter((name) => !text.includes(`["${name}"`)), []);
});

test("malformed messages are refused", () => {
  for (const text of golden.refused) assert.throws(() => decode(text), ProtocolError, text);
});

test("devices do what the golden devices did", () => {
  for (const script of golden.devices) {
    const device = new Device(script.name, { boot: script.boot, reportEveryUs: script.report_every_us });
    for (const [nowUs, event, expected] of script.steps) {
      const actions = device.handle(read(event), nowUs).map((action) => [action.kind, ...toWire(action.message ?? action.notice)]);
      assert.ok(same(actions, expected), `${script.name} at ${nowUs}, ${JSON.stringify(event)}: ${JSON.stringify(actions)}`);
    }
  }
});

function read([kind, ...fields]) {
  if (kind === "produced") return { kind, stream: fields[0], row: fields[1] };
  if (kind === "received") return { kind, message: fromWire(fields[0], fields.slice(1)) };
  return { kind };
}
