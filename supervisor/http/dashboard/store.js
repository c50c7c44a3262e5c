// The rows of one store: searched by key, sorted, watched. Only textContent, never HTML.
"use strict";

const PAGE_ROWS = 200, MORE = 5, ROWS_MAX = 10000;
const COLUMNS_MAX = 8; // of objects as values; others are one column
const SHORT = 120; // characters of a value until it is unfolded
const DRAW_MS = 250;
const RETRY_MS = 1000;
const FLASH_MS = 1500;
const CHANGES_KEPT = 2 * ROWS_MAX;

let stores = [];
let rows = new Map(); // by identity, as they were read
let read = null; // the last response
let limit = PAGE_ROWS;
let sorted = { column: "", down: false }; // "": in the order of the store
let reading = new AbortController(); // of the search that is shown
let watched = null; // the controller of the subscription
let drawing = 0;

const store = () => stores.find((each) => each.name === by("store").value);
const windowed = () => ["window", "timestamped_window", "session"].includes(store()?.kind);
const versioned = () => store()?.kind === "versioned_key_value";

// -- words

// Numbers of more than 53 bits keep their digits.
const json = (value, indent) => JSON.stringify(value, (_, each) => (typeof each === "bigint" ? (JSON.rawJSON ? JSON.rawJSON(String(each)) : String(each)) : each), indent);
const time = (ms) => {
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").replace("Z", "").replace(".000", "");
};
const shown = (value) => (typeof value === "string" ? value : value === undefined ? "" : json(value));
const identity = (row) => json([row.key, row.window?.start, row.window?.end, versioned() ? row.timestamp : null]);
const isNumber = (value) => typeof value === "number" || typeof value === "bigint";
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

// -- the search

function where() {
  const query = new URLSearchParams();
  const key = by("text").value;
  if (key !== "") query.set(by("how").value, key);
  const since = by("since").value ? Date.parse(`${by("since").value}Z`) : NaN;
  if (windowed() && !Number.isNaN(since)) query.set("time_from", String(Math.max(since, 0)));
  return query;
}

function path(committed) {
  const query = where();
  const key = query.get("key");
  const base = `/stores/${encodeURIComponent(store().name)}`;
  // changelog= waits for a commit that is not older than the first changes.
  if (committed) (query.set("isolation", "read_committed"), query.set("changelog", "true"));
  query.set("limit", String(limit));
  if (versioned() && key !== null) {
    query.set("query", "MultiVersionedKeyQuery");
    return `${base}?${query}`;
  }
  query.delete("key");
  if (key === "." || key === "..") {
    // Browsers take such a part of a path for a folder.
    query.set("from", key);
    query.set("to", key);
    return `${base}?${query}`;
  }
  return key === null ? `${base}?${query}` : `${base}/${keyPath(key)}?${query}`;
}

// A key named "changes" is another path unless it is encoded.
const keyPath = (key) => (key === "changes" ? "%63hanges" : encodeURIComponent(key));

async function load(committed = false) {
  reading.abort();
  const mine = (reading = new AbortController());
  remember();
  text(by("summary"), "Reading …");
  by("none").hidden = true;
  by("main").setAttribute("aria-busy", "true");
  try {
    const found = await ask(path(committed), { signal: mine.signal });
    if (mine !== reading) return;
    read = found.partitions ? versions(found) : found;
    rows = new Map(read.rows.map((row) => [identity(row), row]));
    say("");
  } catch (error) {
    if (mine !== reading) return;
    read = null;
    rows = new Map();
    say(error instanceof TypeError ? "The application does not answer: it has ended, or the network is gone." : error.message);
    if (error.code === "NO_SUCH_KEY") say(""), (read = { rows: [] });
  }
  by("main").removeAttribute("aria-busy");
  draw();
}

// Versions come by partition, as interactive queries do; a partition that cannot answer fails the whole.
function versions(found) {
  const parts = Object.values(found.partitions);
  const failed = parts.find((part) => part.failure);
  if (failed) throw new Error(failed.failure.message);
  return { rows: parts.flatMap((part) => part.result), truncated: parts.some((part) => part.truncated), position: found.position, complete: true };
}

// -- the table

function columns() {
  const all = [...rows.values()];
  const found = [{ name: "Key", of: (row) => row.key }];
  if (windowed()) found.push({ name: "Window start, UTC", of: (row) => row.window?.start, show: time }, { name: "Window end, UTC", of: (row) => row.window?.end, show: time });
  const fields = all.length > 0 && all.every((row) => isObject(row.value)) ? [...new Set(all.flatMap((row) => Object.keys(row.value)))] : [];
  if (fields.length > 0 && fields.length <= COLUMNS_MAX) found.push(...fields.map((field) => ({ name: field, of: (row) => row.value[field] })));
  else found.push({ name: "Value", of: (row) => row.value });
  const has = (part) => all.some((row) => row[part] !== undefined);
  if (has("timestamp")) found.push({ name: versioned() ? "Valid from, UTC" : "Time, UTC", of: (row) => row.timestamp, show: time });
  if (has("valid_to")) found.push({ name: "Valid to, UTC", of: (row) => row.valid_to, show: (value) => (value === null || value === undefined ? "now" : time(value)) });
  if (has("headers")) found.push({ name: "Headers", of: (row) => (row.headers || []).map(([name, value]) => `${name}: ${value}`).join(", ") });
  return found;
}

