// The page of one application: looks every two seconds, draws what has changed. Only textContent, never HTML.
"use strict";

const EVERY_MS = 2000;
const HISTORY = 150; // five minutes
const SVG = "http://www.w3.org/2000/svg";
const history = { rate: [], lag: [], memory: [] };
let loadedAt = 0;
let drawnTopology = "";
let edges = new Map();
let timer = 0;

// -- words

const rate = (value) => (value < 10 ? small : number).format(value);
const bytes = (value) => (value >= 2 ** 30 ? `${small.format(value / 2 ** 30)} GiB` : `${number.format(value / 2 ** 20)} MiB`);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  if (seconds < 1) return `${number.format(seconds * 1000)} ms`;
  if (seconds < 60) return `${small.format(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// -- elements

function shape(name, attributes, parent, value) {
  const element = document.createElementNS(SVG, name);
  for (const [key, given] of Object.entries(attributes)) element.setAttribute(key, given);
  if (value !== undefined) element.textContent = value;
  parent.append(element);
  return element;
}

// Shows the number of rows of a table; a long one is closed until a click opens it.
function fold(name, rows) {
  const box = by(`${name}-box`);
  text(by(`${name}-count`), String(rows));
  if (!box.dataset.seen) box.open = rows <= (innerWidth <= 640 ? 8 : 32);
  box.dataset.seen = "yes";
}

function badge(cell, state) {
  let found = cell.firstElementChild;
  if (!found) cell.append((found = make("span")));
  found.className = `badge ${tone(state)}`;
  text(found, state);
}

function figure(cell, value) {
  cell.classList.add("n");
  text(cell, value);
}

// -- what is shown

function show({ status, topology, sources, nodes, edges: flows, functions, dead_letters: letters }) {
  by("main").hidden = false;
  document.title = `${status.application_id}: ${status.state}`;
  text(by("application"), status.application_id);
  text(by("state"), status.state);
  by("state").className = `badge ${tone(status.state)}`;
  by("paused").hidden = !status.paused;
  text(by("version"), `Penstock ${status.version}, ${status.processing_guarantee}`);
  const memory = status.totals.rss_bytes + status.supervisor.rss_bytes;
  for (const [name, value] of [["rate", status.totals.records_per_second], ["lag", status.totals.lag], ["memory", memory]]) {
    history[name].push(value);
    if (history[name].length > HISTORY) history[name].shift();
  }
  showFigures(status, memory, letters);
  showErrors(status);
  showLetters(letters);
  showThreads(status.threads);
  showTasks(status.threads);
  showSinks(status.threads);
  showCheckpoints(status.threads);
  showLag(status.threads);
  if (topology) showTopology(topology, sources, nodes, flows);
  if (topology) showStores(topology);
  showFunctions(functions);
  showHot(nodes, sources);
  showButtons(status);
}

function showFigures(status, memory, letters) {
  const totals = status.totals;
  const budget = status.memory_budget_bytes;
  const restoring = totals.restore_remaining > 0;
  const figures = [
    ["Records/s", rate(totals.records_per_second), history.rate],
    ["Lag, records", count(totals.lag), history.lag],
    [budget ? `Memory (${bytes(budget)})` : "Memory", bytes(memory), history.memory, budget],
    ["Tasks", `${totals.tasks}${totals.standby_tasks ? ` + ${totals.standby_tasks} standby` : ""}`, null],
    ["To restore", restoring ? count(totals.restore_remaining) : "nothing", null],
    ["Errors", count(status.errors_total), null],
    ["Dead letters", count(letters.reduce((sum, letter) => sum + letter.count, 0)), null],
  ];
  const place = by("figures");
  figures.forEach(([label, value, values, most], index) => {
    let box = place.children[index];
    if (!box) {
      box = make("div", "figure");
      box.append(make("div", "label", label), make("div", "value"));
      if (values) shape("polyline", { class: "spark" }, shape("svg", { viewBox: "0 0 150 24", preserveAspectRatio: "none", "aria-hidden": "true" }, box));
      place.append(box);
    }
    text(box.children[0], label);
    text(box.children[1], value);
    if (values) box.querySelector("polyline").setAttribute("points", line(values, most));
  });
}

function line(values, most) {
  const top = Math.max(...values, most || 1);
  return values.map((value, index) => `${index + HISTORY - values.length},${(23 - (22 * value) / top).toFixed(1)}`).join(" ");
}

function showErrors(status) {
  const errors = [...status.errors].reverse();
  if (status.reason) errors.unshift({ time_ms: null, logger: "", message: status.reason });
  by("errors-section").hidden = errors.length === 0;
  const list = by("errors");
  const key = JSON.stringify(errors);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...errors.map((error) => {
    const item = make("li");
    if (error.time_ms) item.append(make("time", "", new Date(error.time_ms).toLocaleTimeString()));
    const message = make("pre", "", error.message);
    message.tabIndex = 0;
    item.append(make("span", "hint", error.logger), message);
    return item;
  }));
}

function showLetters(letters) {
  by("letters-section").hidden = letters.length === 0;
  fill(by("letters"), letters, (letter) => `${letter.node} ${letter.exception} ${letter.topic}`, (letter, cells) => {
    text(cells[0], letter.node);
    text(cells[1], letter.exception);
    text(cells[2], letter.topic);
    figure(cells[3], count(letter.count));
  });
}

function showFunctions(functions) {
  const found = Object.entries(functions).sort(([a], [b]) => a.localeCompare(b));
  by("functions-section").hidden = found.length === 0;
  fill(by("functions"), found, ([name]) => name, ([name, called], cells) => {
    text(cells[0], name);
    figure(cells[1], rate(called.rate));
    figure(cells[2], count(called.in_flight));
    figure(cells[3], count(called.waiting));
    figure(cells[4], brief(called.p50 / 1000));
    figure(cells[5], brief(called.p99 / 1000));
    figure(cells[6], count(called.retries));
  });
}

const HOTTEST = 8;

function showHot(nodes, sources) {
  const found = Object.entries(nodes).filter(([, node]) => node.time_ratio > 0);
  found.sort(([, a], [, b]) => b.time_ratio - a.time_ratio);
  by("hot-section").hidden = found.length === 0;
  fill(by("hot"), found.slice(0, HOTTEST), ([name]) => name, ([name, node], cells) => {
    const records = name in sources ? sources[name].rate : node.rate;
    text(cells[0], name);
    figure(cells[1], rate(records));
    figure(cells[2], records ? brief(node.time_ratio / records) : "–");
    figure(cells[3], `${small.format(100 * node.time_ratio)} %`);
    bar(cells[4], node.time_ratio, found[0][1].time_ratio, `Time of ${name}, as a share of the hottest`);
  });
}

const brief = (seconds) => (seconds < 0.001 ? `${small.format(seconds * 1e6)} µs` : `${small.format(seconds * 1e3)} ms`);

function bar(cell, value, most, label) {
  cell.className = "bare";
  if (!cell.firstChild) cell.append(make("progress"));
  cell.firstChild.max = most;
  cell.firstChild.value = value;
  cell.firstChild.setAttribute("aria-label", label);
}

function showThreads(threads) {
  fill(by("threads"), threads, (thread) => thread.number, (thread, cells) => {
    text(cells[0], `StreamThread-${thread.number} (${thread.pid})`);
    badge(cells[1], thread.state);
    figure(cells[2], rate(thread.records_per_second));
    figure(cells[3], count(thread.lag));
    const share = thread.memory_share_bytes ? ` of ${bytes(thread.memory_share_bytes)}` : "";
    figure(cells[4], bytes(thread.rss_bytes) + share);
    cells[4].classList.toggle("bad", thread.over_memory_share);
    figure(cells[5], `${number.format(thread.cpu_percent)} %`);
    figure(cells[6], duration(thread.uptime_seconds));
    figure(cells[7], count(thread.restarts));
    cells[8].className = "n bare";
    if (!cells[8].firstChild) {
      const button = make("button", "restart", "Restart");
      button.type = "button";
      button.setAttribute("aria-label", `Restart StreamThread-${thread.number}`);
      button.addEventListener("click", () => {
        if (confirm(`Restart StreamThread-${thread.number}? It commits, closes, and another process gets its tasks.`))
          act(`/threads/${thread.number}/restart`, button);
      });
      cells[8].append(button);
    }
  });
}

const order = (task) => task.task_id.split("_").map(Number);
const inOrder = (a, b) => order(a)[0] - order(b)[0] || order(a)[1] - order(b)[1];

function showTasks(threads) {
  const tasks = threads.flatMap((thread) => thread.tasks.map((task) => ({ ...task, thread: thread.number })));
  const calm = (task) => Number(task.state === "RUNNING"); // what is not as it should be comes first
  fold("tasks", tasks.length);
  tasks.sort((a, b) => calm(a) - calm(b) || a.kind.localeCompare(b.kind) || inOrder(a, b) || a.thread - b.thread);
  fill(by("tasks"), tasks, (task) => `${task.kind} ${task.task_id} ${task.thread}`, (task, cells) => {
    text(cells[0], task.kind === "active" ? task.task_id : `${task.task_id} standby`);
    badge(cells[1], task.state);
    text(cells[2], `StreamThread-${task.thread}`);
    figure(cells[3], task.kind === "active" ? count(task.lag) : "–");
    restore(cells[4], task);
  });
}

function restore(cell, task) {
  if (!cell.firstChild) cell.append(make("progress"), make("span"));
  const [bar, words] = cell.children;
  bar.hidden = !task.restore_remaining;
  bar.max = task.restore_total || 1;
  bar.value = task.restore_total - task.restore_remaining;
  bar.setAttribute("aria-label", `Restore of task ${task.task_id}`);
  const rest = task.restore_eta_seconds === null ? "" : `, ${duration(task.restore_eta_seconds)} to go`;
  const done = task.kind === "active" ? (task.state === "RUNNING" ? "done" : "waiting") : `follows, ${rate(task.restore_rate)}/s`;
  text(words, task.restore_remaining ? ` ${count(task.restore_remaining)} records${rest}` : done);
}

function showSinks(threads) {
  const rows = threads.flatMap((thread) => thread.tasks.flatMap((task) => task.sinks.map((sink) => ({ ...sink, task }))));
  const input = (task) => task.partitions.map((row) => `${row.topic}-${row.partition}`).join(", ");
  by("sinks-section").hidden = rows.length === 0;
  if (rows.length) fold("sinks", rows.length);
  rows.sort((a, b) => a.name.localeCompare(b.name) || inOrder(a.task, b.task));
  fill(by("sinks"), rows, (row) => `${row.name} ${row.task.task_id}`, (row, cells) => {
    text(cells[0], row.name);
    text(cells[1], row.task.task_id);
    text(cells[2], input(row.task));
    figure(cells[3], count(row.lag));
    figure(cells[4], rate(row.rows_per_second));
    figure(cells[5], brief(row.batch_ms / 1000));
    figure(cells[6], count(row.retries));
  });
}

function showCheckpoints(threads) {
  const rows = threads.flatMap((thread) => thread.tasks.filter((task) => task.checkpoint).map((task) => ({ ...task.checkpoint, task, thread: thread.number })));
  by("checkpoints-section").hidden = rows.length === 0;
  if (rows.length) fold("checkpoints", rows.length);
  rows.sort((a, b) => inOrder(a.task, b.task) || a.thread - b.thread);
  fill(by("checkpoints"), rows, (row) => `${row.task.kind} ${row.task.task_id} ${row.thread}`, (row, cells) => {
    const taken = row.uploads > 0;
    text(cells[0], row.task.kind === "active" ? row.task.task_id : `${row.task.task_id} standby`);
    figure(cells[1], taken ? duration(row.age_seconds) : "none yet");
    figure(cells[2], taken ? bytes(row.bytes) : "–");
    figure(cells[3], taken ? duration(row.upload_seconds) : "–");
    figure(cells[4], count(row.failures));
    loading(cells[5], row);
  });
}

function loading(cell, row) {
  if (!cell.firstChild) cell.append(make("progress"), make("span"));
  const [bar, words] = cell.children;
  bar.hidden = row.loading_bytes === null;
  bar.max = row.loading_total_bytes || 1;
  bar.value = row.loading_bytes || 0;
  bar.setAttribute("aria-label", `Load of the checkpoint of task ${row.task.task_id}`);
  text(words, row.loading_bytes === null ? "–" : ` ${bytes(row.loading_bytes)} of ${bytes(row.loading_total_bytes)}`);
}

function showLag(threads) {
  const rows = threads.flatMap((thread) => thread.tasks.flatMap((task) => (task.kind === "active" ? task.partitions : [])));
  rows.sort((a, b) => (b.lag || 0) - (a.lag || 0) || a.topic.localeCompare(b.topic) || a.partition - b.partition);
  const most = Math.max(...rows.map((row) => row.lag || 0), 1);
  fold("lag", rows.length);
  fill(by("lag"), rows, (row) => `${row.topic} ${row.partition}`, (row, cells) => {
    text(cells[0], `${row.topic}-${row.partition}`);
    figure(cells[1], count(row.lag));
    bar(cells[2], row.lag || 0, most, `Lag of ${row.topic}-${row.partition}, as a share of the longest`);
  });
}

function showStores(topology) {
  const stores = [...topology.stores, ...topology.global_stores.map((name) => ({ name, kind: "global" }))].filter(canBeRead);
  by("stores-section").hidden = stores.length === 0;
  fill(by("stores"), stores, (store) => store.name, (store, cells) => {
    if (!cells[0].firstChild) cells[0].append(Object.assign(make("a", "", store.name), { href: storePath(store.name) }));
    text(cells[1], kindOf(store));
    text(cells[2], store.key_serde || "–");
    text(cells[3], store.value_serde || "–");
  });
}

// -- the topology

function showTopology(topology, sources, nodes, flows) {
  if (drawnTopology !== topology.text) {
    drawnTopology = topology.text;
    edges = new Map();
    by("topology").replaceChildren(...topology.subtopologies.map(draw));
    center();
  }
  const say = (label, pace, age) => label && text(label, pace === undefined ? "" : `${rate(pace)}/s · ${pace ? duration(age / 1000) : "–"}`);
  for (const [name, source] of Object.entries(sources)) say(edges.get(edgeId("", name)), source.rate, source.latency_avg);
  for (const flow of flows) say(edges.get(edgeId(flow.from, flow.to)), flow.rate, nodes[flow.to] ? nodes[flow.to].age : 0);
}

// A graph that is wider than the screen is scrolled to its middle, where most of it is.
function center() {
  for (const box of document.querySelectorAll("#topology figure")) box.scrollLeft = (box.scrollWidth - box.clientWidth) / 2;
}

const edgeId = (from, to) => `${from} → ${to}`;
const WIDE = 210, HIGH = 30, GAP_X = 24, GAP_Y = 44;

// Layers from top to bottom, each node below all that lead to it; topics and stores are nodes too.
function draw(subtopology) {
  const nodes = new Map();
  const links = [];
  const add = (id, label, kind) => nodes.has(id) || nodes.set(id, { id, label, kind, layer: 0 });
  for (const node of subtopology.nodes) add(`node ${node.name}`, node.name, "node");
  for (const node of subtopology.nodes) {
    const id = `node ${node.name}`;
    for (const topic of node.topics) {
      const end = `${node.type} topic ${topic}`;
      add(end, topic, "topic");
      links.push(node.type === "source" ? { from: end, to: id, edge: edgeId("", node.name) } : { from: id, to: end });
    }
    for (const next of node.successors) links.push({ from: id, to: `node ${next}`, edge: edgeId(node.name, next) });
    for (const store of node.stores) {
      add(`store ${store}`, store, "store");
      links.push({ from: id, to: `store ${store}`, keeps: true });
    }
  }
  for (let pass = 0, moved = true; moved && pass <= nodes.size; pass += 1) {
    moved = false;
    for (const link of links) {
      const from = nodes.get(link.from), to = nodes.get(link.to);
      if (to.layer <= from.layer) (to.layer = from.layer + 1), (moved = true);
    }
  }
  return picture(subtopology, [...nodes.values()], links, nodes);
}

function picture(subtopology, all, links, nodes) {
  const layers = [];
  for (const node of all) (layers[node.layer] ||= []).push(node);
  const most = Math.max(...layers.map((layer) => layer.length));
  const width = most * (WIDE + GAP_X) + GAP_X, height = layers.length * (HIGH + GAP_Y) - GAP_Y + 8;
  for (const layer of layers) {
    // Below their parents as far as that goes: fewer lines cross.
    const wish = (node) => {
      const above = links.filter((link) => link.to === node.id).map((link) => nodes.get(link.from).x);
      return above.length ? above.reduce((sum, x) => sum + x, 0) / above.length : 0;
    };
    const wishes = new Map(layer.map((node) => [node, wish(node)]));
    layer.sort((a, b) => wishes.get(a) - wishes.get(b));
    layer.forEach((node, index) => {
      node.x = width / 2 + (index - (layer.length - 1) / 2) * (WIDE + GAP_X);
      node.y = node.layer * (HIGH + GAP_Y) + HIGH / 2 + 4;
    });
  }
  const box = make("figure");
  box.tabIndex = 0;
  box.append(make("figcaption", "", `Sub-topology ${subtopology.id}`));
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Sub-topology ${subtopology.id}: ${all.map((node) => node.label).join(", ")}` }, box);
  const labels = [];
  for (const link of links) link.parts = links.some((other) => other !== link && other.from === link.from);
  for (const link of links) labels.push(connect(svg, nodes.get(link.from), nodes.get(link.to), link));
  for (const node of all) {
    const group = shape("g", { class: `node ${node.kind}` }, svg);
    shape("rect", { x: node.x - WIDE / 2, y: node.y - HIGH / 2, width: WIDE, height: HIGH, rx: node.kind === "topic" ? 15 : 4 }, group);
    shape("text", { x: node.x, y: node.y + 4, "text-anchor": "middle" }, group, shortened(node.label));
    shape("title", {}, group, `${node.kind} ${node.label}`);
  }
  for (const label of labels) if (label) svg.append(label); // above all lines
  return box;
}

