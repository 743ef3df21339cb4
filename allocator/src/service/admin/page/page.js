// The allocator's page. It reads; nothing on it changes anything.
//
// Names of hosts and reasons come from the network's files and from hosts: they enter the document
// as text only.

const SVG = "http://www.w3.org/2000/svg";
const WINDOW_S = 900;
const $ = (id) => document.getElementById(id);

let newest = null;
let heardAt = 0;
let history = [];
let recent = []; // overviews of the last minute, for figures over time
let drawnEpoch = null;
let chosenLink = null;
let chosenAsked = false;

// ---- text

function set(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function rate(bps) {
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (bps >= size) return `${(bps / size).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(bps)} bit/s`;
}

const count = (n) => Math.round(n).toLocaleString("en");
const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 2 : 1)} %`;

function seconds(s) {
  if (s === null || s === undefined) return "–";
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    if (s >= size) return `${+(s / size).toPrecision(3)} ${unit}`;
  }
  return "< 1 µs";
}

function distance(gap) {
  if (gap === null || gap === undefined) return "–";
  if (gap < 1e-6) return "< 0.0001 %";
  return gap < 0.1 ? `${(100 * gap).toPrecision(2)} %` : `${count(100 * gap)} %`;
}

// ---- elements

function cell(content, className) {
  const td = document.createElement("td");
  if (className) td.className = className;
  if (content instanceof Node) td.append(content);
  else td.textContent = content;
  return td;
}

function rows(id, list, none) {
  const body = $(id);
  const made = list.map((cells) => {
    const tr = document.createElement("tr");
    tr.append(...cells);
    return tr;
  });
  if (made.length === 0) {
    const td = cell(none, "none");
    td.colSpan = 4;
    const tr = document.createElement("tr");
    tr.append(td);
    made.push(tr);
  }
  // A button that has the focus keeps it when its row is drawn anew.
  const held = body.contains(document.activeElement) ? document.activeElement.dataset.link : null;
  body.replaceChildren(...made);
  if (held) body.querySelector(`[data-link="${CSS.escape(held)}"]`)?.focus();
}

function svg(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Ten steps of utilisation; the last one is a link that is as full as its derating lets it be.
const step = (load) => (load <= 0 ? 0 : Math.min(9, Math.max(1, Math.ceil(load * 10.05) - 1)));

function meter(load) {
  const outer = document.createElement("span");
  outer.className = "meter";
  const inner = document.createElement("i");
  inner.className = `h${step(load)}`;
  inner.style.width = `${Math.min(100, 100 * load)}%`;
  outer.append(inner);
  return outer;
}

// ---- charts

function lineChart(id, points, label) {
  const chart = $(id);
  const [width, height, left, bottom, top] = [chart.clientWidth || 600, 128, 4, 18, 14];
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const values = points.filter(([, y]) => y !== null);
  const sorted = values.map(([, y]) => y).sort((a, b) => a - b);
  const most = Math.max(sorted[sorted.length - 1] ?? 0, 1e-9);
  // A single peak, as at a start, must not flatten all the rest: it is cut off, and its value is written.
  const usual = sorted[Math.floor(0.98 * (sorted.length - 1))] ?? most;
  const full = most > 3 * usual && usual > 0 ? 1.5 * usual : most;
  const span = values.length > 0 ? values[0][0] : 0;
  const shown = [60, 300, WINDOW_S].find((window) => span <= window) ?? WINDOW_S;
  const x = (ago) => left + (width - 2 * left) * (1 - Math.min(ago, shown) / shown);
  const y = (value) => height - bottom - (height - bottom - top) * Math.min(1, value / full);
  const parts = [svg("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom })];
  for (const ago of [shown, (2 * shown) / 3, shown / 3]) {
    parts.push(svg("line", { class: "grid", x1: x(ago), x2: x(ago), y1: top, y2: height - bottom }));
    parts.push(svg("text", { x: x(ago) + 3, y: height - 5 }, ago < 300 ? `−${ago} s` : `−${Math.round(ago / 60)} min`));
  }
  parts.push(svg("text", { x: width - left, y: height - 5, "text-anchor": "end" }, "now"));
  if (values.length > 0) {
    const path = values.map(([ago, value], i) => `${i ? "L" : "M"}${x(ago).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const [first, last] = [values[0][0], values[values.length - 1][0]];
    parts.push(svg("path", { class: "area", d: `${path}L${x(last).toFixed(1)} ${height - bottom}L${x(first).toFixed(1)} ${height - bottom}z` }));
    parts.push(svg("path", { class: "line", d: path }));
    parts.push(svg("text", { x: width - left, y: 11, "text-anchor": "end" }, `most ${label(most)}`));
  }
  chart.replaceChildren(...parts);
}

