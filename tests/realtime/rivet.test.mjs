// The browser client against a socket that this test plays the server of. Run by test_browser_client.py.
import assert from "node:assert/strict";
import { mock, test } from "node:test";

const { connect } = await import(process.env.RIVET_JS);

const sockets = [];

class Socket {
  constructor(url) {
    this.url = url;
    this.frames = [];
    sockets.push(this);
  }
  send(text) {
    this.frames.push(JSON.parse(text));
  }
  close() {
    this.closedByClient = true;
  }
  // What the server does:
  open() {
    this.onopen({});
    return this;
  }
  say(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }
  drop(code = 1006, reason = "") {
    this.onclose({ code, reason });
  }
  take() {
    return this.frames.splice(0);
  }
}

function start(key = "k", options = {}) {
  sockets.length = 0;
  const conn = connect("cart", key, { url: "https://shop.example/ws/rivet/", WebSocket: Socket, ...options });
  return [conn, sockets[0]];
}

function reconnected() {
  mock.timers.tick(60_000);
  return sockets.at(-1).open();
}

const settled = () => new Promise((resolve) => setImmediate(resolve));

test.beforeEach(() => mock.timers.enable({ apis: ["setTimeout"] }));
test.afterEach(() => mock.timers.reset());

test("every key has an address", () => {
  const address = (key) => start(key)[1].url;
  assert.equal(address("order-123"), "wss://shop.example/ws/rivet/cart/order-123/");
  assert.equal(address("a/b"), "wss://shop.example/ws/rivet/cart/?key=a%2Fb");
  assert.equal(address(".."), "wss://shop.example/ws/rivet/cart/?key=..");
  assert.equal(address(""), "wss://shop.example/ws/rivet/cart/?key=");
  assert.equal(address(["eu", "7"]), "wss://shop.example/ws/rivet/cart/?key=eu&key=7");
  assert.equal(address([]), "wss://shop.example/ws/rivet/cart/");
});

test("a call waits for the connection and gives the output", async () => {
  const [conn, socket] = start();
  const call = conn.call("add", { sku: "a" }, 2);
  assert.deepEqual(socket.frames, []);
  socket.open();
  const [frame] = socket.take();
  assert.deepEqual(frame, { type: "call", action: "add", args: [{ sku: "a" }, 2], kwargs: {}, id: frame.id });
  socket.say({ type: "result", id: frame.id, output: 5 });
  assert.equal(await call, 5);
});

test("an error rejects with its code, text and metadata", async () => {
  const [conn, socket] = start();
  socket.open();
  const call = conn.callWith("add", { kwargs: { a: 1 } });
  const [frame] = socket.take();
  assert.deepEqual(frame.kwargs, { a: 1 });
  socket.say({ type: "error", id: frame.id, code: "closed", detail: "no more", metadata: { until: 5 } });
  await assert.rejects(call, { name: "RivetError", code: "closed", message: "no more", metadata: { until: 5 } });
});

test("a send gives what became of the message", async () => {
  const [conn, socket] = start();
  socket.open();
  const sent = conn.send("orders", { n: 1 }, { wait: true, timeout: 3 });
  const [frame] = socket.take();
  assert.equal(frame.wait, true);
  assert.equal(frame.timeout, 3);
  assert.match(frame.dedupe_key, /^[0-9a-f]{32}$/);
  socket.say({ type: "result", id: frame.id, message_id: 7, status: "completed", response: "ok", duplicate: false });
  assert.deepEqual(await sent, { id: 7, status: "completed", response: "ok", duplicate: false });
});

test("a message under way when the connection breaks is sent again under its key, a call is not", async () => {
  const [conn, socket] = start();
  socket.open();
  const sent = conn.send("orders", 1);
  const call = conn.call("add");
  const [first] = socket.take();
  socket.drop();
  await assert.rejects(call, { code: "connection_lost" });
  const later = conn.call("add");
  const again = reconnected();
  const [second, third] = again.take();
  assert.deepEqual(second, first);
  again.say({ type: "result", id: second.id, message_id: 7, status: "queued", response: null, duplicate: true });
  assert.deepEqual(await sent, { id: 7, status: "queued", response: null, duplicate: false });
  again.say({ type: "result", id: third.id, output: 1 });
  assert.equal(await later, 1);
});

