// The dashboard: draws the charts of the metric registry and polls the server for updates where there is one.

const page = JSON.parse(byId("page").textContent);
const NOTHING = { run: null, questions: [], token_texts: [], teachers: [], pairs: [], verdicts: [], packs: [] };
let state = JSON.parse(byId("state").textContent), view = JSON.parse(byId("view").textContent) || NOTHING, selected = null, following = true;

const LOG = { title: "Trainer log", section: "cost", log: true, format: "number", lines: [] };
const charts = [...page.charts.filter(({ section }) => section !== LOG.section), LOG, ...page.charts.filter(({ section }) => section === LOG.section)].map((spec) => {
  const curve = new Curve(spec.title, spec);
  byId(`${spec.section}-charts`).append(curve.figure);
  return { ...spec, curve };
});
const scalar = html("select", { ariaLabel: "Scalar of the trainer log" });
scalar.addEventListener("change", drawCharts);

const variant = () => state.variants.find(({ name }) => name === selected) || { name: "", label: "", curves: {} };

// Colours depend on the sorted names, so that updates do not change them.
function colourOfVariant(name) {
  if (state.variants.length < 2) return "var(--ink)";
  return `var(--v${state.variants.map((one) => one.name).sort().indexOf(name) % 8})`;
}

function pointsOf(curves, key, halfWidth) {
  return state.evaluations.map(({ step }, at) => [step, curves[key]?.[at] ?? null, halfWidth ? curves[halfWidth]?.[at] ?? null : null]);
}

// One metric per teacher: one line per teacher. Several: one line per metric, for the selected teacher.
function linesOf({ log, lines, per_teacher: perTeacher }) {
  if (log) return Object.hasOwn(state.log, scalar.value) ? [{ name: scalar.value, colour: "var(--ink)", points: state.log[scalar.value] }] : [];
  if (!perTeacher || lines.length > 1) {
    const curves = perTeacher ? variant().curves : state.common, colour = perTeacher ? colourOfVariant(selected) : "var(--ink)";
    return lines.map(({ key, label }, index) => ({ name: label, colour, dash: DASHES[index % DASHES.length], points: pointsOf(curves, key) }));
  }
  const [{ key, half_width: halfWidth }] = lines;
  return [...state.variants].sort((a, b) => (b.name === selected) - (a.name === selected)).map(({ name, label, curves }) => ({
    name: label, colour: colourOfVariant(name), faint: name !== selected, choose: () => selectVariant(name), points: pointsOf(curves, key, halfWidth),
  }));
}

function drawCharts() {
  Curve.hidePointer();
  const names = Object.keys(state.log), kept = names.includes(scalar.value) ? scalar.value : names.includes("loss") ? "loss" : names[0];
  scalar.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
  if (kept !== undefined) scalar.value = kept;
  const steps = [...state.evaluations.map(({ step }) => step), ...Object.values(state.log).flatMap((curve) => [curve[0][0], curve.at(-1)[0]])];
  const low = Math.min(...steps, state.step), range = [low, Math.max(...steps, low + 1)];
  const failed = new Map(state.evaluations.filter(({ error }) => error != null).map(({ step, error }) => [step, error]));
  for (const spec of charts) {
    spec.curve.draw(linesOf(spec), { range, failed: spec.log ? new Map() : failed, controls: spec.log && names.length ? [scalar] : [] });
  }
}

function drawFindings() {
  const { headline, points } = state.findings[Math.max(0, state.variants.findIndex(({ name }) => name === selected))];
  byId("headline").textContent = headline;
  byId("points").replaceChildren(...points.map((point) => html("li", {}, point)));
  const newest = state.evaluations.at(-1)?.at;
  byId("about").textContent = [state.about, newest == null ? "" : `newest evaluation ${dateTime(newest)}`].filter(Boolean).join(" · ");
  byId("notes").replaceChildren(...state.notes.map((note) => html("li", {}, note)));
  byId("progress").style.width = state.max_steps ? `${100 * Math.min(1, state.step / state.max_steps)}%` : "0";
}

const dateTime = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

function drawRows() {
  const cell = (content, className = "") => html("td", { className }, content);
  const heading = (content, className = "") => html("th", { className }, content);
  byId("columns").replaceChildren(heading("step", "n"), heading("time"), ...page.columns.map(({ title }) => heading(title, "n")), heading("report"), heading("error"));
  byId("rows").replaceChildren(...state.evaluations.map(({ step, at, run, error, command }, index) => {
    const report = html("td");
    if (run && page.live) report.append(html("a", { href: `step/${run}`, target: "_blank", rel: "noopener" }, "open"));
    if (run) report.append(copyButton(command));
    return html("tr", {}, cell(step.toLocaleString("en"), "n"), cell(at == null ? "" : dateTime(at)), ...page.columns.map((column) => cell(valueOf(column, index), "n")), report, cell(html("div", {}, error ?? ""), "wrong"));
  }).reverse());
}

