// Nested sampling: every event has a rank in [0, 1), and a share keeps the events with a rank below it.
// Law: every implementation gives the same rank for the same feed and key.

import { md5First32 } from "./md5.js";

const SCALE = 2 ** 32;
const MAX_OFFSETS = 10_000; // feeds whose offsets are remembered
const offsets = new Map();

export function rankOf(feed, key) {
  if (key.length > 1) return md5First32(key.join(",")) / SCALE;
  return ((reverseBits(key[0] % SCALE) + offsetOf(feed)) % SCALE) / SCALE;
}

function offsetOf(feed) {
  let offset = offsets.get(feed);
  if (offset === undefined) {
    if (offsets.size >= MAX_OFFSETS) offsets.clear();
    offset = md5First32(feed);
    offsets.set(feed, offset);
  }
  return offset;
}

function reverseBits(number) {
  let left = number >>> 0;
  let reversed = 0;
  for (let bit = 0; bit < 32; bit++) {
    reversed = (reversed << 1) | (left & 1);
    left >>>= 1;
  }
  return reversed >>> 0;
}
