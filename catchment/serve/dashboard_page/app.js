// The dashboard: shows each overview that the server sends, and asks for the view that a person has chosen.
"use strict";

const STATUSES = { early: "early", on_time: "on time", exact: "exact", final: "final", suspended: "suspended" };
// The columns that the engine adds to those of a view.
const ENGINE = ["window_start", "window_end", "bound", "published_at", "missing_sites", "missing_sources", "revision", "coverage", "status"];
const SVG = "http://www.w3.org/2000/svg";
const by = id => document.getElementById(id);
let chosen = null;
let shownKey = "";

// --- formats ---------------------------------------------------------------------------------------------------

const number = (value, digits = 0) => Number(value).toLocaleString("en", { maximumFractionDigits: digits });

function bytes(count) {
  let unit = 0, value = Number(count);
  while (Math.abs(value) >= 1000 && unit < 4) { value /= 1000; unit += 1; }
  return `${number(value, unit ? 1 : 0)} ${["B", "KB", "MB", "GB", "TB"][unit]}`;
}

function age(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 90) return `${number(seconds)} s`;
  if (seconds < 5400) return `${number(seconds / 60)} min`;
  return seconds < 172800 ? `${number(seconds / 3600, 1)} h` : `${number(seconds / 86400, 1)} d`;
}

const instant = text => text === null || text === undefined ? "-" : String(text).slice(0, 19).replace("T", " ");
const percent = share => `${number(100 * share, 1)}%`;

