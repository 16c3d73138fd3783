// The first 32 bits of the MD5 digest (RFC 1321) of a text in UTF-8, as a whole number. It spreads keys; it protects nothing.

const SHIFTS = [
  [7, 12, 17, 22],
  [5, 9, 14, 20],
  [4, 11, 16, 23],
  [6, 10, 15, 21],
];
const SINES = Array.from({ length: 64 }, (_, i) => Math.floor(Math.abs(Math.sin(i + 1)) * 2 ** 32));

export function md5First32(text) {
  const words = padded(new TextEncoder().encode(text));
  let state = [0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476];
  for (let at = 0; at < words.length; at += 16) {
    const mixed = mix(state, words.subarray(at, at + 16));
    state = state.map((word, i) => (word + mixed[i]) | 0);
  }
  const first = new DataView(new ArrayBuffer(4));
  first.setInt32(0, state[0], true);
  return first.getUint32(0, false);
}

function mix([a, b, c, d], block) {
  for (let i = 0; i < 64; i++) {
    const round = i >> 4;
    const [value, place] = step(round, i, b, c, d);
    const sum = (a + value + SINES[i] + block[place]) | 0;
    const shift = SHIFTS[round][i % 4];
    [a, d, c, b] = [d, c, b, (b + ((sum << shift) | (sum >>> (32 - shift)))) | 0];
  }
  return [a, b, c, d];
}

function step(round, i, b, c, d) {
  if (round === 0) return [(b & c) | (~b & d), i];
  if (round === 1) return [(d & b) | (~d & c), (5 * i + 1) % 16];
  if (round === 2) return [b ^ c ^ d, (3 * i + 5) % 16];
  return [c ^ (b | ~d), (7 * i) % 16];
}

function padded(bytes) {
  const length = (((bytes.length + 8) >> 6) + 1) << 6;
  const view = new DataView(new ArrayBuffer(length));
  bytes.forEach((byte, at) => view.setUint8(at, byte));
  view.setUint8(bytes.length, 0x80);
  view.setUint32(length - 8, (bytes.length << 3) >>> 0, true);
  view.setUint32(length - 4, Math.floor(bytes.length / 2 ** 29), true);
  return Int32Array.from({ length: length / 4 }, (_, i) => view.getInt32(4 * i, true));
}