test("listeners subscribe with the first and unsubscribe with the last", async () => {
  const [conn, socket] = start();
  const heard = [];
  const offs = [1, 2].map((n) => conn.on("moved", (payload, { seq, name }) => heard.push([n, payload, seq, name])));
  socket.open();
  const [frame] = socket.take();
  assert.deepEqual(frame, { type: "subscribe", events: ["moved"], id: frame.id });
  socket.say({ type: "result", id: frame.id, seq: 4 });
  await settled();
  socket.say({ type: "event", seq: 5, name: "moved", payload: "x" });
  assert.deepEqual(heard, [[1, "x", 5, "moved"], [2, "x", 5, "moved"]]);
  offs[0]();
  offs[0]();
  assert.deepEqual(socket.take(), []);
  offs[1]();
  assert.deepEqual(socket.take(), [{ type: "unsubscribe", events: ["moved"] }]);
  socket.say({ type: "event", seq: 6, name: "moved", payload: "y" });
  assert.equal(heard.length, 2);
});

test("once hears one event", () => {
  const [conn, socket] = start();
  socket.open();
  const heard = [];
  conn.once("moved", (payload) => heard.push(payload));
  socket.say({ type: "event", seq: 1, name: "moved", payload: "x" });
  socket.say({ type: "event", seq: 2, name: "moved", payload: "y" });
  assert.deepEqual(heard, ["x"]);
});

test("it reconnects and resumes after the last event it saw, each once", async () => {
  const [conn, socket] = start();
  const heard = [];
  conn.on("moved", (payload, { seq }) => heard.push(seq));
  conn.on("stopped", (payload, { seq }) => heard.push(seq));
  socket.open();
  socket.say({ type: "event", seq: 5, name: "moved", payload: 1 });
  socket.drop();
  assert.equal(conn.status, "disconnected");
  const again = reconnected();
  const [frame] = again.take();
  assert.deepEqual(frame, { type: "subscribe", events: ["moved", "stopped"], after: 5, id: frame.id });
  for (const seq of [5, 6, 6, 7]) again.say({ type: "event", seq, name: "moved", payload: 1 });
  assert.deepEqual(heard, [5, 6, 7]);
  assert.equal(conn.seen, 7);
});

test("it resumes also where no event had come yet", async () => {
  const [conn, socket] = start();
  conn.on("moved", () => {});
  socket.open();
  socket.say({ type: "result", id: socket.take()[0].id, seq: 9 });
  await settled();
  socket.drop();
  assert.equal(reconnected().take()[0].after, 9);
});

test("it resumes where an earlier page left off", () => {
  const [conn, socket] = start("k", { after: 12 });
  conn.on("moved", () => {});
  assert.equal(socket.open().take()[0].after, 12);
});

test("a gap is told", () => {
  const [conn, socket] = start();
  const gaps = [];
  conn.onGap((gap) => gaps.push(gap));
  socket.open().say({ type: "gap", from: 2, to: 8 });
  assert.deepEqual(gaps, [{ from: 2, to: 8 }]);
  assert.equal(conn.seen, 8);
});

test("pauses between attempts grow to a bound and begin anew once the server speaks", (t) => {
  t.mock.method(Math, "random", () => 1);
  const [, first] = start();
  const pauses = [];
  first.drop();
  for (let n = 0; n < 10; n++) {
    let waited = 0;
    const before = sockets.length;
    while (sockets.length === before) {
      mock.timers.tick(50);
      waited += 50;
    }
    pauses.push(waited);
    sockets.at(-1).drop();
  }
  assert.deepEqual(pauses.slice(0, 4), [250, 500, 1000, 2000]);
  assert.equal(pauses.at(-1), 30_000);
});

for (const [code, name] of [[4401, "not_authenticated"], [4403, "permission_denied"], [4404, "actor_not_found"]]) {
  test(`${code} is final`, async () => {
    const [conn, socket] = start();
    const errors = [];
    conn.onError((error) => errors.push(error.code));
    const call = conn.call("x");
    socket.open();
    socket.drop(code, "reason");
    await assert.rejects(call, { code: name });
    assert.deepEqual(errors, [name]);
    assert.equal(conn.status, "closed");
    mock.timers.tick(60_000);
    assert.equal(sockets.length, 1);
    await assert.rejects(conn.call("x"), { code: "connection_closed" });
  });
}

test("close ends it for good", async () => {
  const [conn, socket] = start();
  const statuses = [];
  conn.onStatus((status) => statuses.push(status));
  socket.open();
  const call = conn.call("x");
  conn.close();
  assert.equal(socket.closedByClient, true);
  await assert.rejects(call, { code: "connection_closed" });
  socket.drop(1000);
  mock.timers.tick(60_000);
  assert.equal(sockets.length, 1);
  assert.deepEqual(statuses, ["connected", "closed"]);
});

test("a listener that throws does not keep others from hearing", () => {
  const [conn, socket] = start();
  socket.open();
  const heard = [];
  conn.on("moved", () => {
    throw new Error("mine");
  });
  conn.on("moved", (payload) => heard.push(payload));
  socket.say({ type: "event", seq: 1, name: "moved", payload: "x" });
  assert.deepEqual(heard, ["x"]);
  assert.throws(() => mock.timers.tick(1), /mine/);
});
