// Computes installed views over the events that it absorbs. Each pair of events that meet is evaluated once.
//
// An event is kept for its lifetime and `awayUs` more, at most `maxEvents` of a feed; `forgotten` counts what the bound took.

import { evaluate } from "./program.js";
import { rankOf } from "./sampling.js";

export const DEFAULT_LIMITS = { awayUs: 900_000_000, maxEvents: 50_000 };

export class ViewHost {
  constructor(program, limits = DEFAULT_LIMITS) {
    this.program = program;
    this.limits = limits;
    this.installed = new Map();
    this.buffers = new Map();
    this.forgotten = 0;
  }

  install(view) {
    this.installed.set(view.name, { view, compiled: this.program.view(view.template) });
  }

  uninstall(name) {
    this.installed.delete(name);
    for (const feed of [...this.buffers.keys()]) {
      if (this.#readersOf(feed).length === 0) this.buffers.delete(feed);
    }
  }

  // Take another program; views that it computes in the same way go on, with the events that they have.
  followProgram(program) {
    const older = this.program;
    const kinds = new Map();
    for (const { view, compiled } of this.installed.values()) {
      for (const row of view.rows) row.inputs.forEach((feed, at) => kinds.set(feed, compiled.form.inputs[at]));
    }
    this.program = program;
    for (const { view, compiled } of [...this.installed.values()]) {
      if (same(compiled.form, program.views.get(view.template)?.form)) this.install(view);
      else this.uninstall(view.name);
    }
    for (const feed of [...this.buffers.keys()]) {
      if (!goesOn(kinds.get(feed), older, program)) this.buffers.delete(feed);
    }
  }

  #readersOf(feed) {
    return [...this.installed.values()].filter(({ view }) => view.inputs.includes(feed));
  }

  // Return the matches that an event makes: [{view, row, form, event}].
  absorb(event) {
    const readers = this.#readersOf(event.feed);
    if (readers.length === 0 || !this.#keep(event, readers)) return [];
    return readers.flatMap((reader) => this.#matches(reader, event));
  }

  #keep(event, readers) {
    if (!this.buffers.has(event.feed)) this.buffers.set(event.feed, { events: [], keys: new Set() });
    const buffer = this.buffers.get(event.feed);
    const key = event.key.join(",");
    if (buffer.keys.has(key)) return false;
    buffer.keys.add(key);
    buffer.events.splice(after(buffer.events, event.atUs), 0, event);
    this.#letGo(buffer, readers);
    return true;
  }

  #letGo(buffer, readers) {
    const longestUs = Math.max(...readers.flatMap(({ compiled }) => compiled.form.lifetimes_us));
    const horizonUs = buffer.events[buffer.events.length - 1].atUs - longestUs - this.limits.awayUs;
    const excess = Math.max(0, buffer.events.length - this.limits.maxEvents);
    const gone = buffer.events.splice(0, Math.max(excess, after(buffer.events, horizonUs - 1)));
    gone.forEach((event) => buffer.keys.delete(event.key.join(",")));
    this.forgotten += excess;
  }

  #matches({ view, compiled }, event) {
    const other = view.inputs.find((input) => input !== event.feed);
    const partners = other === undefined ? null : this.buffers.get(other)?.events ?? [];
    return view.rows.flatMap((row, ordinal) => {
      const role = row.inputs.indexOf(event.feed);
      if (rankOf(event.feed, event.key) >= row.shares[role]) return [];
      return meetings(row, role, event, partners, compiled.form.lifetimes_us).flatMap((met) => {
        const values = evaluate(compiled, row, met);
        return values === null ? [] : [match(view, row, ordinal, met, values, compiled.form)];
      });
    });
  }
}

const same = (left, right) => JSON.stringify(left) === JSON.stringify(right);

// Return whether the events of a kind mean the same in another program, where they may have more values.
function goesOn(kind, older, newer) {
  if (older.views.has(kind)) return same(older.views.get(kind).form, newer.views.get(kind)?.form);
  const before = older.columnsOf(kind);
  const after = newer.columnsOf(kind);
  return before !== null && after !== null && same(before, after.slice(0, before.length));
}

// Return the place behind all events up to an instant.
function after(events, atUs) {
  let low = 0;
  let high = events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle].atUs <= atUs) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Return the events that meet, in the order of the row's inputs.
function meetings(row, role, event, partners, lifetimesUs) {
  if (row.inputs.length === 1) return [[event]];
  const fromUs = event.atUs - lifetimesUs[1 - role];
  const untilUs = event.atUs + lifetimesUs[role];
  return partners
    .slice(after(partners, fromUs - 1), after(partners, untilUs))
    .filter((partner) => rankOf(partner.feed, partner.key) < row.shares[1 - role])
    .map((partner) => (role === 0 ? [event, partner] : [partner, event]));
}

function match(view, row, ordinal, met, values, form) {
  const key = [...met.flatMap((event) => event.key), ordinal];
  const atUs = Math.max(...met.map((event) => event.atUs));
  return { view: view.name, row, form, event: { kind: "event", feed: view.name, key, atUs, values } };
}