// Differences of cumulative counts, of the last minute where something happened in it.
function window60(key) {
  const now = newest[key];
  const before = recent.length > 1 ? recent[0][key] : null;
  const total = (buckets) => (buckets.length ? buckets[buckets.length - 1][1] : 0);
  const useful = before && total(now) > total(before);
  let last = 0;
  const buckets = now.map(([bound, sum], i) => {
    const here = sum - (useful ? before[i][1] : 0);
    const own = here - last;
    last = here;
    return [bound, own];
  });
  return { buckets, lastMinute: Boolean(useful), total: last };
}

function quantile(buckets, total, q) {
  let sum = 0;
  for (const [bound, own] of buckets) {
    sum += own;
    if (total > 0 && sum >= q * total) return bound;
  }
  return null;
}

function barChart(id, { buckets, total }) {
  const chart = $(id);
  const [width, height, bottom, top] = [chart.clientWidth || 600, 128, 18, 14];
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const most = Math.max(...buckets.map(([, own]) => own), 1);
  const pitch = width / Math.max(buckets.length, 1);
  const parts = [svg("line", { class: "grid", x1: 0, x2: width, y1: height - bottom, y2: height - bottom })];
  buckets.forEach(([bound, own], i) => {
    const tall = (height - bottom - top) * (own / most);
    if (own > 0) {
      const bar = svg("rect", { class: "bar", x: i * pitch + 1, y: height - bottom - Math.max(tall, 1), width: Math.max(pitch - 2, 1), height: Math.max(tall, 1), rx: 2 });
      bar.append(svg("title", {}, `up to ${seconds(bound)}: ${count(own)} (${percent(own / total)})`));
      parts.push(bar);
    }
    if (i % 4 === 0) parts.push(svg("text", { x: (i + 1) * pitch, y: height - 5, "text-anchor": i === 0 ? "start" : i === buckets.length - 1 ? "end" : "middle" }, seconds(bound)));
  });
  chart.replaceChildren(...parts);
}

// ---- the topology

async function drawMap(epoch) {
  drawnEpoch = epoch;
  try {
    const answer = await fetch(`topology.svg?epoch=${encodeURIComponent(epoch)}`);
    if (!answer.ok) throw new Error(String(answer.status));
    const parsed = new DOMParser().parseFromString(await answer.text(), "image/svg+xml");
    const picture = document.importNode(parsed.documentElement, true);
    picture.removeAttribute("width");
    picture.removeAttribute("height");
    picture.setAttribute("aria-hidden", "true");
    $("map").replaceChildren(picture);
    // Heading and legend are the page's own: the picture shows what is between them.
    const [, , width, height] = picture.getAttribute("viewBox").split(" ").map(Number);
    picture.setAttribute("viewBox", `0 56 ${width} ${Math.max(60, height - 56 - 62)}`);
    if (newest) colour(newest);
  } catch {
    drawnEpoch = null; // asked again with the next overview
  }
}