function cell(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "number") return number(value, Math.abs(value) < 1000 ? 3 : 0);
  if (typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value)) return instant(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// --- elements --------------------------------------------------------------------------------------------------

function element(name, text = null, attributes = {}, space = "http://www.w3.org/1999/xhtml") {
  const made = document.createElementNS(space, name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
const drawing = (name, text, attributes) => element(name, text, attributes, SVG);

// columns: [[heading, class]]; rows: arrays of texts or elements.
function fill(id, columns, rows) {
  const head = element("tr");
  head.append(...columns.map(([name, kind]) => element("th", name, { scope: "col", class: kind ?? "" })));
  const body = rows.map(row => {
    const line = element("tr");
    row.forEach((content, place) => {
      const made = element("td", null, { class: columns[place][1] ?? "" });
      made.append(content);
      line.append(made);
    });
    return line;
  });
  const caption = by(id).querySelector("caption");
  by(id).replaceChildren(...(caption ? [caption] : []), head, ...body);
}

// --- sites and links -------------------------------------------------------------------------------------------

function place(overview) {
  // Layers from left to right by the number of links to the center, which is at the right.
  const next = Object.fromEntries(overview.links.map(l => [l.from, l.to]));
  const depth = name => { let steps = 0; for (let at = name; next[at] !== undefined && steps < 50; at = next[at]) steps += 1; return steps; };
  const linked = overview.sites.filter(s => s.is_center || next[s.name] !== undefined);
  const deepest = Math.max(0, ...linked.map(s => depth(s.name)));
  const layers = new Map();
  for (const site of linked) layers.set(depth(site.name), [...(layers.get(depth(site.name)) ?? []), site]);
  const tallest = Math.max(1, ...[...layers.values()].map(l => l.length));
  const height = Math.max(150, 74 * tallest + 20), width = 1000;
  const at = {};
  for (const [layer, sites] of layers)
    sites.forEach((site, i) => {
      at[site.name] = { x: 110 + (width - 220) * (deepest - layer) / Math.max(1, deepest), y: height * (i + 1) / (sites.length + 1), site };
    });
  return { at, width, height };
}

const isAway = state => ["silent", "stopped", "link down", "never started", "failed"].includes(state);

function drawMap(overview) {
  const { at, width, height } = place(overview);
  const drawn = [];
  for (const link of overview.links) {
    const from = at[link.from], to = at[link.to];
    if (!from || !to) continue;
    const use = link.capacity_bytes_per_s ? link.bytes_per_s / link.capacity_bytes_per_s : 0;
    drawn.push(drawing("line", null, {
      x1: from.x + 60, y1: from.y, x2: to.x - 60, y2: to.y, "stroke-width": 1.5 + 8 * Math.min(1, use),
      class: link.state === "up" || link.state === "finished" ? "link" : "link away" }));
    const capacity = link.capacity_bytes_per_s ? ` of ${bytes(link.capacity_bytes_per_s)}/s` : "";
    const waiting = link.queued_bytes ? `, ${bytes(link.queued_bytes)} wait` : "";
    const x = from.x + 60 + (to.x - from.x - 120) * 0.4, y = from.y + (to.y - from.y) * 0.4 - 7;
    const flow = link.state === "up" ? `${bytes(link.bytes_per_s)}/s${capacity}` : link.state === "finished" ? "done" : "nothing comes";
    drawn.push(drawing("text", flow + waiting, { x, y, class: "small", "text-anchor": "middle" }));
  }
  for (const { x, y, site } of Object.values(at)) {
    drawn.push(drawing("rect", null, { x: x - 60, y: y - 22, width: 120, height: 44, rx: 7, class: isAway(site.state) ? "node away" : "node" }));
    drawn.push(drawing("text", site.name, { x, y: y - 3, "text-anchor": "middle" }));
    const said = isAway(site.state) ? siteState(site) : site.is_center ? "center" : `${number(site.rows_per_s)} rows/s`;
    drawn.push(drawing("text", said, { x, y: y + 14, class: "small", "text-anchor": "middle" }));
  }
  by("map").setAttribute("viewBox", `0 0 ${width} ${height}`);
  by("map").replaceChildren(...drawn);
}

const siteState = site => site.state === "silent" ? `silent for ${age(site.age_s)}` : site.state;

function showSites(overview) {
  const rows = overview.sites.filter(s => !s.is_center || s.rows).map(site => {
    const shed = Object.entries(site.shedding).map(([name, s]) => `${name}: load ${number(s.load, 2)}, owes ${number(s.owed_batches)} batches`).join("; ");
    const notes = [site.last_error && isAway(site.state) ? site.last_error : "", shed,
      site.quarantined ? `${number(site.quarantined)} in quarantine` : "",
      site.implausible_times ? `${number(site.implausible_times)} implausible times` : ""].filter(Boolean).join("; ");
    return [site.name, element("span", siteState(site), { class: isAway(site.state) ? "bad" : "" }), number(site.rows),
      number(site.rows_per_s), instant(site.newest_event_us && new Date(site.newest_event_us / 1000).toISOString()),
      bytes(site.bytes_sent), number(site.pending_rows), notes || "-"];
  });
  fill("sites", [["site"], ["state", "text"], ["records", "wide"], ["per second"], ["newest event", "wide"], ["sent"], ["waiting", "wide"], ["remarks", "text"]], rows);
}

// --- views -----------------------------------------------------------------------------------------------------

function strip(windows) {
  const made = element("span", null, { class: "strip", role: "img", "aria-label": `${windows.length} newest windows` });
  for (const w of windows)
    made.append(element("i", null, { class: w.status, title: `${instant(w.start)}: ${STATUSES[w.status] ?? w.status}, revision ${w.rev}, ${percent(w.coverage)} of records` }));
  return made;
}

function showViews(overview) {
  const rows = overview.views.map(view => {
    const name = element("button", view.name, { type: "button" });
    name.addEventListener("click", () => choose(view.name));
    const newest = view.newest;
    const missing = newest && newest.missing_sites.length ? `without ${newest.missing_sites.join(", ")}` : "";
    return [name, newest ? instant(newest.window_start) : "no window yet",
      newest ? STATUSES[newest.status] ?? newest.status : "-",
      element("span", newest ? percent(newest.coverage) : "-", { class: newest && newest.coverage < 1 ? "warn" : "" }),
      strip(view.windows), missing || (view.waits_for ? `next waits for ${view.waits_for}` : "-")];
  });
  fill("views", [["view"], ["newest window"], ["status", "text"], ["coverage", "wide"], ["windows", "text wide"], ["remarks", "text"]], rows);
  by("keys").replaceChildren(...Object.entries(STATUSES).flatMap(([status, text]) => [element("i", null, { class: status }), text]));
}

async function choose(view) {
  chosen = view;
  shownKey = "";
  by("detail").hidden = false;
  by("detail-head").textContent = view;
  await showChosen();
  by("detail").scrollIntoView({ behavior: "smooth" });
}

async function showChosen() {
  const answer = await fetch(`api/views/${encodeURIComponent(chosen)}`);
  if (!answer.ok) return;
  const view = await answer.json();
  by("plan").textContent = view.plan ?? "this view does not run any more";
  showRows(view);
  const changes = view.windows.flatMap(w => w.history.map(h => ({ start: w.window_start, ...h })));
  changes.sort((a, b) => a.published_at < b.published_at ? 1 : -1);
  fill("revisions", [["window"], ["revision"], ["status", "text"], ["coverage"], ["why", "text"], ["published", "wide"]],
    changes.slice(0, 30).map(c => [instant(c.start), cell(c.revision), STATUSES[c.status] ?? c.status, percent(c.coverage), c.reason, instant(c.published_at)]));
}

// Of a whole result, the columns of the view itself; of any other answer, all.
const ownColumns = names => ENGINE.every(n => names.includes(n)) ? names.filter(n => !ENGINE.includes(n)) : names;

function showRows(view) {
  if (!view.rows.length) { fill("rows", [["nothing published yet"]], []); return; }
  const newest = view.rows.at(-1).window_start;
  const rows = view.rows.filter(r => r.window_start === newest);
  const names = ownColumns(Object.keys(rows[0])).filter(n => !rows.every(r => r[n] === r.window_start));
  rows.sort((a, b) => { const n = names.find(n => a[n] !== b[n]); return n === undefined ? 0 : a[n] < b[n] ? -1 : 1; });
  const missing = rows[0].missing_sites.length ? `, without ${rows[0].missing_sites.join(", ")}` : "";
  by("detail-about").textContent = `window ${instant(newest)}: ${rows.length} rows, ${STATUSES[rows[0].status] ?? rows[0].status}${missing}`;
  const bounded = (row, name) => {
    const error = row.bound?.[name];
    return error ? `${cell(row[name])} ±${percent(error)}` : cell(row[name]);
  };
  fill("rows", names.map(n => [n]), rows.slice(0, 50).map(r => names.map(n => bounded(r, n))));
}

// --- asking and changing ---------------------------------------------------------------------------------------

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  return answer.json();
}

by("ask").addEventListener("submit", async event => {
  event.preventDefault();
  const answer = await post("api/sql", { statement: by("statement").value });
  by("ask-error").textContent = answer.error ? [answer.error, answer.hint].filter(Boolean).join("; ") : "";
  if (answer.error) { by("answer").replaceChildren(); return; }
  const names = ownColumns(answer.columns);
  fill("answer", names.map(n => [n]), answer.rows.map(r => names.map(n => cell(r[n]))));
});
by("statement").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) by("ask").requestSubmit();
});
by("submit").addEventListener("submit", async event => {
  event.preventDefault();
  said(await post("api/submit", { sql: by("definition").value }), a => `running: ${a.queries.map(q => q.query).join(", ")}`);
});
by("drop").addEventListener("submit", async event => {
  event.preventDefault();
  said(await post("api/drop", { view: by("dropped").value }), a => `${a.dropped} is dropped; its answers are kept`);
});
function said(answer, tell) {
  by("change-said").textContent = answer.error ? [answer.error, answer.hint].filter(Boolean).join("; ") : tell(answer);
}

