// A small MQTT 3.1.1 client: one persistent session, one subscription, QoS 1 both ways.
//
// It works over a wire: an object with send(bytes) and close() that calls opened(), received(bytes) and closed(). What was
// published and not acknowledged is sent again after a reconnect, before anything new, so the order of first sendings holds.
// A message that arrives is acknowledged after it was handled.

const CONNECT = 0x10;
const CONNACK = 2;
const PUBLISH = 3;
const PUBACK = 4;
const SUBSCRIBE = 0x82;
const SUBACK = 9;
const PINGREQ = 0xc0;
const DISCONNECT = 0xe0;
const QOS_1 = 0x02;
const DUPLICATE = 0x08;
const MAX_PACKET_BYTES = 2_000_000;
const REASONS = ["", "wrong protocol version", "client name refused", "broker unavailable", "wrong user name or password", "not allowed"];

export class MqttClient {
  constructor({ openWire, clientId, username, password, keepaliveS = 30, retryMs = 1000, maxUnacked = 10_000, listen, handle, changed }) {
    Object.assign(this, { openWire, clientId, username, password, keepaliveS, retryMs, maxUnacked, listen, handle, changed });
    this.unacked = new Map(); // packet id -> [topic, text], in order of first sending
    this.nextId = 1;
    this.wire = null;
    this.connected = false;
    this.wanted = false;
    this.lastError = "";
  }

  start() {
    this.wanted = true;
    this.#open();
  }

  stop() {
    this.wanted = false;
    clearTimeout(this.retry);
    if (this.connected) this.wire.send(packet(DISCONNECT, []));
    this.wire?.close();
    this.#lost();
  }

  publish(topic, text) {
    if (this.unacked.size >= this.maxUnacked) throw new Error(`${this.maxUnacked} messages wait for the broker`);
    const id = this.#newId();
    this.unacked.set(id, [topic, text]);
    if (this.connected) this.wire.send(publishPacket(topic, text, id, false));
  }

  #newId() {
    do {
      this.nextId = (this.nextId % 65_535) + 1;
    } while (this.unacked.has(this.nextId));
    return this.nextId;
  }

  #open() {
    this.bytes = new Uint8Array(0);
    const wire = this.openWire({
      opened: () => wire.send(this.#connectPacket()),
      received: (bytes) => wire === this.wire && this.#take(bytes),
      closed: (reason) => wire === this.wire && this.#closed(reason),
    });
    this.wire = wire;
  }

  #closed(reason) {
    this.lastError = reason || this.lastError;
    this.#lost();
    if (this.wanted) this.retry = setTimeout(() => this.#open(), this.retryMs);
  }

  #lost() {
    clearInterval(this.pings);
    this.wire = null;
    if (!this.connected) return;
    this.connected = false;
    this.changed(false);
  }

  #connectPacket() {
    const login = this.username === undefined ? 0 : 0x80;
    const secret = this.password === undefined ? 0 : 0x40;
    return packet(CONNECT, [
      ...text("MQTT"),
      4,
      login | secret,
      ...short(this.keepaliveS),
      ...text(this.clientId),
      ...(login ? text(this.username) : []),
      ...(secret ? text(this.password) : []),
    ]);
  }

  #take(bytes) {
    this.bytes = joined(this.bytes, bytes);
    for (let found = firstPacket(this.bytes); found !== null; found = firstPacket(this.bytes)) {
      if (found.size > MAX_PACKET_BYTES) return this.wire.close();
      this.bytes = this.bytes.subarray(found.size);
      this.#obey(found.head, found.body);
      if (this.wire === null) return;
    }
  }

  #obey(head, body) {
    const kind = head >> 4;
    this.heard = true;
    if (kind === CONNACK) this.#connackReceived(body[1]);
    else if (kind === SUBACK) this.#subscribed(body[2]);
    else if (kind === PUBACK) this.unacked.delete((body[0] << 8) | body[1]);
    else if (kind === PUBLISH) this.#messageReceived(head, body);
  }

  #connackReceived(code) {
    if (code !== 0) {
      this.lastError = `the broker refused the connection: ${REASONS[code] ?? code}`;
      this.wire.close();
      return;
    }
    this.wire.send(packet(SUBSCRIBE, [...short(1), ...text(this.listen), 1]));
  }

  #subscribed(code) {
    if (code > 2) {
      this.lastError = `the broker does not let this client read ${this.listen}`;
      this.wire.close();
      return;
    }
    for (const [id, [topic, message]] of this.unacked) this.wire.send(publishPacket(topic, message, id, true));
    this.connected = true;
    this.heard = true;
    this.pings = setInterval(() => this.#ping(), (this.keepaliveS * 1000) / 2);
    this.pings.unref?.();
    this.changed(true);
  }

  #ping() {
    if (!this.heard) return this.wire.close(); // nothing since the last ping: the link is dead
    this.heard = false;
    this.wire.send(packet(PINGREQ, []));
  }

  #messageReceived(head, body) {
    const topicEnd = 2 + ((body[0] << 8) | body[1]);
    const hasId = (head & 0x06) !== 0;
    this.handle(new TextDecoder().decode(body.subarray(topicEnd + (hasId ? 2 : 0))));
    if (hasId) this.wire?.send(packet(PUBACK << 4, [body[topicEnd], body[topicEnd + 1]]));
  }
}

const short = (number) => [number >> 8, number & 0xff];

function text(value) {
  const bytes = new TextEncoder().encode(value);
  return [...short(bytes.length), ...bytes];
}

function publishPacket(topic, message, id, again) {
  const head = (PUBLISH << 4) | QOS_1 | (again ? DUPLICATE : 0);
  return packet(head, [...text(topic), ...short(id)], new TextEncoder().encode(message));
}

function packet(head, fields, payload = new Uint8Array(0)) {
  let length = fields.length + payload.length;
  const start = [head];
  do {
    start.push((length & 0x7f) | (length > 0x7f ? 0x80 : 0));
    length >>= 7;
  } while (length > 0);
  return joined(Uint8Array.from([...start, ...fields]), payload);
}

function joined(left, right) {
  const both = new Uint8Array(left.length + right.length);
  both.set(left);
  both.set(right, left.length);
  return both;
}

// Return {head, body, size} of the first whole packet, or null while more is to come; a size beyond the bound at once.
function firstPacket(bytes) {
  let length = 0;
  for (let at = 1; at < Math.min(bytes.length, 5); at++) {
    length |= (bytes[at] & 0x7f) << (7 * (at - 1));
    if (bytes[at] < 0x80) {
      const size = at + 1 + length;
      if (size > MAX_PACKET_BYTES) return { size };
      return size <= bytes.length ? { head: bytes[0], body: bytes.subarray(at + 1, size), size } : null;
    }
  }
  return bytes.length >= 5 ? { size: Infinity } : null;
}