function colour(overview) {
  const loads = new Map(overview.links);
  const racks = new Map(overview.racks.map((rack) => [rack.id, Math.max(rack.up, rack.down)]));
  for (const element of $("map").querySelectorAll("[data-up]")) {
    const { up, down } = element.dataset;
    const load = Math.max(loads.get(Number(up)) ?? 0, loads.get(Number(down)) ?? 0);
    const kind = element.classList.contains("dot") ? "dot" : "cable";
    const failed = element.classList.contains("failed") ? " failed" : "";
    const chosen = chosenLink !== null && (Number(up) === chosenLink || Number(down) === chosenLink) ? " chosen" : "";
    element.setAttribute("class", `${kind} c${step(load)}${failed}${chosen}`);
  }
  for (const element of $("map").querySelectorAll("[data-rack]")) {
    element.setAttribute("class", `trunk c${step(racks.get(Number(element.dataset.rack)) ?? 0)}`);
  }
}

function drawRacks(overview) {
  const many = overview.hosts > 64;
  $("racks-box").hidden = !many;
  if (!many) return;
  $("racks").replaceChildren(...overview.racks.map((rack) => {
    const box = document.createElement("div");
    const name = document.createElement("span");
    name.textContent = rack.name;
    box.title = `${rack.name}: ${rack.sessions} of ${rack.hosts} hosts; fabric ${percent(rack.fabric)}, up ${percent(rack.up)}, down ${percent(rack.down)}`;
    const marks = [rack.fabric, rack.up, rack.down].map((load) => {
      const mark = document.createElement("i");
      mark.className = `h${step(load)}`;
      return mark;
    });
    box.append(name, document.createElement("br"), ...marks);
    return box;
  }));
}

// ---- flows of a link

async function showLink(id) {
  chosenLink = id;
  if (chosenAsked) return; // one question at a time; the next overview asks again
  chosenAsked = true;
  try {
    const answer = await fetch(`links/flows?id=${encodeURIComponent(id)}`);
    if (chosenLink !== id) return;
    if (!answer.ok) {
      chosenLink = null;
      $("chosen").hidden = true;
      $("chosen-hint").hidden = false;
      set("chosen-title", "Flows of a link");
      return;
    }
    const { link, top_flows: flows } = await answer.json();
    $("chosen").hidden = false;
    $("chosen-hint").hidden = true;
    set("chosen-title", `${link.name}: ${rate(link.load_bps)} of ${rate(link.capacity_bps)}, ${count(link.flows)} flows`);
    rows("chosen-flows", flows.map((flow) => [cell(`${flow.from} → ${flow.to}`), cell(String(flow.class), "n"), cell(rate(flow.rate_bps), "n")]), "no flow crosses it");
  } catch {
    // The state at the top says that nothing is heard.
  } finally {
    chosenAsked = false;
  }
  if (newest) colour(newest);
}

$("map").addEventListener("click", (event) => {
  const element = event.target.closest("[data-up]");
  if (!element || !newest) return;
  const loads = new Map(newest.links);
  const [up, down] = [Number(element.dataset.up), Number(element.dataset.down)];
  // The fuller direction; a second click shows the other one.
  const fuller = (loads.get(up) ?? 0) >= (loads.get(down) ?? 0) ? up : down;
  showLink(chosenLink === fuller ? up + down - fuller : fuller);
});

// ---- the whole

function linkButton(link) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = link.name;
  button.dataset.link = String(link.id);
  button.addEventListener("click", () => showLink(link.id));
  return button;
}

function state(overview) {
  const [text, kind] = overview.released
    ? ["released: hosts run plain TCP", "warn"]
    : overview.observe
      ? ["observe: nothing is paced", "warn"]
      : ["active", "good"];
  set("state", text);
  $("state").className = `pill ${kind}`;
}

