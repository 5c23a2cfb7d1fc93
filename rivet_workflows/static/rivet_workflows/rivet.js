// Actors in the browser: calls, messages and live events over one WebSocket. An ES module without a build step.
//
//   import { connect } from "/static/rivet_workflows/rivet.js";
//   const conn = connect("checkout", "order-123");
//   const off = conn.on("status_changed", (payload) => …);
//   const sent = await conn.send("orders", {…}, { wait: true });
//   const state = await conn.call("get_state");
//
// It reconnects by itself and resumes after the last event it saw: nothing is missed and nothing comes twice, unless
// the server no longer keeps what was missed, which `onGap` tells. Messages that were under way when the connection
// broke are sent again under the same dedupe key; calls are not, as only their author knows whether they may be
// repeated: their promise is rejected with the code "connection_lost".

const FIRST_PAUSE = 250; // milliseconds between attempts to connect: the first, and the longest
const LONGEST_PAUSE = 30_000;
// Not signed in, denied, absent, too large a frame: trying again would not help.
const FINAL = new Set([4401, 4403, 4404, 4413, 1009]);
const REASONS = { 4401: "not_authenticated", 4403: "permission_denied", 4404: "actor_not_found", 4413: "payload_too_large", 1009: "payload_too_large" };

/** What a call or send is rejected with. `code` is stable; `metadata` is what the server adds. */
export class RivetError extends Error {
  constructor(code, detail, metadata = {}) {
    super(detail || code);
    this.name = "RivetError";
    this.code = code;
    this.metadata = metadata;
  }
}

/**
 * Connect to an actor. `key`: a string, or an array for a key of several parts.
 * Options: `path` (default "/ws/rivet/") or a whole `url` to put in its place; `after`: the `seq` of the last event seen
 * earlier; `WebSocket`: another implementation.
 */
export function connect(name, key, options = {}) {
  return new Connection(address(name, key, options), options);
}

function address(name, key, { url, path = "/ws/rivet/" }) {
  const base = new URL(url ?? path, globalThis.location?.href);
  base.protocol = base.protocol.replace(/^http/, "ws");
  const parts = Array.isArray(key) ? key : [key];
  // What a path cannot carry (several parts, "/", "..", nothing) goes into the query.
  if (parts.length === 1 && /^[\w~@:,-][\w~@:,.-]*$/.test(parts[0])) {
    base.pathname += `${encodeURIComponent(name)}/${encodeURIComponent(parts[0])}/`;
  } else {
    base.pathname += `${encodeURIComponent(name)}/`;
    for (const part of parts) base.searchParams.append("key", part);
  }
  return base.href;
}

export class Connection {
  #url;
  #WebSocket;
  #socket = null;
  #status = "connecting"; // connecting, connected, disconnected (will try again), closed
  #pause = FIRST_PAUSE;
  #timer = null;
  #nextId = 1;
  #waiting = new Map(); // id to { frame, resolve, reject, again }; sent or to be sent
  #listeners = new Map(); // event name to its listeners
  #since = new Map(); // event name to the seq after which it is wanted
  #seen = null; // every wanted event up to here has been delivered
  #gapListeners = new Set();
  #statusListeners = new Set();
  #errorListeners = new Set();

  constructor(url, { after = null, WebSocket = globalThis.WebSocket } = {}) {
    this.#url = url;
    this.#WebSocket = WebSocket;
    this.#seen = after;
    this.#open();
  }

  get status() {
    return this.#status;
  }

  /** The `seq` of the last event that was seen, or null: what `connect(…, { after })` resumes from. */
  get seen() {
    return this.#seen;
  }

