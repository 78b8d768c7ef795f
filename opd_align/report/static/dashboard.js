// The dashboard: what is selected, what is drawn from it, and updates from the server where there is one. An update
// redraws what has changed and leaves the rest alone: position, zoom, smoothing, panels, runs, teacher, open tokens.

const page = JSON.parse(byId("page").textContent);
let runs = JSON.parse(byId("state").textContent), logs = JSON.parse(byId("log").textContent), zoomedLogs = null;
let current = 0, selected = null, hiddenRuns = new Set(), showAllRows = false;
readSelection();
const ROWS_SHOWN = 100, INK = "var(--ink)";

function readSelection() {
  current = Math.max(0, runs.findIndex(({ name }) => name === address.get("run")));
  selected = address.get("teacher");
  hiddenRuns = new Set(address.list("off"));
}

const run = () => runs[current];
const NO_VARIANT = { name: "", label: "", curves: {} };
// Runs that were not evaluated with the selected teacher show their own best one.
const variantOf = ({ variants }) => variants.find(({ name }) => name === selected) ?? variants[0] ?? NO_VARIANT;
const colourOfRun = (index) => `var(--v${index % 8})`;
const shownRuns = () => runs.map((one, index) => ({ ...one, index })).filter(({ name }) => !hiddenRuns.has(name));

// Colours depend on the sorted names, so that updates do not change them.
function colourOfVariant(name) {
  const { variants } = run();
  return variants.length < 2 ? INK : `var(--v${variants.map((one) => one.name).sort().indexOf(name) % 8})`;
}

// -- charts --------------------------------------------------------------------------------------------------------

function pointsOf({ source, range }, line, index, curves) {
  if (source !== "log") return evaluationPoints(runs[index].evaluations, curves, line, range);
  const found = (zoomedLogs ?? logs)[index].curves;
  return Object.hasOwn(found, line.key) ? logPoints(found[line.key]) : [];
}

// One run: a chart of one metric per teacher has a line per teacher, any other a line per metric, for the selected
// teacher. Several runs: a line per run and metric, each for one teacher.
function linesOf(spec) {
  const { lines, source, requires } = spec;
  if (requires && !shownRuns().some((one) => one.variants.some(({ curves }) => Object.hasOwn(curves, requires)))) return [];
  if (runs.length > 1) return linesOfRuns(spec);
  if (source !== "teacher" || lines.length > 1) {
    const { curves, name } = source === "teacher" ? variantOf(run()) : { curves: run().common, name: null }, identity = name ? colourOfVariant(name) : INK;
    return lines.map((line, index) => ({ name: line.label || spec.title, identity, dash: DASHES[index % DASHES.length], dots: source !== "log", points: pointsOf(spec, line, 0, curves) }));
  }
  const chosen = variantOf(run()).name;
  return run().variants.toSorted((a, b) => (b.name === chosen) - (a.name === chosen)).map(({ name, label, curves }) => ({
    name: label, identity: colourOfVariant(name), faint: name !== chosen, choose: () => selectVariant(name), points: pointsOf(spec, lines[0], 0, curves),
  }));
}

function linesOfRuns(spec) {
  return shownRuns().flatMap((one) => spec.lines.map((line, index) => ({
    name: line.label && spec.lines.length > 1 ? `${one.name} · ${line.label}` : one.name, identity: colourOfRun(one.index), run: one.name, dash: DASHES[index % DASHES.length], dots: spec.source !== "log",
    points: pointsOf(spec, line, one.index, spec.source === "teacher" ? variantOf(one).curves : one.common),
    // With several metrics, the legend explains the dashes; the table of runs explains the colours.
    ...spec.lines.length > 1 ? { keyName: line.label, keyColour: INK, hideValue: true } : {},
  })));
}