export function render(overview) {
  newest = overview;
  heardAt = performance.now();
  recent.push(overview);
  while (recent.length > 1 && overview.at_ms - recent[0].at_ms > 60_000) recent.shift();
  state(overview);
  set("version", overview.version);
  set("epoch", overview.epoch);
  set("topology-epoch", `epoch ${overview.topology_epoch}`);
  set("lease", `${overview.lease_ms} ms`);
  set("hosts", `${count(overview.sessions)} of ${count(overview.hosts)}`);
  const absent = overview.hosts - overview.sessions;
  const names = overview.hosts_missing.slice(0, 3).join(", ");
  set("hosts-note", absent === 0 ? "all have a session" : `without a session: ${names}${absent > 3 ? ` and ${count(absent - 3)} more` : ""}`);
  $("hosts-note").title = overview.hosts_missing.join(", ");
  set("flows", count(overview.flows));
  set("flows-note", `${count(overview.flows_left_alone)} left alone, as plain TCP`);
  set("gap", distance(overview.optimality.relative_gap));
  set("gap-note", overview.iteration.settled ? "settled" : "rates move");
  const [fullest] = overview.busiest;
  set("load", fullest ? percent(fullest.load_bps / Math.max(1, fullest.capacity_bps)) : "–");
  set("load-note", overview.links_down > 0 ? `${count(overview.links_down)} links down: ${overview.links_down_names.join(", ")}` : fullest ? `${fullest.name}; no link is down` : "no link is down");
  $("load-note").title = overview.links_down_names.join(", ");

  const first = window60("first_rate_buckets");
  set("first", seconds(quantile(first.buckets, first.total, 0.5)));
  set("first-note", first.total > 0 ? `99 % within ${seconds(quantile(first.buckets, first.total, 0.99))}` : "no flowlet has started");
  set("first-window", `in the allocator, ${first.lastMinute ? "last minute" : "since its start"}`);
  barChart("first-chart", first);
  const iteration = window60("iteration_buckets");
  barChart("iteration-chart", iteration);
  set("iteration-note", `median ${seconds(overview.iteration.p50_us / 1e6)}, 99 % within ${seconds(overview.iteration.p99_us / 1e6)}`);

  drawHistory();
  rows("busiest", overview.busiest.map((link) => {
    const load = link.capacity_bps > 0 ? link.load_bps / link.capacity_bps : 1;
    const share = document.createElement("span");
    share.append(meter(load), document.createTextNode(percent(load)));
    return [cell(linkButton(link)), cell(share, "n"), cell(rate(link.capacity_bps), "n"), cell(count(link.flows), "n")];
  }), "no link carries anything");
  rows("top", overview.top_flows.map((flow) => [cell(flow.from), cell(flow.to), cell(String(flow.class), "n"), cell(rate(flow.rate_bps), "n")]), "no flow has a rate");
  const before = new Map((recent.length > 1 ? recent[0].refusals : overview.refusals).map((r) => [`${r.what} ${r.reason}`, r.count]));
  rows("refusals", overview.refusals.map((r) => [cell(r.what), cell(r.reason), cell(count(r.count - (before.get(`${r.what} ${r.reason}`) ?? 0)), "n"), cell(count(r.count), "n")]), "nothing since the start");
  rows("feeds", overview.external.map((link) => [
    cell(link.name),
    cell(rate(link.load_bps), "n"),
    cell(link.flows > 0 ? `${link.flows} flows, ${rate(link.granted_bps)}` : "–", "n"),
    cell(link.expires_in_ms === null ? "never" : `in ${seconds(link.expires_in_ms / 1e3)}`, "n"),
  ]), "nobody tells of traffic that the allocator does not schedule");
  const more = [
    ...others(overview.links_not_as_told, overview.not_as_told, "links"),
    ...others(overview.hosts_not_as_told, overview.faults, "faults of hosts"),
  ];
  set("check-note", more.length > 0 ? `and ${more.join(", ")}` : "");
  const links = overview.not_as_told.map((link) => [
    cell(link.name),
    cell(checkState(link)),
    cell(rate(link.told_bps), "n"),
    cell(link.carried_bps === null ? "–" : rate(link.carried_bps), "n"),
  ]);
  const hosts = overview.faults.map((faulty) => [cell(faulty.host), cell(faultState(faulty)), cell(""), cell("")]);
  rows("check", [...links, ...hosts], "every link and host is as the allocator was told, as far as daemons tell");
  if (overview.topology_epoch !== drawnEpoch) drawMap(overview.topology_epoch);
  colour(overview);
  drawRacks(overview);
  if (chosenLink !== null) showLink(chosenLink);
}