  /** Call `fn(payload, { seq, name })` for each such event. Returns a function that ends it. */
  on(event, fn) {
    let listeners = this.#listeners.get(event);
    if (!listeners) {
      this.#listeners.set(event, (listeners = new Set()));
      if (this.#status === "connected") this.#subscribe([event]);
    }
    const listener = { fn };
    listeners.add(listener);
    return () => {
      if (!listeners.delete(listener) || listeners.size || this.#listeners.get(event) !== listeners) return;
      this.#listeners.delete(event);
      this.#since.delete(event);
      if (this.#status === "connected") this.#transmit({ type: "unsubscribe", events: [event] });
    };
  }

  /** Like `on`, for the next such event alone. */
  once(event, fn) {
    const off = this.on(event, (payload, about) => {
      off();
      fn(payload, about);
    });
    return off;
  }

  /** Call `fn({ from, to })` when events of that range were missed and are no longer kept: load what is shown anew. */
  onGap(fn) {
    return add(this.#gapListeners, fn);
  }

  /** Call `fn(status)` with each change of `status`. */
  onStatus(fn) {
    return add(this.#statusListeners, fn);
  }

  /** Call `fn(error)` for errors that belong to no call or send. */
  onError(fn) {
    return add(this.#errorListeners, fn);
  }

  /** Run an action; gives what it returns. */
  call(action, ...args) {
    return this.callWith(action, { args });
  }

  /** Run an action with keyword arguments. */
  callWith(action, { args = [], kwargs = {} } = {}) {
    return this.#request({ type: "call", action, args, kwargs }, false).then((frame) => frame.output);
  }

  /**
   * Put a message into a queue. Options: `wait` (until the actor completes it), `timeout` and `delay` in seconds,
   * `dedupeKey`. Gives `{ id, status, response, duplicate }`; status: queued, completed, timed_out, failed.
   */
  send(queue, body = null, { wait = false, timeout, delay, dedupeKey = uniqueKey() } = {}) {
    const frame = { type: "send", queue, body, wait, dedupe_key: dedupeKey };
    if (timeout !== undefined) frame.timeout = timeout;
    if (delay !== undefined) frame.delay = delay;
    return this.#request(frame, true).then(({ message_id, status, response, duplicate, again }) => ({
      id: message_id,
      status,
      response,
      // Found again by its own second attempt, it is no duplicate to the caller.
      duplicate: duplicate && !again,
    }));
  }

  /** End the connection for good. */
  close() {
    clearTimeout(this.#timer);
    this.#setStatus("closed");
    this.#socket?.close();
    this.#rejectAll(new RivetError("connection_closed", "the connection was closed"));
  }

  // -- the socket

  #open() {
    this.#setStatus("connecting");
    const socket = new this.#WebSocket(this.#url);
    this.#socket = socket;
    // Whatever an abandoned socket still says is not for this connection.
    const current = (fn) => (event) => socket === this.#socket && this.#status !== "closed" && fn(event);
    socket.onopen = current(() => this.#opened());
    socket.onmessage = current((event) => this.#received(JSON.parse(event.data)));
    socket.onclose = current((event) => this.#closed(event));
  }

  #opened() {
    this.#setStatus("connected");
    if (this.#listeners.size) this.#subscribe([...this.#listeners.keys()], true);
    for (const [id, entry] of this.#waiting) this.#transmit({ ...entry.frame, id });
  }

  #closed({ code, reason }) {
    this.#socket = null;
    if (FINAL.has(code)) {
      const error = new RivetError(REASONS[code], reason);
      this.#setStatus("closed");
      this.#rejectAll(error);
      this.#tell(this.#errorListeners, error);
      return;
    }
    this.#setStatus("disconnected");
    for (const [id, entry] of this.#waiting) {
      if (!entry.sent) continue;
      if (entry.frame.type === "subscribe") {
        this.#waiting.delete(id); // all of them are made anew
      } else if (entry.repeatable) {
        entry.again = true;
      } else {
        this.#waiting.delete(id);
        entry.reject(new RivetError("connection_lost", "the connection broke before the answer came"));
      }
    }
    // Half of it at random: a server that comes back must not meet all its clients at one moment.
    this.#timer = setTimeout(() => this.#open(), this.#pause * (0.5 + Math.random() / 2));
    this.#pause = Math.min(this.#pause * 2, LONGEST_PAUSE);
  }

  #transmit(frame) {
    if (this.#status !== "connected") return;
    const entry = this.#waiting.get(frame.id);
    if (entry) entry.sent = true;
    this.#socket.send(JSON.stringify(frame));
  }

  #request(frame, repeatable) {
    if (this.#status === "closed") {
      return Promise.reject(new RivetError("connection_closed", "the connection is closed"));
    }
    const id = this.#nextId++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { frame, repeatable, resolve, reject, sent: false, again: false });
      this.#transmit({ ...frame, id });
    });
  }

  #rejectAll(error) {
    const waiting = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const { reject } of waiting) reject(error);
  }

  // -- events

  #subscribe(events, resume = false) {
    const frame = { type: "subscribe", events };
    if (resume && this.#seen !== null) frame.after = this.#seen;
    this.#request(frame, true).then(
      ({ seq }) => {
        for (const event of events) {
          if (this.#listeners.has(event) && !this.#since.has(event)) this.#since.set(event, frame.after ?? seq);
        }
        // Nothing was seen yet: what comes from here on must not be missed.
        this.#seen ??= seq;
      },
      (error) => this.#tell(this.#errorListeners, error),
    );
  }

  #received(frame) {
    this.#pause = FIRST_PAUSE;
    if (frame.type === "event") {
      if (frame.seq > (this.#since.get(frame.name) ?? -1)) {
        this.#since.set(frame.name, frame.seq);
        this.#tell(this.#listeners.get(frame.name) ?? [], frame.payload, { seq: frame.seq, name: frame.name });
      }
      this.#seen = Math.max(this.#seen ?? 0, frame.seq);
    } else if (frame.type === "gap") {
      this.#seen = Math.max(this.#seen ?? 0, frame.to);
      this.#tell(this.#gapListeners, { from: frame.from, to: frame.to });
    } else {
      this.#answered(frame);
    }
  }

  #answered(frame) {
    const entry = this.#waiting.get(frame.id);
    this.#waiting.delete(frame.id);
    if (frame.type === "result") {
      entry?.resolve({ ...frame, again: entry.again });
      return;
    }
    const error = new RivetError(frame.code, frame.detail, frame.metadata);
    if (entry) entry.reject(error);
    else this.#tell(this.#errorListeners, error);
  }

  #tell(listeners, ...args) {
    for (const listener of [...listeners]) {
      try {
        (listener.fn ?? listener)(...args);
      } catch (error) {
        // A listener's own mistake must not keep the others from hearing; the page's error handler is told.
        setTimeout(() => {
          throw error;
        });
      }
    }
  }

  #setStatus(status) {
    if (status === this.#status) return;
    this.#status = status;
    this.#tell(this.#statusListeners, status);
  }
}

function add(listeners, fn) {
  const listener = { fn };
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function uniqueKey() {
  // randomUUID is there in secure contexts alone, and a page in development may be none.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