// --- the overview ----------------------------------------------------------------------------------------------

function show(overview) {
  document.title = `${overview.project}: catchment`;
  by("project").textContent = overview.project;
  const away = overview.sites.filter(s => !s.is_center && isAway(s.state)).map(s => `${s.name} ${siteState(s)}`);
  const center = overview.center_age_s === null ? "the center has not started" : overview.is_center_silent ? `the center is silent for ${age(overview.center_age_s)}` : "";
  const refused = Object.entries(overview.refused).map(([reason, count]) => `${cell(count)} refused: ${reason}`);
  const troubles = [center, ...away, ...refused].filter(Boolean);
  by("health").textContent = troubles.length ? troubles.join("; ") : "all sites are heard";
  by("health").className = troubles.length ? "bad" : "dim";
  drawMap(overview);
  showSites(overview);
  showViews(overview);
  const names = overview.views.map(v => v.name);
  if (by("dropped").options.length !== names.length) by("dropped").replaceChildren(...names.map(n => element("option", n)));
  if (!by("statement").value && names.length) by("statement").value = `SELECT * FROM ${names[0]} ORDER BY window_start DESC LIMIT 10`;
  const key = JSON.stringify(overview.views.find(v => v.name === chosen)?.newest ?? null);
  if (chosen !== null && key !== shownKey) { shownKey = key; showChosen(); }
}

async function begin() {
  const overview = await (await fetch("api/overview")).json();
  by("change").hidden = !overview.may_change;
  show(overview);
  const events = new EventSource("api/events");
  events.onmessage = event => show(JSON.parse(event.data));
  events.onerror = () => { by("health").textContent = "the dashboard does not answer; trying again"; by("health").className = "bad"; };
}
begin();