// The number of those that are not shown, if there are any.
const others = (all, shown, what) => all > shown.length ? [`${count(all - shown.length)} more ${what}`] : [];

const words = (label) => label.replaceAll("_", " ");

const faultState = ({ fault, seen_at: at }) => at === null ? words(fault) : `${words(fault)}; seen at ${at}`;

function checkState({ state, cause, speed_bps: speed, lowered_bps: lowered, by_allowance: byAllowance }) {
  const parts = [words(state)];
  if (cause !== null) parts.push(cause);
  if (speed !== null) parts.push(`its interface has ${rate(speed)}`);
  if (byAllowance) parts.push("an allowance holds packets up");
  if (lowered !== null) parts.push(`lowered to ${rate(lowered)}`);
  return parts.join("; ");
}

function drawHistory() {
  if (history.length === 0) return;
  const now = history[history.length - 1].at_ms;
  const ago = (point) => (now - point.at_ms) / 1e3;
  lineChart("gap-chart", history.map((point) => [ago(point), point.gap]), distance);
  const starts = history.slice(1).map((point, i) => {
    const before = history[i];
    return [ago(point), (1e3 * (point.starts - before.starts)) / Math.max(1, point.at_ms - before.at_ms)];
  });
  lineChart("starts-chart", starts, count);
  if (starts.length > 0) {
    set("starts", `${count(starts[starts.length - 1][1])} /s`);
    const sum = starts.reduce((total, [, value]) => total + value, 0);
    set("starts-note", `${count(sum / starts.length)} /s on average`);
  }
}

function remember(overview) {
  if (history.length > 0 && overview.at_ms - history[history.length - 1].at_ms < 500) return;
  history.push({ at_ms: overview.at_ms, gap: overview.optimality.relative_gap, starts: overview.totals.find(([name]) => name === "starts")[1] });
  while (history.length > 1 && overview.at_ms - history[0].at_ms > WINDOW_S * 1e3) history.shift();
}

function take(overview) {
  if (newest && newest.epoch !== overview.epoch) [history, recent] = [[], []]; // another incarnation
  remember(overview);
  render(overview);
}

// ---- what the service did

function author({ by, uid, address }) {
  if (by === "process") return `user ${uid}`;
  return by === "address" ? address : by;
}

function change(entry) {
  const detail = entry.detail ? JSON.stringify(entry.detail) : "";
  return [new Date(entry.at_ms).toLocaleString(), author(entry.who), `${entry.action} ${detail}`.trim(), entry.result].join(" · ");
}

async function audit() {
  try {
    const answer = await fetch("audit?last=20");
    $("changes").hidden = !answer.ok;
    const { entries } = answer.ok ? await answer.json() : { entries: [] };
    entries.reverse(); // the newest first
    $("audit").replaceChildren(...(entries.length ? entries : [null]).map((entry) => {
      const li = document.createElement("li");
      li.textContent = entry ? change(entry) : "no change since the start";
      if (!entry) li.className = "none";
      return li;
    }));
  } catch {
    // The state at the top says that nothing is heard.
  }
}

// ---- hearing

let polling = null;

function poll() {
  polling ??= setInterval(async () => {
    try {
      const answer = await fetch("overview");
      if (answer.ok) take(await answer.json());
    } catch {
      // Asked again in a second.
    }
  }, 1_000);
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("history", (event) => {
    history = JSON.parse(event.data);
  });
  source.addEventListener("overview", (event) => {
    clearInterval(polling);
    polling = null;
    take(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    poll();
    // Closed for good, as when all places are taken: the page goes on by asking, and tries again.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 15_000);
  });
}

setInterval(() => {
  if (heardAt === 0) return;
  const silent = (performance.now() - heardAt) / 1e3;
  set("age", silent < 2.5 ? "now" : `${Math.round(silent)} s ago`);
  if (silent > 5) {
    set("state", "no answer from the allocator");
    $("state").className = "pill bad";
  }
}, 500);

listen();
audit();
setInterval(audit, 5_000);