function stepsShown() {
  const lists = shownRuns().flatMap(({ evaluations, index }) => [evaluations.map(({ step }) => step), ...Object.values(logs[index].curves).map(({ steps }) => steps)]).filter((steps) => steps.length);
  const low = Math.min(...lists.map((steps) => steps[0])), high = Math.max(...lists.map((steps) => steps.at(-1)));
  return lists.length ? [low, Math.max(high, low + 1)] : [0, 1];
}

const panels = new Panels(page.charts, { linesOf, onChange: () => { drawCharts(); remember(); }, onZoom: zoomTo });

function drawCharts() {
  const failed = new Map(shownRuns().flatMap(({ evaluations }) => evaluations.filter(({ error }) => error != null).map(({ step, error }) => [step, error])));
  const names = [...new Set(logs.flatMap(({ curves }) => Object.keys(curves)))];
  panels.draw({ names, range: stepsShown(), failed });
}

// A server has more points of the part that is shown.
async function zoomTo(range) {
  zoomedLogs = null;
  drawCharts();
  remember();
  if (page.live && range) await refineLog(range);
}

async function refineLog(range) {
  try {
    const response = await fetch(`log/${Math.max(0, range[0])}-${Math.max(0, range[1])}.json`);
    if (!response.ok || panels.zoom !== range) return;
    zoomedLogs = await response.json();
    drawCharts();
  } catch { /* the server has stopped: the coarser curve stays */ }
}

// -- first screen, sentences, list of evaluations -------------------------------------------------------------------

function drawOverview() {
  const several = runs.length > 1, showTeacher = new Set(runs.flatMap(({ variants }) => variants.map(({ name }) => name))).size > 1;
  if (several) {
    drawRunTable(byId("facts"), runs.map((one, index) => ({ name: one.name, colour: colourOfRun(index), isShown: !hiddenRuns.has(one.name), facts: facts(one, logs[index], variantOf(one), showTeacher) })), toggleRun);
  } else drawTiles(byId("facts"), facts(run(), logs[current], variantOf(run()), showTeacher));
  const { step } = logs[current], { max_steps: total } = run();
  byId("progress").style.width = total ? `${100 * Math.min(1, step / total)}%` : "0";
  const newest = run().evaluations.at(-1)?.at;
  byId("about").textContent = [step || run().evaluations.length ? `step ${formatSteps(step)}${total ? ` of ${formatSteps(total)}` : ""}` : "", run().about, newest == null ? "" : `newest evaluation ${dateTime(newest)}`].filter(Boolean).join(" · ");
}

function toggleRun(index) {
  const { name } = runs[index];
  if (!hiddenRuns.delete(name)) hiddenRuns.add(name);
  drawOverview();
  drawCharts();
  remember();
}

function drawFindings() {
  const { headline, points } = run().findings[Math.max(0, run().variants.findIndex(({ name }) => name === variantOf(run()).name))];
  byId("headline").textContent = runs.length > 1 ? `${run().name}: ${headline}` : headline;
  byId("points").replaceChildren(...points.map((point) => html("li", {}, point)));
  byId("notes").replaceChildren(...run().notes.map((note) => html("li", {}, note)));
}

const dateTime = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

function drawRows() {
  const { evaluations, command } = run(), columns = page.columns;
  const cell = (content, className = "") => html("td", { className }, content);
  const heading = (content, className = "") => html("th", { className }, content);
  byId("columns").replaceChildren(heading("step", "n"), heading("time"), ...columns.map(({ title }) => heading(title, "n")), heading("report"), heading("error"));
  const first = showAllRows ? 0 : Math.max(0, evaluations.length - ROWS_SHOWN);
  byId("rows").replaceChildren(...evaluations.slice(first).map(({ step, at, run: name, error }, index) => {
    const report = html("td");
    if (name && page.live) report.append(html("a", { href: `step/${current}/${name}`, target: "_blank", rel: "noopener" }, "open"));
    if (name) report.append(copyButton(`${command[0]}${name}${command[1]}${name}.html`));
    return html("tr", {}, cell(formatSteps(step), "n"), cell(at == null ? "" : dateTime(at)), ...columns.map((column) => cell(valueOf(column, first + index), "n")), report, cell(html("div", {}, error ?? ""), "wrong"));
  }).reverse());
  byId("all-rows").hidden = first === 0;
  byId("all-rows").textContent = `Show all ${formatSteps(evaluations.length)}`;
}