const shortened = (label) => (label.length <= 26 ? label : `${label.slice(0, 11)}…${label.slice(-14)}`);

function connect(svg, from, to, link) {
  const top = from.y + HIGH / 2, bottom = to.y - HIGH / 2, bend = (top + bottom) / 2;
  shape("path", { class: `edge${link.keeps ? " keeps" : ""}`, d: `M${from.x} ${top} C${from.x} ${bend} ${to.x} ${bend} ${to.x} ${bottom - 5}` }, svg);
  shape("path", { class: "head", d: `M${to.x - 4} ${bottom - 7} L${to.x + 4} ${bottom - 7} L${to.x} ${bottom} Z` }, svg);
  if (!link.edge || edges.has(link.edge)) return null;
  // Beside the end that has this one line only, and on the side where the line is not.
  const [x, y] = link.parts ? [to.x, bottom - 9] : [from.x, top + 15];
  const left = link.parts ? to.x < from.x : to.x > from.x;
  const where = from.x === to.x ? { x: x + 8, y: bend + 4 } : { x: x + (left ? -8 : 8), y, "text-anchor": left ? "end" : "start" };
  const label = shape("text", { class: "figuretext", ...where }, svg, "");
  edges.set(link.edge, label);
  return label;
}

// -- asking and doing

