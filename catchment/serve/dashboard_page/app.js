// The dashboard: shows each overview that the server sends, and asks for the view that a person has chosen.
"use strict";

const STATUSES = { early: "early", on_time: "on time", exact: "exact", final: "final", suspended: "suspended" };
// The columns that the engine adds to those of a view.
const ENGINE = ["window_start", "window_end", "bound", "bound_kind", "published_at", "missing_sites", "missing_sources", "revision", "coverage", "status"];
const SVG = "http://www.w3.org/2000/svg";
const NARROW = matchMedia("(max-width: 640px)");
const by = id => document.getElementById(id);
let chosen = null;
let shownKey = "";
const parts = {};  // the overview as it was sent: what has not changed is not sent again
const filled = {};  // what each table shows: one that has not changed is left alone

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
// Most windows begin with a minute. The date is a line of its own where there is little room.
const minute = text => instant(text).replace(/:00$/, "").replace(" ", "\n");
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
  const shown = JSON.stringify([columns, rows.map(row => row.map(c => c.outerHTML ?? c))]);
  if (filled[id] === shown) return;
  filled[id] = shown;
  const focused = by(id).contains(document.activeElement) ? document.activeElement.textContent : null;
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
  if (focused !== null) [...by(id).querySelectorAll("button")].find(b => b.textContent === focused)?.focus();
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
  const height = Math.max(150, (tallest > 6 ? 54 : 74) * tallest + 20);
  const width = NARROW.matches ? Math.max(460, 230 + 230 * deepest) : 1000, edge = NARROW.matches ? 66 : 110;
  const at = {};
  for (const [layer, sites] of layers)
    sites.forEach((site, i) => {
      at[site.name] = { x: edge + (width - 2 * edge) * (deepest - layer) / Math.max(1, deepest), y: height * (i + 1) / (sites.length + 1), site };
    });
  return { at, width, height };
}

const isAway = state => ["silent", "stopped", "link down", "never started", "failed"].includes(state);

function drawMap(overview) {
  const key = JSON.stringify([NARROW.matches, overview.links, overview.sites.map(s => [s.name, siteState(s), number(s.rows_per_s)])]);
  if (filled.map === key) return;
  filled.map = key;
  const { at, width, height } = place(overview);
  const drawn = [], labels = [];
  for (const link of overview.links) {
    const from = at[link.from], to = at[link.to];
    if (!from || !to) continue;
    const use = link.capacity_bytes_per_s ? link.bytes_per_s / link.capacity_bytes_per_s : 0;
    drawn.push(drawing("line", null, {
      x1: from.x + 60, y1: from.y, x2: to.x - 60, y2: to.y, "stroke-width": 1.5 + 8 * Math.min(1, use),
      class: link.state === "up" || link.state === "finished" ? "link" : "link away" }));
    const capacity = !link.capacity_bytes_per_s ? "" : NARROW.matches ? `, ${number(100 * use)}%` : ` of ${bytes(link.capacity_bytes_per_s)}/s`;
    const waiting = link.queued_bytes ? `${bytes(link.queued_bytes)} wait` : "";
    const y = from.y + (to.y < from.y ? 15 : -6);  // beside the site, on the side of the line that is free
    const flow = link.state === "up" ? `${bytes(link.bytes_per_s)}/s${capacity}` : link.state === "finished" ? "done" : "nothing comes";
    const isShort = NARROW.matches && waiting !== "" && link.state !== "up";  // there is no room for both
    labels.push(drawing("text", (isShort ? [waiting] : [flow, waiting]).filter(Boolean).join(", "), { x: from.x + 66, y, class: "small flow" }));
  }
  drawn.push(...labels);  // above all lines
  for (const { x, y, site } of Object.values(at)) {
    drawn.push(drawing("rect", null, { x: x - 60, y: y - 22, width: 120, height: 44, rx: 7, class: isAway(site.state) ? "node away" : "node" }));
    drawn.push(drawing("text", site.name, { x, y: y - 4, "text-anchor": "middle" }));
    const said = isAway(site.state) ? siteState(site) : site.is_center ? "center" : `${number(site.rows_per_s)} rows/s`;
    drawn.push(drawing("text", said, { x, y: y + 16, class: "small", "text-anchor": "middle" }));
  }
  by("map").setAttribute("viewBox", `0 0 ${width} ${height}`);
  by("map").replaceChildren(...drawn);
}

function showSaved(overview) {
  const { sent_bytes: sent, records_bytes: records } = overview.wan;
  by("saved").textContent = records ? `${bytes(sent)} were sent over the links: ${percent(sent / records)} of the ${bytes(records)} of files that were read` :
    sent ? `${bytes(sent)} were sent over the links` : "";
}

