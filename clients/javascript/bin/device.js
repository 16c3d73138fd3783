// One device as a process under Node, like `catchment device --json`: JSON lines in, JSON lines out.
//
//   node bin/device.js --broker mqtt://127.0.0.1:1883 --name 7 < positions.jsonl

import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

import { FeedDevice } from "../src/index.js";

const { values: options } = parseArgs({
  options: { broker: { type: "string" }, name: { type: "string" }, app: { type: "string", default: "catchment" }, "report-every-s": { type: "string", default: "10" } },
});
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
let shown = "";
let number = 0;
const lines = createInterface({ input: process.stdin });
lines.pause();

const device = new FeedDevice({
  broker: options.broker,
  name: options.name,
  app: options.app,
  token: process.env.CATCHMENT_DEVICE_TOKEN ?? null,
  reportEveryUs: Number(options["report-every-s"]) * 1e6,
  onNotice: ({ view, key, atUs, row }) => say({ event: "notice", number: number++, view, key, at_us: atUs, row }),
  onChange: (changed, error) => {
    const state = JSON.stringify({ connected: changed.core.connected, refusal: changed.core.refusal, told: changed.isTold, views: changed.core.host?.installed.size ?? 0, error: error ?? null });
    if (state !== shown) say({ event: "state", ...JSON.parse(state) });
    shown = state;
    if (changed.isTold) lines.resume();
    else lines.pause();
  },
});

lines.on("line", (line) => {
  try {
    const { stream, row } = JSON.parse(line);
    device.record(stream, row);
  } catch (error) {
    say({ event: "refused", reason: error.message });
  }
});
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => (device.stop(), process.exit(0)));
say({ event: "begin", boot: device.core.boot, recorded: 0 });
await device.start();