async function act(path, button) {
  button.disabled = true;
  try {
    await ask(path, { method: "POST" });
    say("");
  } catch (error) {
    say(error.message);
    by("message").dataset.of = "act"; // it stays when the next look goes well
  }
  button.disabled = false;
  look();
}

function showButtons(status) {
  const allowed = token !== "" && ["RUNNING", "REBALANCING"].includes(status.state);
  by("pause").disabled = !allowed || status.paused;
  by("resume").disabled = !allowed || !status.paused;
  for (const button of document.querySelectorAll("button.restart")) button.disabled = !allowed;
  for (const button of [by("pause"), by("resume"), ...document.querySelectorAll("button.restart")])
    button.title = token ? "" : "Enter the token first";
}

let looking = false;
async function look() {
  clearTimeout(timer);
  if (!looking && !document.hidden) {
    looking = true;
    try {
      show(await ask("/dashboard.json"));
      loadedAt = Date.now();
      if (by("message").dataset.of === "look") say("");
    } catch (error) {
      say(error instanceof TypeError ? "The application does not answer: it has ended, or the network is gone." : error.message);
      by("message").dataset.of = "look";
      text(by("state"), "NO ANSWER");
      by("state").className = "badge";
      document.title = document.title.replace(/:.*/, ": NO ANSWER");
    }
    looking = false;
  }
  timer = setTimeout(look, EVERY_MS);
}

function showAge() {
  const seconds = Math.round((Date.now() - loadedAt) / 1000);
  const stale = loadedAt !== 0 && seconds > 6;
  by("age").className = stale ? "stale" : "";
  text(by("age"), loadedAt === 0 ? "not loaded yet" : stale ? `as of ${seconds} s ago` : "live");
}

by("pause").addEventListener("click", () => {
  if (confirm("Pause processing on this host?")) act("/pause", by("pause"));
});
by("resume").addEventListener("click", () => act("/resume", by("resume")));
document.addEventListener("visibilitychange", look);
window.addEventListener("resize", center);
setInterval(showAge, 1000);
look();
