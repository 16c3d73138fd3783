// The core of a device: what happened and the time in, what to do out. It reads no clock and does no I/O.
//
// handle(event, nowUs) takes {kind: "produced", stream, row}, {kind: "received", message}, {kind: "up"}, {kind: "down"} or
// {kind: "tick"} and returns actions: {kind: "send", message} and {kind: "notify", notice}.

import { BUILT_IN } from "./expression.js";
import { CompiledProgram } from "./program.js";
import { rankOf } from "./sampling.js";
import { DEFAULT_LIMITS, ViewHost } from "./view_host.js";

const FIRST_HELLO_PAUSE_US = 5_000_000;
const LAST_HELLO_PAUSE_US = 300_000_000;
const MAX_SEEN = 20_000; // notices that are remembered; a duplicate that comes later gets through

// Return a number above all that a life which began a millisecond or more ago has given, up to a million per second.
export function bootNumber(nowMs) {
  return Math.max(0, Math.floor(nowMs) - 1_600_000_000_000) * 1000;
}

class RecentlySeen {
  #seen = new Set();

  firstTime(thing) {
    if (this.#seen.has(thing)) return false;
    this.#seen.add(thing);
    if (this.#seen.size > MAX_SEEN) this.#seen.delete(this.#seen.values().next().value);
    return true;
  }
}

export class Device {
  constructor(name, { boot = 0, token = null, reportEveryUs = 10_000_000, maxOutbox = 10_000, functions = {}, limits = DEFAULT_LIMITS } = {}) {
    Object.assign(this, { name, boot, token, reportEveryUs, maxOutbox, limits });
    this.functions = { ...BUILT_IN, ...functions };
    this.extraFunctions = Object.keys(functions).sort();
    this.refusal = null;
    this.connected = false;
    this.outbox = [];
    this.dropped = 0;
    this.newestUs = 0;
    this.numbers = new Map();
    this.counts = new Map();
    this.reportedUs = null;
    this.helloAgainUs = null;
    this.helloPauseUs = FIRST_HELLO_PAUSE_US;
    this.notified = new RecentlySeen();
    this.#forget();
  }

  handle(event, nowUs) {
    this.newestUs = Math.max(this.newestUs, nowUs);
    return [...this.#dispatch(event), ...this.#due()];
  }

  // The output columns of a view, for those who are notified.
  columnsOf(viewName) {
    return this.host?.installed.get(viewName)?.compiled.form.outputs.map(([name]) => name) ?? this.#columnsByTemplate(viewName);
  }

  #columnsByTemplate(viewName) {
    const template = viewName.split("(", 1)[0];
    return this.program?.form.views.find((view) => view.name === template)?.outputs.map(([name]) => name) ?? [];
  }

  #dispatch(event) {
    if (event.kind === "produced") return this.#produce(event.stream, event.row);
    if (event.kind === "received") return this.#receive(event.message);
    if (event.kind === "up") return this.#connect();
    if (event.kind === "down") this.connected = false;
    return [];
  }

  // ---- its own feeds

  #produce(stream, row) {
    if (this.program === null) return []; // nobody has asked for anything yet
    return this.program.feedsOf(stream, row).flatMap(([kind, values]) => {
      const feed = `${kind}@${this.name}`;
      const number = this.numbers.get(feed) ?? this.boot;
      this.numbers.set(feed, number + 1);
      this.#count(feed);
      const event = { kind: "event", feed, key: [number], atUs: this.newestUs, values };
      return [...this.#upload(event), ...this.#absorb(event)];
    });
  }

  #count(feed) {
    this.counts.set(feed, (this.counts.get(feed) ?? 0) + 1);
  }

