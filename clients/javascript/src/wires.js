// Ways to reach a broker: WebSocket where there is one (browsers, newer Node), and TCP under Node.

// Return a function that opens wires to a broker: ws://, wss://, or under Node mqtt:// and mqtts://.
export async function wireTo(broker) {
  const url = new URL(broker);
  if (url.protocol === "ws:" || url.protocol === "wss:") return (events) => openWebSocket(broker, events);
  const secure = url.protocol === "mqtts:";
  if (!secure && url.protocol !== "mqtt:") throw new Error(`cannot read ${broker} as a broker: write ws://HOST:PORT`);
  const sockets = await import(secure ? "node:tls" : "node:net");
  const place = { host: url.hostname, port: Number(url.port) || (secure ? 8883 : 1883) };
  return (events) => openSocket(sockets.connect(place), secure ? "secureConnect" : "connect", events);
}

function openWebSocket(broker, { opened, received, closed }) {
  const socket = new WebSocket(broker, "mqtt");
  socket.binaryType = "arraybuffer";
  socket.onopen = opened;
  socket.onmessage = (event) => received(new Uint8Array(event.data));
  socket.onclose = (event) => closed(event.reason || "the connection was closed");
  socket.onerror = () => closed("the broker cannot be reached"); // `onclose` should follow, but not every Node lets it
  return { send: (bytes) => socket.readyState === 1 && socket.send(bytes), close: () => socket.close() };
}

function openSocket(socket, ready, { opened, received, closed }) {
  let error = "";
  socket.on(ready, opened);
  socket.on("data", (bytes) => received(new Uint8Array(bytes)));
  socket.on("error", (failure) => (error = failure.message));
  socket.on("close", () => closed(error || "the connection was closed"));
  return { send: (bytes) => socket.writable && socket.write(bytes), close: () => socket.end() };
}
