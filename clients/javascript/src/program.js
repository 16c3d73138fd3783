// The program that a device is told: streams, feeds and views, checked before anything is made of it.

import { ProtocolError, expect, isList, isText, isWhole } from "./errors.js";
import { BUILT_IN, UnknownFunctionError, checkTree, compile, placesIn } from "./expression.js";

export const VERSION = 2;

const TYPES = {
  BIGINT: isWhole,
  INT: isWhole,
  DOUBLE: (value) => typeof value === "number" && Number.isFinite(value),
  STRING: isText,
  BOOLEAN: (value) => typeof value === "boolean",
};

export function checkProgram(form) {
  expect(hasFields(form, ["version", "streams", "feeds", "views"]), "a program lacks a part, or has one too many");
  expect(form.version === VERSION, `a program of version ${form.version} is refused; this device reads ${VERSION}`);
  form.streams.forEach(checkStream);
  const streams = new Map(form.streams.map((stream) => [stream.name, stream]));
  form.feeds.forEach((feed) => checkFeed(feed, streams));
  form.views.forEach(checkView);
  const widths = new Map(form.feeds.map((feed) => [feed.kind, feed.columns.length]));
  form.views.forEach((view) => widths.set(view.name, view.outputs.length));
  form.views.forEach((view) => checkReads(view, widths));
  return form;
}

function hasFields(value, names) {
  return value !== null && typeof value === "object" && !isList(value) && sameSet(Object.keys(value), names);
}

const sameSet = (left, right) => left.length === right.length && left.every((item) => right.includes(item));

function checkStream(stream) {
  const correct =
    hasFields(stream, ["name", "columns", "device"]) &&
    isText(stream.name) &&
    stream.columns.every(([name, type]) => isText(name) && Object.hasOwn(TYPES, type)) &&
    isWhole(stream.device) &&
    stream.device >= 0 &&
    stream.device < stream.columns.length;
  expect(correct, "a stream of the program is not well formed");
}

function checkFeed(feed, streams) {
  expect(hasFields(feed, ["kind", "stream", "keep", "columns"]) && isText(feed.kind), "a feed is not well formed");
  const stream = streams.get(feed.stream);
  const exists = (column) => isWhole(column) && column >= 0 && column < stream.columns.length;
  expect(stream !== undefined && feed.columns.every(exists), `feed '${feed.kind}' reads what is not in the program`);
  checkTree(feed.keep);
  checkPlaces(feed.keep, [stream.columns.length], `feed '${feed.kind}'`);
}

function checkView(view) {
  const names = ["name", "inputs", "lifetimes_us", "notify_every_us", "notifies", "match", "outputs"];
  const correct =
    hasFields(view, names) &&
    isText(view.name) &&
    (view.inputs.length === 1 || view.inputs.length === 2) &&
    view.lifetimes_us.length === view.inputs.length &&
    view.lifetimes_us.every((lifetime) => isWhole(lifetime) && lifetime >= 0) &&
    (view.notify_every_us === null || (isWhole(view.notify_every_us) && view.notify_every_us > 0)) &&
    typeof view.notifies === "boolean" &&
    view.outputs.every(([name]) => isText(name));
  expect(correct, "a view of the program is not well formed");
  [view.match, ...view.outputs.map(([, tree]) => tree)].forEach((tree) => checkTree(tree));
}

function checkReads(view, widths) {
  expect(view.inputs.every((input) => widths.has(input)), `view '${view.name}' reads what is not in the program`);
  const slots = [...view.inputs.map((input) => widths.get(input)), Infinity, view.inputs.length, view.inputs.length];
  for (const tree of [view.match, ...view.outputs.map(([, output]) => output)]) {
    checkPlaces(tree, slots, `view '${view.name}'`);
  }
}

function checkPlaces(tree, slots, where) {
  for (const [slot, position] of placesIn(tree)) {
    expect(slot < slots.length && position < slots[slot], `${where} reads position ${position} of slot ${slot}`);
  }
}

// A program made ready to run; a view that calls an unknown function is in `lacking`.
export class CompiledProgram {
  constructor(form, functions = BUILT_IN) {
    this.form = form;
    this.streams = new Map(form.streams.map((stream) => [stream.name, stream]));
    this.feeds = form.feeds.map((feed) => ({ ...feed, keeps: compile(feed.keep, functions) }));
    this.views = new Map();
    this.lacking = new Map();
    for (const view of form.views) this.#add(view, functions);
  }

  #add(view, functions) {
    try {
      const outputs = view.outputs.map(([, tree]) => compile(tree, functions));
      const fewest = view.inputs.map((_, slot) => fewestValues(view, slot));
      this.views.set(view.name, { form: view, match: compile(view.match, functions), outputs, fewest });
    } catch (error) {
      if (!(error instanceof UnknownFunctionError)) throw error;
      this.lacking.set(view.name, error);
    }
  }

  view(name) {
    if (this.lacking.has(name)) throw this.lacking.get(name);
    expect(this.views.has(name), `found the view '${name}', which is not in the program`);
    return this.views.get(name);
  }

  // Return the names and types of the values of a kind of feed; null if there is no such kind.
  columnsOf(kind) {
    const feed = this.form.feeds.find((item) => item.kind === kind);
    return feed === undefined ? null : feed.columns.map((at) => this.streams.get(feed.stream).columns[at]);
  }

  // Return [kind, values] of each feed that a record belongs to.
  feedsOf(streamName, row) {
    const stream = this.streams.get(streamName);
    expect(stream, () => `there is no stream '${streamName}'; possible: ${[...this.streams.keys()].join(", ")}`);
    expect(isList(row) && row.length === stream.columns.length, () => `a record of '${streamName}' has ${stream.columns.length} values`);
    stream.columns.forEach(([name, type], at) => {
      expect(row[at] === null || TYPES[type](row[at]), () => `'${name}' of '${streamName}' must be ${type}, not ${row[at]}`);
    });
    return this.feeds
      .filter((feed) => feed.stream === streamName && feed.keeps([row]) === true)
      .map((feed) => [feed.kind, feed.columns.map((column) => row[column])]);
  }
}

// Return how many values of an input a view reads.
function fewestValues(view, slot) {
  const trees = [view.match, ...view.outputs.map(([, tree]) => tree)];
  const read = trees.flatMap((tree) => [...placesIn(tree)]).filter(([inSlot]) => inSlot === slot);
  return Math.max(0, ...read.map(([, position]) => position + 1));
}

// Return the outputs of events that match, or null; an event of an earlier program may lack a column.
export function evaluate(view, row, met) {
  if (met.some((event, at) => event.values.length < view.fewest[at])) return null;
  const slots = [...met.map((event) => event.values), row.params, row.devices, met.map((event) => event.atUs)];
  if (view.match(slots) !== true) return null;
  return view.outputs.map((output) => finite(output(slots)));
}

const finite = (value) => (typeof value === "number" && !Number.isFinite(value) ? null : value);

export { ProtocolError };
