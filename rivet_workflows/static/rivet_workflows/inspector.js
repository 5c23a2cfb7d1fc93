// Keeps an actor's page current: asks for the part that changes, and puts it in place when something has changed.
// What was unfolded stays so, focus and scroll stay where they are. Without this file the page works the same, still.

const live = document.getElementById("rv-live");
const follow = document.getElementById("rv-follow");
const note = document.getElementById("rv-note");
const QUICK = 2000; // milliseconds between looks, while things change
const SLOW = 15000; // … and when nothing has for a while, or the server does not answer

let pause = QUICK;
let timer = 0;

function address() {
  const url = new URL(window.location.href);
  url.hash = "";
  url.searchParams.set("fragment", "1");
  url.searchParams.set("version", live.dataset.version);
  return url;
}

function folds(root) {
  const found = new Map();
  for (const details of root.querySelectorAll("details[id]")) found.set(details.id, details.open);
  return found;
}

function put(html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  const content = fresh.content.querySelector(".rv-content");
  if (!content) return false; // not ours: a login page, say
  const before = folds(live);
  for (const details of content.querySelectorAll("details[id]")) {
    if (before.has(details.id)) details.open = before.get(details.id);
  }
  const focused = document.activeElement?.closest?.("[id]")?.id;
  live.dataset.version = content.dataset.version;
  live.replaceChildren(content);
  if (focused) document.getElementById(focused)?.querySelector("summary, a, button")?.focus({ preventScroll: true });
  relative();
  return true;
}

async function look() {
  try {
    const response = await fetch(address(), { credentials: "same-origin", redirect: "error" });
    if (response.status === 404 || response.status === 403) return window.location.reload();
    if (!response.ok) throw new Error(response.statusText);
    note.textContent = "";
    if (response.status === 204) {
      pause = Math.min(SLOW, pause * 1.2);
    } else {
      if (!put(await response.text())) return window.location.reload();
      pause = QUICK;
    }
  } catch {
    note.textContent = live.dataset.labelLost;
    pause = SLOW;
  }
  plan();
}

function plan() {
  clearTimeout(timer);
  if (follow.checked && !document.hidden) timer = setTimeout(look, pause);
}

// "in 5 minutes" beside the points in time that matter now; the server wrote them out in full.
const words = new Intl.RelativeTimeFormat(document.documentElement.lang || "en", { numeric: "auto", style: "short" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];

function relative() {
  for (const time of live.querySelectorAll(".rv-situation time[datetime]")) {
    const seconds = (new Date(time.dateTime) - Date.now()) / 1000;
    const [unit, size] = UNITS.find(([, length]) => Math.abs(seconds) >= length) ?? ["second", 1];
    time.dataset.relative = words.format(Math.trunc(seconds / size), unit);
  }
}

// A link to an entry inside something folded unfolds it.
function reveal() {
  const target = window.location.hash && document.getElementById(window.location.hash.slice(1));
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView({ block: "center" });
}

if (live && follow) {
  follow.closest("label").hidden = false;
  follow.addEventListener("change", () => {
    note.textContent = follow.checked ? "" : live.dataset.labelPaused;
    pause = QUICK;
    plan();
  });
  document.addEventListener("visibilitychange", () => {
    pause = QUICK;
    if (follow.checked && !document.hidden) look();
  });
  window.addEventListener("hashchange", reveal);
  relative();
  setInterval(relative, 1000);
  reveal();
  plan();
}