  #upload(event) {
    return rankOf(event.feed, event.key) < (this.uploads.get(event.feed) ?? 0) ? this.#send(event) : [];
  }

  #absorb(event) {
    return this.host.absorb(event).flatMap((match) => {
      if (match.form.notifies) return this.#noticeOf(match);
      this.#count(match.view);
      return [...this.#upload(match.event), ...this.#absorb(match.event)];
    });
  }

  #noticeOf({ view, row, form, event }) {
    const everyUs = form.notify_every_us;
    const key = everyUs === null ? event.key : [Math.floor(event.atUs / everyUs)];
    const notice = { kind: "notice", view, notified: row.notified, key, atUs: event.atUs, values: event.values };
    if (everyUs !== null && !this.periods.firstTime(identity(notice))) return [];
    return row.notified === this.name ? this.#notify(notice) : this.#send(notice);
  }

  #notify(notice) {
    return this.notified.firstTime(identity(notice)) ? [{ kind: "notify", notice }] : [];
  }

  // ---- messages

  #receive(message) {
    if (message.kind === "instructions") return this.#obey(message.items);
    if (message.kind === "notice") return this.#notify(message);
    if (message.kind === "admitted" || message.kind === "refused") return this.#beAnswered(message);
    if (message.kind === "reset") {
      this.#forget();
      return this.#sayHello();
    }
    return this.program === null ? [] : this.#absorb(message);
  }

  #obey(items) {
    const tokens = items.map((item) => this.#follow(item)).filter((token) => token !== 0);
    return tokens.length > 0 ? this.#send({ kind: "confirmed", tokens, sinceUs: this.newestUs }) : [];
  }

  // Follow one instruction; return the token to confirm, 0 for none.
  #follow(item) {
    if (item.kind === "program") return this.#load(item.form);
    if (item.kind === "mark") {
      this.marks.push(item);
      return 0;
    }
    if (this.program === null) return 0;
    if (item.kind === "upload") this.uploads.set(item.feed, item.share);
    else if (item.kind === "install") this.host.install(item.view);
    else this.host.uninstall(item.view);
    return item.token;
  }

  #load(form) {
    const text = JSON.stringify(form);
    if (text !== this.programText) {
      this.programText = text;
      this.program = new CompiledProgram(form, this.functions);
      if (this.host === null) this.host = new ViewHost(this.program, this.limits);
      else this.host.followProgram(this.program);
    }
    return 0;
  }

  #forget() {
    this.program = null;
    this.programText = null;
    this.host = null;
    this.periods = new RecentlySeen();
    this.uploads = new Map();
    this.marks = [];
  }

  // ---- the link

  #connect() {
    this.connected = true;
    this.helloPauseUs = FIRST_HELLO_PAUSE_US;
    return [...this.#sayHello(), ...this.#emptyOutbox()];
  }

  #sayHello() {
    this.helloAgainUs = this.newestUs + this.helloPauseUs;
    return [send({ kind: "hello", boot: this.boot, token: this.token, functions: this.extraFunctions })];
  }

  #beAnswered(answer) {
    if (answer.boot !== this.boot) return []; // to an earlier life
    if (answer.kind === "refused") {
      this.refusal = answer.reason;
      this.helloPauseUs = LAST_HELLO_PAUSE_US;
      this.helloAgainUs = this.newestUs + LAST_HELLO_PAUSE_US;
      return [];
    }
    this.refusal = null;
    this.helloAgainUs = null;
    return this.#emptyOutbox();
  }

  get #canSend() {
    return this.connected && this.refusal === null;
  }

  #emptyOutbox() {
    return this.#canSend ? this.outbox.splice(0).map(send) : [];
  }

  #send(message) {
    if (this.#canSend) return [send(message)];
    if (this.outbox.length >= this.maxOutbox && message.kind === "event") this.#dropOldestEvent();
    this.outbox.push(message);
    return [];
  }

  #dropOldestEvent() {
    const place = this.outbox.findIndex((message) => message.kind === "event");
    if (place < 0) return;
    this.outbox.splice(place, 1);
    this.dropped += 1;
  }

  // ---- time

  #due() {
    const actions = [];
    if (this.connected && this.helloAgainUs !== null && this.newestUs >= this.helloAgainUs) {
      this.helloPauseUs = Math.min(2 * this.helloPauseUs, LAST_HELLO_PAUSE_US);
      actions.push(...this.#sayHello());
    }
    const due = this.marks.filter((mark) => this.newestUs > mark.afterUs);
    if (due.length > 0) {
      this.marks = this.marks.filter((mark) => this.newestUs <= mark.afterUs);
      actions.push(...this.#send({ kind: "confirmed", tokens: due.map((mark) => mark.token), sinceUs: this.newestUs }));
    }
    return [...actions, ...this.#report()];
  }

  #report() {
    if (this.reportedUs === null) {
      this.reportedUs = this.newestUs;
      return [];
    }
    const periodUs = this.newestUs - this.reportedUs;
    if (periodUs < this.reportEveryUs || !this.#canSend) return [];
    const counts = [...this.counts.entries()].sort(([left], [right]) => (left < right ? -1 : 1));
    this.counts.clear();
    this.reportedUs = this.newestUs;
    return this.#send({ kind: "rates", counts, periodUs });
  }
}

const send = (message) => ({ kind: "send", message });
const identity = (notice) => JSON.stringify([notice.view, notice.notified, notice.key]);