const siteState = site => site.state === "silent" ? `silent for ${age(site.age_s)}` : site.state;

function showSites(overview) {
  const rows = overview.sites.filter(s => !s.is_center || s.rows).map(site => {
    const shed = Object.entries(site.shedding).map(([name, s]) => shedOf(name, s)).join("; ");
    const notes = [site.last_error && isAway(site.state) ? site.last_error : "", shed,
      site.quarantined ? `${number(site.quarantined)} in quarantine` : "",
      site.implausible_times ? `${number(site.implausible_times)} implausible times` : "",
      site.late_after_stated ? `${number(site.late_after_stated)} records older than their source had stated` : ""].filter(Boolean).join("; ");
    return [site.name, element("span", siteState(site), { class: isAway(site.state) ? "bad" : "" }), number(site.rows),
      number(site.rows_per_s), instant(site.newest_event_us && new Date(site.newest_event_us / 1000).toISOString()),
      bytes(site.bytes_sent), number(site.pending_rows), notes || "-"];
  });
  fill("sites", [["site"], ["state", "text word"], ["records", "wide"], ["per second"], ["newest event", "wide"], ["sent"], ["waiting", "wide"], ["remarks", "text"]], rows);
}

function shedOf(stream, shed) {
  const rates = Object.values(shed.rates ?? {});
  const taken = shed.shedding && rates.length ? `takes ${percent(Math.min(...rates))} of the records` : "sheds nothing now";
  return `${stream}: load ${number(shed.load, 2)}, ${taken}, owes ${number(shed.owed_batches)} batches`;
}

function showCaches(overview) {
  const rows = overview.sites.flatMap(site => site.caches.map(cache => [
    site.name, cache.fragment, cache.policy ?? "-", number(cache.pending), number(cache.updates),
    Object.entries(cache.reasons).map(([why, count]) => `${why} ${number(count)}`).join(", ") || "-"]));
  fill("caches", [["site"], ["fragment", "text"], ["policy", "text"], ["waiting"], ["sent"], ["why", "text"]], rows);
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
    if (view.name === chosen) name.setAttribute("aria-current", "true");
    return [name, newest ? minute(newest.window_start) : "no window yet",
      newest ? STATUSES[newest.status] ?? newest.status : "-",
      element("span", newest ? percent(newest.coverage) : "-", { class: newest && newest.coverage < 1 ? "warn" : "" }),
      strip(view.windows), remarks(view, missing)];
  });
  fill("views", [["view"], ["newest window", "when"], ["status", "text"], ["coverage", "wide"], ["windows", "text wide"], ["remarks", "text"]], rows);
  by("keys").replaceChildren(...Object.entries(STATUSES).flatMap(([status, text]) => [element("i", null, { class: status }), text]));
}

function remarks(view, missing) {
  if (view.suspended.length) return element("span", `suspended at ${view.suspended.map(s => s.site).join(", ")}`, { class: "bad" });
  const last = view.sites.find(s => s.site === view.waits_for);
  const waits = last && last.behind_s !== 0 ? `waits for ${last.site}${last.behind_s ? `, ${age(last.behind_s)} behind` : ""}` : "";
  return [missing, waits].filter(Boolean).join("; ") || "-";
}

function showSuspended(overview) {
  const told = overview.views.flatMap(v => v.suspended.map(s =>
    `${v.name} is suspended at ${s.site}: ${s.reason}${s.expression ? ` in ${s.expression}` : ""}. Then: catchment resume ${v.name}`));
  by("suspended").textContent = told.join("\n");
}

function showStandings(view) {
  fill("standings", [["site"], ["all before"], ["behind the first"], ["waits for late records"], ["contract", "text"]], view.sites.map(s => [
    s.site, s.mark_us === null ? "nothing yet" : s.mark_us > 2 ** 60 ? "its end" : instant(new Date(s.mark_us / 1000).toISOString()),
    s.behind_s === null ? "-" : age(s.behind_s), s.slack_s === null ? "-" : age(s.slack_s),
    s.contract_kept === null ? "-" : s.contract_kept ? "kept" : element("span", "violated", { class: "bad" })]));
}