// Nothing last; numbers by size, before all else by text.
function compare(a, b) {
  const none = (value) => value === undefined || value === null;
  if (none(a) || none(b)) return Number(none(a)) - Number(none(b));
  if (isNumber(a) && isNumber(b)) return a < b ? -1 : Number(a > b);
  if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
  const [left, right] = [shown(a), shown(b)];
  return left < right ? -1 : Number(left > right);
}

function draw() {
  const found = columns();
  drawHead(found);
  const by_ = found.find((column) => column.name === sorted.column);
  let listed = [...rows.entries()];
  if (by_) listed.sort(([, a], [, b]) => compare(by_.of(a), by_.of(b)) * (sorted.down ? -1 : 1));
  else if (watched) listed.sort(([, a], [, b]) => compare(a.key, b.key) || compare(a.window?.start, b.window?.start));
  const total = listed.length;
  listed = listed.slice(0, limit);
  const now = Date.now();
  fill(by("rows"), listed, ([id]) => id, ([, row], cells) => {
    found.forEach((column, index) => drawCell(cells[index], column, row));
    cells[0].parentElement.classList.toggle("changed", now - (row.changedAt || 0) < FLASH_MS);
  });
  by("rows").hidden = total === 0;
  by("none").hidden = total > 0 || read === null;
  text(by("none"), where().size ? "No row matches." : "The store has no rows.");
  const more = read?.truncated || total > limit;
  by("more").hidden = !more || limit >= ROWS_MAX;
  drawSummary(listed.length, more);
  by("position-box").hidden = !read?.position;
  text(by("position"), read?.position ? json(read.position, 1) : "");
}

function drawHead(found) {
  const head = by("rows").tHead.rows[0];
  const names = found.map((column) => column.name);
  if (head.dataset.names !== json(names)) {
    head.dataset.names = json(names);
    by("rows").tBodies[0].replaceChildren();
    head.replaceChildren(...names.map((name) => {
      const cell = make("th");
      const button = make("button", "sort", name);
      button.type = "button";
      button.addEventListener("click", () => sortBy(name));
      cell.append(button);
      return cell;
    }));
  }
  const some = [...rows.values()].slice(0, PAGE_ROWS);
  for (const cell of head.cells) {
    const column = found[cell.cellIndex];
    cell.classList.toggle("n", !column.show && some.length > 0 && some.every((row) => isNumber(column.of(row))));
    const mine = cell.firstChild.textContent === sorted.column;
    cell.ariaSort = mine ? (sorted.down ? "descending" : "ascending") : "none";
  }
}

// First up, then down, then in the order of the store.
function sortBy(name) {
  if (sorted.column !== name) sorted = { column: name, down: false };
  else sorted = sorted.down ? { column: "", down: false } : { column: name, down: true };
  draw();
}

function drawCell(cell, column, row) {
  const value = column.of(row);
  const full = column.show ? column.show(value) : shown(value);
  cell.classList.toggle("n", isNumber(value) && !column.show);
  if (cell.dataset.full === full && cell.firstChild) return;
  const open = cell.querySelector("details")?.open || false;
  cell.dataset.full = full;
  if (full.length <= SHORT) {
    cell.replaceChildren(full);
    return;
  }
  const box = make("details");
  box.open = open;
  box.append(make("summary", "", `${full.slice(0, SHORT)}…`), make("pre", "", typeof value === "string" ? value : json(value, 1)));
  box.append(make("span", "hint", `${count(full.length)} characters`));
  cell.replaceChildren(box);
}

function drawSummary(drawn, more) {
  if (read === null) return text(by("summary"), "");
  const parts = [`${more ? "The first " : ""}${count(drawn)} ${drawn === 1 ? "row" : "rows"}`];
  if (more && sorted.column) parts.push("sorted are only the loaded rows");
  if (read.complete === false) parts.push("of this host only");
  parts.push(watched ? "as they change" : `read at ${new Date(read.at ??= Date.now()).toLocaleTimeString()}`);
  return text(by("summary"), parts.join(" · "));
}

// -- watching: changes first, then the rows, so that none is missed

function badgeOf(state, words) {
  by("watching").hidden = !state;
  by("watching").className = `badge ${state}`;
  text(by("watching"), words || "");
}

