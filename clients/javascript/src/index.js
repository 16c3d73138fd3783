// A device of catchment feeds over MQTT: it registers, computes the views that it is told, publishes and is notified.
//
//   const device = new FeedDevice({ broker: "wss://broker.example.org/mqtt", name: "7", onNotice: (notice) => show(notice) });
//   await device.start();
//   device.record("location", { lat: 48.1, lon: 2.3, speed: 1 });

import { decode, encode } from "./codec.js";
import { Device, bootNumber } from "./device.js";
import { ProtocolError, expect } from "./errors.js";
import { MqttClient } from "./mqtt.js";
import { wireTo } from "./wires.js";

const TICK_MS = 1000;

export class FeedDevice {
  constructor({ broker, name, app = "catchment", token = null, username, password, functions = {}, reportEveryUs, onNotice, onChange = () => {} }) {
    expect(/^[^/+#\0]{1,64}$/u.test(name), `a device cannot be called '${name}': 1 to 64 characters without / + #`);
    Object.assign(this, { broker, name, app, username, password, onNotice, onChange });
    const boot = bootNumber(Date.now());
    this.core = new Device(name, { boot, token, functions, ...(reportEveryUs ? { reportEveryUs } : {}) });
    this.nextNumber = boot;
    this.lastNumber = null;
    this.counters = { sent: 0, received: 0, duplicates: 0, missing: 0, refused: 0 };
  }

  async start() {
    this.client = new MqttClient({
      openWire: await wireTo(this.broker),
      clientId: `${this.app}-device-${this.name}`,
      username: this.username ?? (this.password === undefined ? undefined : this.name),
      password: this.password,
      listen: `${this.app}/down/${this.name}`,
      handle: (text) => this.#arrived(text),
      changed: (up) => this.#handle({ kind: up ? "up" : "down" }),
    });
    this.client.start();
    this.ticks = setInterval(() => this.#handle({ kind: "tick" }), TICK_MS);
  }

  stop() {
    clearInterval(this.ticks);
    this.client?.stop();
  }

  // Whether the cloud has told this device what to record; before that, records are not kept by anybody.
  get isTold() {
    return this.core.program !== null;
  }

  // Record a row of a stream: an array of all columns, or an object by name, in which the device's own column may be left out.
  record(stream, row) {
    this.#handle({ kind: "produced", stream, row: Array.isArray(row) ? row : this.#rowOf(stream, row) });
  }

  #rowOf(stream, values) {
    const form = this.core.program?.streams.get(stream);
    if (form === undefined) return []; // `handle` says which streams there are
    const names = form.columns.map(([column]) => column);
    const unknown = Object.keys(values).find((column) => !names.includes(column));
    expect(unknown === undefined, `a record of '${stream}' has '${unknown}'; possible: ${names.join(", ")}`);
    return form.columns.map(([column, type], at) => values[column] ?? (at === form.device ? this.#ownName(type) : null));
  }

  #ownName(type) {
    return type === "STRING" ? this.name : Number(this.name);
  }

  #arrived(text) {
    let number;
    let message;
    try {
      [number, message] = decode(text);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      this.counters.refused += 1;
      this.onChange(this, error.message);
      return;
    }
    if (this.lastNumber !== null && number <= this.lastNumber) {
      this.counters.duplicates += 1;
      return;
    }
    if (this.lastNumber !== null) this.counters.missing += number - this.lastNumber - 1;
    this.lastNumber = number;
    this.counters.received += 1;
    this.#handle({ kind: "received", message });
  }

  #handle(event) {
    for (const action of this.core.handle(event, Date.now() * 1000)) {
      if (action.kind === "send") this.#send(action.message);
      else this.onNotice({ ...action.notice, row: this.#named(action.notice) });
    }
    if (event.kind !== "tick") this.onChange(this);
  }

  #send(message) {
    this.client.publish(`${this.app}/up/${this.name}`, encode(this.nextNumber, message));
    this.nextNumber += 1;
    this.counters.sent += 1;
  }

  #named(notice) {
    return Object.fromEntries(this.core.columnsOf(notice.view).map((column, at) => [column, notice.values[at]]));
  }
}

export { Device, ProtocolError, bootNumber };