async function showQuality() {
  if (!by("judged").open || chosen === null) return;
  const answer = await fetch(`api/views/${encodeURIComponent(chosen)}/quality`);
  const found = await answer.json();
  if (!answer.ok) { by("judged-about").textContent = found.error; fill("quality", [["nothing to judge"]], []); return; }
  const wait = spread => spread === null ? "-" : `${number(spread.median, 1)} s (95%: ${number(spread.p95, 1)} s)`;
  by("judged-about").textContent = `${number(found.windows)} newest windows, ${number(found.exact_windows)} of them exact; answered ${wait(found.latency_s)} after their end, exact after ${wait(found.staleness_s)}`;
  fill("quality", [["column"], ["status", "text"], ["promised"], ["missed"], ["mean bound"], ["mean error"], ["largest error"]], found.columns.map(c => [
    c.column, STATUSES[c.status] ?? c.status, number(c.promised), number(c.missed), c.promised ? `±${percent(c.mean_bound)}` : "-", percent(c.mean_error), percent(c.largest_error)]));
}

async function choose(view) {
  chosen = view;
  shownKey = "";
  by("detail").hidden = false;
  by("detail-head").textContent = view;
  await showChosen();
  show();
  by("detail").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
}

async function showChosen() {
  const answer = await fetch(`api/views/${encodeURIComponent(chosen)}`);
  if (!answer.ok) return;
  const view = await answer.json();
  by("plan").textContent = view.plan ?? "this view does not run any more";
  showQuality();
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
  by("detail-about").textContent = `window ${instant(newest)}: ${rows.length} ${rows.length === 1 ? "row" : "rows"}, ${STATUSES[rows[0].status] ?? rows[0].status}${missing}`;
  // As on the command line: a bound that is proved, an estimate, or a value of which nothing is known yet.
  const bounded = (row, name) => {
    const [kind, of] = (row.bound_kind?.[name] ?? "exact").split(" ");
    if (kind === "exact") return cell(row[name]);
    if (kind === "unknown") return `${cell(row[name])} ±unknown`;
    return `${cell(row[name])} ${kind === "estimated" ? "estimate " : ""}±${percent(row.bound?.[name] ?? 0)}${of ? ` ${of}` : ""}`;
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
document.addEventListener("keydown", event => {
  if (event.key !== "/" || ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName)) return;
  event.preventDefault();
  by("statement").focus();
});
by("judged").addEventListener("toggle", showQuality);
by("shared").addEventListener("toggle", () => showPlan());
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

function showPlan() {
  const wanted = `api/plan.svg?version=${parts.deployment_version}`;
  if (by("shared").open && by("plan-picture").getAttribute("src") !== wanted) by("plan-picture").src = wanted;
}

// What has come of the overview so far, put together.
function assemble() {
  const names = Object.keys(parts).filter(p => p.startsWith("view ")).map(p => p.slice(5)).sort();
  return { ...parts, views: names.map(n => ({ ...parts[`view ${n}`], windows: parts[`windows ${n}`] ?? [] })) };
}

function take(news) {
  for (const name of news.gone ?? []) delete parts[name];
  delete news.gone;
  Object.assign(parts, news);
  show();
}

function show() {
  if (parts.sites === undefined) return;
  const overview = assemble();
  document.title = `${overview.project}: catchment`;
  by("project").textContent = overview.project;
  const away = overview.sites.filter(s => !s.is_center && isAway(s.state)).map(s => `${s.name} ${siteState(s)}`);
  const center = overview.center_age_s === null ? "the center has not started" : overview.is_center_silent ? `the center is silent for ${age(overview.center_age_s)}` : "";
  const refused = Object.entries(overview.refused).map(([reason, count]) => `${cell(count)} refused: ${reason}`);
  const more = away.length > 4 ? [...away.slice(0, 3), `${away.length - 3} more sites are away`] : away;
  const troubles = [center, ...more, ...refused].filter(Boolean);
  by("health").textContent = troubles.length ? troubles.join("; ") : "all sites are heard";
  by("health").className = troubles.length ? "bad" : "dim";
  drawMap(overview);
  showSaved(overview);
  showSites(overview);
  showCaches(overview);
  showViews(overview);
  showSuspended(overview);
  showPlan();
  const names = overview.views.map(v => v.name);
  if (by("dropped").options.length !== names.length) by("dropped").replaceChildren(...names.map(n => element("option", n)));
  if (!by("statement").value && names.length) by("statement").value = `SELECT * FROM ${names[0]} ORDER BY window_start DESC LIMIT 10`;
  const view = overview.views.find(v => v.name === chosen);
  if (view) showStandings(view);
  const key = JSON.stringify(view?.newest ?? null);
  if (chosen !== null && key !== shownKey) { shownKey = key; showChosen(); }
}

async function begin() {
  by("change").hidden = !(await (await fetch("api/overview")).json()).may_change;
  const events = new EventSource("api/events");
  events.onmessage = event => take(JSON.parse(event.data));
  events.onerror = () => { by("health").textContent = "the dashboard does not answer; trying again"; by("health").className = "bad"; };
}
begin();
