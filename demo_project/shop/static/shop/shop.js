// The live table of orders. Three ways to talk to actors are in this file:
//   the board's events arrive over a WebSocket (rivet.js), decisions go out over REST,
//   and placing an order is an ordinary form that a Django view answers.
import { connect } from "../rivet_workflows/rivet.js";

const rows = document.querySelector("#rows");
const template = document.querySelector("#row");
const csrf = document.querySelector("[name=csrfmiddlewaretoken]").value;
const seen = new Map(); // order -> its table row
const euro = new Intl.NumberFormat("en", { style: "currency", currency: "EUR" });
const WAITING = "waiting for approval";

function problem(text) {
  const line = document.querySelector("#problem");
  line.textContent = text;
  line.hidden = !text;
}

async function post(url, body, headers = {}) {
  const response = await fetch(url, { method: "POST", body, headers: { "X-CSRFToken": csrf, ...headers } });
  const answer = await response.json().catch(() => ({}));
  problem(response.ok ? "" : answer.detail ?? `The server answered ${response.status}.`);
  return response.ok ? answer : null;
}

function newRow(order) {
  const row = template.content.firstElementChild.cloneNode(true);
  for (const button of row.querySelectorAll("[data-approved]")) {
    button.addEventListener("click", () => decide(order, button.dataset.approved === "true"));
  }
  document.querySelector("#empty")?.remove();
  rows.prepend(row);
  seen.set(order, row);
  return row;
}

function show(change) {
  const row = seen.get(change.order) ?? newRow(change.order);
  const [order, product, total, status] = row.children;
  if (rows.dataset.inspector && !order.firstElementChild) {
    const link = document.createElement("a");
    link.href = `${rows.dataset.inspector}${change.actor}/change/`;
    link.title = "The order's history";
    order.append(link);
  }
  (order.firstElementChild ?? order).textContent = change.order;
  product.textContent = `${change.quantity} × ${change.sku}`;
  total.textContent = euro.format(change.total / 100);
  const reminded = change.status === WAITING && change.reminders ? `, reminded ${change.reminders}×` : "";
  status.firstElementChild.textContent = change.status + reminded;
  status.firstElementChild.dataset.status = change.status;
  row.querySelector(".decide").hidden = change.status !== WAITING;
}

function decide(order, approved) {
  seen.get(order).querySelector(".decide").hidden = true;
  const body = JSON.stringify({ key: order, body: { approved, by: "the page" } });
  return post("/api/send/order/approval/", body, { "Content-Type": "application/json" });
}

const board = connect("order_board", "main");
const connection = document.querySelector("#connection");
board.on("order_changed", (change) => {
  connection.textContent = "live";
  show(change);
});
// What was there before we came. An event that overtook this answer is newer, so it stays.
for (const row of await board.call("get_rows")) {
  if (!seen.has(row.order)) show(row);
}
connection.textContent = "live";

// Placing an order
const form = document.querySelector("#place-order");
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  await post(form.action, new FormData(form));
});
function price() {
  const cents = form.elements.sku.selectedOptions[0].dataset.price * form.elements.quantity.value;
  document.querySelector("#price").textContent = `for ${euro.format(cents / 100)}`;
}
form.addEventListener("input", price);
price();

// Killing the worker: only in the demo
const kill = document.querySelector("#kill-worker");
if (kill) {
  const status = document.querySelector("#worker");
  kill.addEventListener("submit", (event) => {
    event.preventDefault();
    post(kill.action, new FormData(kill));
  });
  const look = async () => {
    try {
      const { alive, pid } = await (await fetch(kill.dataset.status)).json();
      status.textContent = alive ? `worker: process ${pid}` : "worker: dead, another one is coming";
      status.dataset.alive = alive;
    } catch {
      status.textContent = "worker: the web server does not answer";
    }
    setTimeout(look, 700);
  };
  look();
}