async function watch() {
  stop();
  const mine = (watched = new AbortController());
  by("watch").setAttribute("aria-pressed", "true");
  text(by("watch"), "Stop watching");
  badgeOf("warn", "connecting");
  let id = "";
  while (watched === mine) {
    try {
      for await (const event of events(mine, id)) {
        id = event.id || id;
        if (watched !== mine) return;
        await take(event, mine);
      }
    } catch (error) {
      if (watched !== mine) return;
      if (error.status && !error.retry) {
        if (error.status !== 410 || !id) return refuse(error.message);
        id = ""; // the changes since then are gone: begin with the rows
        mine.hasRows = false;
      }
      badgeOf("warn", "connecting again");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function refuse(reason) {
  stop();
  if (read === null) await load();
  else draw();
  say(reason);
}

function stop() {
  watched?.abort();
  watched = null;
  by("watch").setAttribute("aria-pressed", "false");
  text(by("watch"), "Watch");
  badgeOf("");
}

async function* events(mine, id) {
  const query = new URLSearchParams(id ? {} : { from: "now" });
  for (const name of ["key", "prefix"]) if (where().has(name)) query.set(name, where().get(name));
  const more = id ? { "Last-Event-ID": id } : {};
  const answer = await fetch(`/stores/${encodeURIComponent(store().name)}/changes?${query}`, { headers: { ...headers(), ...more }, signal: mine.signal, cache: "no-store" });
  if (!answer.ok) throw refusal(parse(await answer.text()).error);
  const lines = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await lines.read(); !part.done; part = await lines.read()) {
    text += part.value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      if (fields.data) yield { name: fields.event, id: fields.id, data: parse(fields.data) };
    }
  }
}

const refusal = (error) => Object.assign(new Error(error.message), { status: error.status, retry: "retry_after_seconds" in error });

async function take(event, mine) {
  if (event.name === "end") throw refusal(event.data.error);
  if (event.name === "position" && (!mine.hasRows || event.id === undefined)) {
    mine.hasRows = true;
    badgeOf("good", "live");
    return reload();
  }
  badgeOf("good", "live");
  if (event.name !== "change" && event.name !== "delete") return undefined;
  if (versioned()) return soon(reload); // a new version also ends another one
  const { partition, offset, ...row } = event.data;
  if (!matches(row)) return undefined;
  const key = identity(row);
  if (event.name === "delete") rows.delete(key);
  else rows.set(key, { ...row, changedAt: Date.now() });
  for (const old of rows.keys()) {
    if (rows.size <= CHANGES_KEPT) break;
    rows.delete(old);
  }
  return soon(draw);
}

function matches(row) {
  const query = where();
  if (query.has("time_from") && row.window && row.window.start < Number(query.get("time_from"))) return false;
  return !query.has("from") || compare(row.key, typeof row.key === "number" ? Number(query.get("from")) : query.get("from")) >= 0;
}

// Versions are read as of now: a change is in the changelog before the commit that ends it.
const reload = () => load(!versioned());

function soon(action) {
  if (drawing) return;
  drawing = setTimeout(() => {
    drawing = 0;
    action();
  }, DRAW_MS);
}

// -- the page

async function look() {
  try {
    const found = await ask("/stores");
    by("main").hidden = false;
    say("");
    stores = found.filter(canBeRead);
  } catch (error) {
    say(error instanceof TypeError ? "The application does not answer: it has ended, or the network is gone." : error.message);
    return;
  }
  const given = new URLSearchParams(location.search);
  const name = given.get("name") ?? stores[0]?.name;
  by("store").replaceChildren(...stores.map((each) => new Option(each.name, each.name)));
  if (!stores.some((each) => each.name === name)) {
    by("store").selectedIndex = -1;
    say(name === undefined ? "The topology has no state store." : `There is no store ${name}: choose one of those below.`);
    return;
  }
  by("store").value = name;
  for (const how of ["key", "prefix", "from"])
    if (given.has(how)) (by("how").value = how), (by("text").value = given.get(how));
  if (given.has("since")) by("since").value = given.get("since");
  choose();
}

function remember() {
  const given = new URLSearchParams({ name: store().name });
  if (by("text").value) given.set(by("how").value, by("text").value);
  if (by("since").value && windowed()) given.set("since", by("since").value);
  window.history.replaceState(null, "", `/store?${given}`);
}

function choose() {
  const one = store();
  text(by("title"), one.name);
  document.title = `${one.name} · Penstock`;
  by("kind").hidden = false;
  text(by("kind"), kindOf(one));
  by("since-label").hidden = !windowed();
  by("how").options[1].disabled = windowed() || versioned();
  by("how").options[2].disabled = versioned();
  if (by("how").selectedOptions[0]?.disabled) by("how").value = "key";
  search();
}

function search() {
  if (!store()) return;
  limit = PAGE_ROWS;
  const live = watched !== null;
  stop();
  read = null;
  rows = new Map();
  if (versioned() && by("text").value === "") {
    reading.abort();
    reading = new AbortController();
    remember();
    say("");
    draw();
    by("none").hidden = false;
    text(by("none"), "A versioned store is read key by key: enter a key.");
  } else if (live) watch();
  else load();
}

by("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});
by("store").addEventListener("change", () => {
  by("text").value = "";
  by("since").value = "";
  sorted = { column: "", down: false };
  choose();
});
by("watch").addEventListener("click", () => {
  if (watched) {
    stop();
    draw();
  } else if (store()) watch();
});
by("more").addEventListener("click", () => {
  limit = Math.min(limit * MORE, ROWS_MAX);
  if (watched) reload();
  else load();
});
setInterval(() => document.querySelector("tr.changed") && soon(draw), FLASH_MS);
look();
