// What the pages have in common: elements, the token, requests. A page defines look(), which loads what it shows.
"use strict";

const by = (id) => document.getElementById(id);
let token = sessionStorage.getItem("penstock-token") || "";

// -- words

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const count = (value) => (value === null || value === undefined ? "?" : number.format(value));

function tone(state) {
  if (state === "RUNNING") return "good";
  return ["ERROR", "PENDING_ERROR", "DEAD", "NOT_RUNNING"].includes(state) ? "bad" : "warn";
}

// JSON, with whole numbers of any size: those that a float cannot hold become BigInt.
function parse(json) {
  return JSON.parse(json, (_, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && context && /^-?\d+$/.test(context.source) ? BigInt(context.source) : value);
}

// -- elements

function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

function make(name, className, value) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (value !== undefined) element.textContent = value;
  return element;
}

// Rows stay where they are while their key does, so that a focused button keeps the focus.
function fill(table, items, keyOf, build) {
  const body = table.tBodies[0];
  const labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const old = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let row = old.get(key);
    old.delete(key);
    if (!row) {
      row = make("tr");
      row.dataset.key = key;
      for (const label of labels) row.append(Object.assign(make("td"), { title: "" })), (row.lastChild.dataset.label = label);
    }
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] || null);
    build(item, row.cells);
  });
  for (const row of old.values()) row.remove();
}

// -- stores

const READABLE = ["key_value", "timestamped_key_value", "versioned_key_value", "window", "timestamped_window", "session", "global"];
const canBeRead = (store) => READABLE.includes(store.kind);
const kindOf = (store) => store.kind.replace("timestamped_", "").replace("_key_value", "").replaceAll("_", "-");
const storePath = (name) => `/store?name=${encodeURIComponent(name)}`;

// -- asking

function say(message) {
  by("message").hidden = !message;
  text(by("message"), message);
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

async function ask(path, options = {}) {
  const answer = await fetch(path, { headers: headers(), cache: "no-store", ...options });
  const value = parse(await answer.text());
  if (answer.status === 401) {
    openToken(true);
    throw new Error(token ? "The application does not take this token." : "This application shows itself to those who have its token.");
  }
  if (!answer.ok) throw Object.assign(new Error(value.error ? value.error.message : `HTTP ${answer.status}`), { code: value.error?.code });
  return value;
}

function openToken(open) {
  by("token-form").hidden = !open;
  by("unlock").setAttribute("aria-expanded", String(open));
}

by("unlock").addEventListener("click", () => {
  openToken(by("token-form").hidden);
  if (!by("token-form").hidden) by("token").focus();
});
by("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = by("token").value;
  sessionStorage.setItem("penstock-token", token);
  by("token").value = "";
  say("");
  openToken(false);
  look();
});