function valueOf({ key, half_width: halfWidth, source, format }, index) {
  const curves = source === "teacher" ? variantOf(run()).curves : run().common;
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

// -- selection and updates -------------------------------------------------------------------------------------------

const tokensOfRun = new TokensOfRun(JSON.parse(byId("views").textContent), { isLive: page.live, selectedVariant: () => variantOf(run()).name });
const tokenView = tokensOfRun.tokens;

function remember() {
  const isFirst = variantOf(run()).name === (run().variants[0]?.name ?? "");
  address.set({ run: current ? run().name : null, teacher: isFirst ? null : selected, off: [...hiddenRuns], ...panels.addressValues });
}

function selectVariant(name) {
  selected = name;
  draw();
  tokensOfRun.showVariant();
  remember();
}

function selectRun(index) {
  current = index;
  draw();
  tokensOfRun.update(current, run().evaluations);
  remember();
}

function draw() {
  const { variants } = run();
  options(byId("variant"), variants.map(({ label }) => label), variants.findIndex(({ name }) => name === variantOf(run()).name));
  byId("variant-label").hidden = variants.length < 2;
  options(byId("run"), runs.map(({ name }) => name), current);
  byId("run-label").hidden = runs.length < 2;
  drawOverview();
  drawFindings();
  drawCharts();
  drawRows();
}

const POLL_INTERVAL_MS = 3000;
const etags = {};

// The content of a file of the server, or null if it has not changed.
async function changed(file) {
  const response = await fetch(file, { cache: "no-cache" });
  if (!response.ok) throw new Error(response.statusText);
  if (response.headers.get("ETag") === etags[file]) return null;
  etags[file] = response.headers.get("ETag");
  return response.json();
}

async function poll() {
  const connection = byId("connection");
  try {
    const [newRuns, newLogs] = [await changed("state.json"), await changed("log.json")];
    if (newLogs) logs = newLogs;
    if (newRuns) {
      runs = newRuns;
      draw();
      tokensOfRun.update(current, run().evaluations);
    } else if (newLogs) {
      drawOverview();
      drawCharts();
    }
    if (newLogs && panels.zoom) await refineLog(panels.zoom);
    connection.className = "live";
    connection.textContent = "live";
  } catch {
    connection.className = "lost";
    connection.textContent = "server stopped";
  }
  setTimeout(poll, POLL_INTERVAL_MS);
}

// The address has what is shown, so links inside the page scroll without changing it.
for (const link of document.querySelectorAll("a[href^='#']")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const target = byId(link.getAttribute("href").slice(1));
    target.scrollIntoView();
    target.setAttribute("tabindex", "-1");
    target.focus({ preventScroll: true });
  });
}
addEventListener("hashchange", () => {
  readSelection();
  panels.readAddress();
  panels.slider.value = String(panels.smoothing);
  draw();
  tokensOfRun.update(current, run().evaluations);
  zoomTo(panels.zoom);
});
byId("variant").addEventListener("change", (event) => selectVariant(run().variants[Number(event.target.value)].name));
byId("run").addEventListener("change", (event) => selectRun(Number(event.target.value)));
byId("all-rows").addEventListener("click", () => { showAllRows = true; drawRows(); });
byId("made").textContent = page.version ? `Made by opd-align ${page.version}.` : "";
setUpTheme(() => tokenView.drawPlot());
setUpPrinting(() => tokenView.drawPlot());
draw();
tokensOfRun.update(current, run().evaluations);
onResize(() => { drawCharts(); tokenView.drawPlot(); tokenView.drawTree(); });
if (panels.zoom) zoomTo(panels.zoom);
if (page.live) poll();