function valueOf({ key, half_width: halfWidth, per_teacher: perTeacher, format }, index) {
  const curves = perTeacher ? variant().curves : state.common;
  return formatValue(format, curves[key]?.[index] ?? null, halfWidth ? curves[halfWidth]?.[index] ?? null : null);
}

// The command is the button's title, and its text if it cannot be copied. Rows are drawn again at every update, so
// what a button says after a click is kept outside of it.
const copyTexts = new Map();

function copyButton(command) {
  const button = html("button", { type: "button", className: "go", title: command }, copyTexts.get(command) ?? "copy command");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      copyTexts.set(command, "copied");
    } catch {
      copyTexts.set(command, command);
    }
    drawRows();
  });
  return button;
}

// -- the token view ------------------------------------------------------------------------------------------------

const controls = new TokenControls(NOTHING, { nextTeacher });
const tokenView = controls.view;
tokenView.packText = (pack) => view.packs[pack];

const pairName = ([teacher, objective]) => new Set(view.pairs.map((pair) => pair[1])).size > 1 ? `${teacher} · ${objective}` : teacher;

function pairOf(name) {
  return Math.max(0, view.pairs.findIndex(([teacher, objective]) => `${teacher}/${objective}` === name));
}

function showPair(pair) {
  tokenView.pair = pair;
  tokenView.teacher = view.teachers.indexOf(view.pairs[pair]?.[0]);
  byId("teacher").value = String(pair);
  tokenView.recolour();
}

function nextTeacher() {
  if (view.pairs.length) showPair((tokenView.pair + 1) % view.pairs.length);
}

function showView(newView) {
  view = newView;
  options(byId("teacher"), view.pairs.map(pairName), 0);
  showPair(pairOf(selected));
  byId("reader-body").hidden = !view.run;
  byId("reader-status").textContent = view.run ? "" : "No complete run directory yet.";
  controls.setData(view);
  drawSteps();
}

let unreadable = null;
async function openStep(run) {
  if (run === view.run) return drawSteps();
  try {
    const response = await fetch(`view/${run}.json`);
    if (!response.ok) throw new Error(await response.text());
    showView(await response.json());
  } catch (error) {
    unreadable = run;
    byId("reader-status").textContent = `Cannot show ${run}: ${error.message}`;
    drawSteps();
  }
}

function drawSteps() {
  const runs = page.live ? state.evaluations.filter(({ run }) => run) : state.evaluations.filter(({ run }) => run && run === view.run);
  options(byId("step"), runs.map(({ step }) => `step ${step.toLocaleString("en")}`).reverse(), runs.toReversed().findIndex(({ run }) => run === view.run));
  byId("step").parentElement.hidden = !runs.length;
  const newest = runs.at(-1), newer = byId("newer");
  newer.hidden = !newest || newest.run === view.run;
  if (newer.hidden) return;
  newer.textContent = `Show step ${newest.step.toLocaleString("en")}`;
  newer.onclick = () => { following = true; openStep(newest.run); };
  // Show the newest step unless the user has started to read.
  if (following && unreadable !== newest.run) openStep(newest.run);
}

byId("step").addEventListener("change", (event) => { following = event.target.value === "0"; openStep(state.evaluations.filter(({ run }) => run).toReversed()[Number(event.target.value)].run); });
byId("teacher").addEventListener("change", (event) => showPair(Number(event.target.value)));
for (const kind of ["pointerdown", "keydown"]) byId("reader-body").addEventListener(kind, () => { following = false; });

// -- selection and updates -------------------------------------------------------------------------------------------

function selectVariant(name) {
  selected = name;
  byId("variant").value = String(state.variants.findIndex((one) => one.name === name));
  drawFindings();
  drawCharts();
  drawRows();
  showPair(pairOf(name));
}

function draw() {
  const names = state.variants.map(({ name }) => name);
  if (!names.includes(selected)) selected = names[0] ?? null;
  options(byId("variant"), state.variants.map(({ label }) => label), names.indexOf(selected));
  byId("variant-label").hidden = names.length < 2;
  drawFindings();
  drawCharts();
  drawRows();
}

const POLL_INTERVAL_MS = 3000;
let etag = null;
async function poll() {
  const connection = byId("connection");
  try {
    const response = await fetch("state.json", { cache: "no-cache" });
    if (!response.ok) throw new Error(response.statusText);
    if (response.headers.get("ETag") !== etag) {
      etag = response.headers.get("ETag");
      state = await response.json();
      draw();
      drawSteps();
    }
    connection.className = "live";
    connection.textContent = "live";
  } catch {
    connection.className = "lost";
    connection.textContent = "server stopped";
  }
  setTimeout(poll, POLL_INTERVAL_MS);
}

byId("variant").addEventListener("change", (event) => selectVariant(state.variants[Number(event.target.value)].name));
byId("made").textContent = page.version ? `Made by opd-align ${page.version}.` : "";
setUpTheme(() => tokenView.drawPlot());
draw();
showView(view);
onResize(() => { drawCharts(); tokenView.drawPlot(); tokenView.drawTree(); });
if (page.live) poll();
