// The dashboard: which curves there are, whose they are, and news from the server where there is one.

const page = JSON.parse(byId("page").textContent);
const NOTHING = { run: null, questions: [], token_texts: [], teachers: [], pairs: [], verdicts: [], packs: [] };
let state = JSON.parse(byId("state").textContent), view = JSON.parse(byId("view").textContent) || NOTHING, chosen = null, following = true;

// `of`: the variants' metrics, all of them in one chart or only those of the chosen one; the student's; the trainer's.
const CHARTS = {
  "course-curves": [
    { title: "Alignment", of: "every", key: "alignment/mean", half: "alignment/half_width", always: [0], clip: [-1, 1], tall: true },
    { title: "On which rollouts", of: "chosen", keys: { "alignment/correct": "correct", "alignment/incorrect": "incorrect" }, always: [0], tall: true },
    { title: "Alignment weighed by stakes", of: "every", key: "alignment/weighted", always: [0] },
    { title: "Decisions with positive alignment", of: "every", key: "alignment/fraction_positive", kind: "share", always: [0.5] },
    { title: "Advantage of the teacher", of: "every", key: "advantage", always: [0] },
    { title: "Pass rate of the student", of: "common", key: "pass_rate", kind: "share", always: [0] },
    { title: "How well it is known", of: "chosen", keys: { "alignment/noise_ceiling": "ceiling", "alignment/decided": "decided" }, kind: "share", always: [0, 1] },
    { title: "Spearman ρ of alignment with", of: "chosen", keys: { "spearman/depth": "depth", "spearman/kl": "KL", "spearman/js": "JS", "spearman/l2": "L2", "spearman/cosine": "cosine" }, always: [0] },
  ],
  "choosing-curves": [
    { title: "Signal with hindsight", of: "chosen", keys: { "oracle/full_signal": "all decisions", "oracle/selective_signal": "aligned ones", "oracle/cross_fitted_signal": "cross-fitted" }, always: [0] },
    { title: "Signal of the divergence filter", of: "chosen", keys: { "oracle/full_signal": "all decisions", "filter/signal": "divergent ones" }, always: [0] },
    { title: "Gain of the aligned decisions", of: "every", key: "oracle/gain", always: [0] },
    { title: "Decisions kept", of: "chosen", keys: { "oracle/kept": "aligned", "filter/kept": "divergent" }, kind: "share", always: [0, 1] },
    { title: "Of that gain, a divergence filter recovers", of: "every", key: "filter/oracle_share", kind: "share", always: [0] },
    { title: "Threshold of the filter", of: "every", key: "filter/threshold", kind: "number", always: [0] },
  ],
  "running-curves": [
    { title: "Trainer's log", of: "log", kind: "number" },
    { title: "Seconds an evaluation", of: "common", key: "seconds", kind: "seconds", always: [0] },
    { title: "Share of the training's time", of: "common", key: "overhead_share", kind: "share", always: [0] },
    { title: "Governor: budget scale", of: "common", key: "governor/scale", kind: "number", always: [0] },
    { title: "Governor: interval in steps", of: "common", key: "governor/interval", kind: "count", always: [0] },
    { title: "Failed evaluations so far", of: "common", key: "failures", kind: "count", always: [0, 1] },
    { title: "Rollouts", of: "common", keys: { rollouts: "all", truncated: "truncated", unknown: "not graded" }, kind: "count", always: [0] },
    { title: "Decisions", of: "common", key: "nodes", kind: "count", always: [0] },
    { title: "Questions", of: "common", key: "questions", kind: "count", always: [0] },
  ],
};

const shown = Object.entries(CHARTS).flatMap(([place, specs]) => specs.map((spec) => {
  const curve = new Curve(spec.title, spec);
  byId(place).append(curve.figure);
  return { ...spec, curve };
}));
const scalar = html("select", { ariaLabel: "Scalar of the trainer's log" });
scalar.addEventListener("change", drawCurves);

const variantName = (name) => name || "teacher";
const variant = () => state.variants.find(({ name }) => name === chosen) || { name: "", curves: {} };

// Colours go by name, so that news do not repaint what is there.
function colourOfVariant(name) {
  if (state.variants.length < 2) return "var(--ink)";
  return `var(--v${state.variants.map((one) => one.name).sort().indexOf(name) % 8})`;
}

function pointsOf(curves, key, half) {
  return state.evaluations.map(({ step }, at) => [step, curves[key]?.[at] ?? null, half ? curves[half]?.[at] ?? null : null]);
}

function linesOf({ of, key, keys, half }) {
  if (of === "common") return Object.entries(keys || { [key]: "" }).map(([own, name], index) => ({ name, colour: "var(--ink)", dash: DASHES[index], points: pointsOf(state.common, own) }));
  if (of === "log") return Object.hasOwn(state.log, scalar.value) ? [{ name: scalar.value, colour: "var(--ink)", points: state.log[scalar.value] }] : [];
  if (of === "chosen") return Object.entries(keys).map(([own, name], index) => ({ name, colour: colourOfVariant(chosen), dash: DASHES[index], points: pointsOf(variant().curves, own) }));
  return [...state.variants].sort((a, b) => (b.name === chosen) - (a.name === chosen)).map(({ name, curves }) => ({
    name: variantName(name), colour: colourOfVariant(name), faint: name !== chosen, choose: () => chooseVariant(name), points: pointsOf(curves, key, half),
  }));
}

function drawCurves() {
  Curve.leave();
  const names = Object.keys(state.log), kept = names.includes(scalar.value) ? scalar.value : names.includes("loss") ? "loss" : names[0];
  scalar.replaceChildren(...names.map((name) => html("option", { value: name }, name)));
  if (kept !== undefined) scalar.value = kept;
  const steps = [...state.evaluations.map(({ step }) => step), ...Object.values(state.log).flatMap((curve) => [curve[0][0], curve.at(-1)[0]])];
  const low = Math.min(...steps, state.step), range = [low, Math.max(...steps, low + 1)];
  const failed = new Map(state.evaluations.filter(({ error }) => error != null).map(({ step, error }) => [step, error]));
  for (const spec of shown) {
    const log = spec.of === "log";
    spec.curve.draw(linesOf(spec), { range, failed: log ? new Map() : failed, tail: log && names.length ? [scalar] : [] });
  }
}

function drawWords() {
  const told = state.told[Math.max(0, state.variants.findIndex(({ name }) => name === chosen))];
  byId("headline").textContent = told.headline;
  byId("points").replaceChildren(...told.points.map((point) => html("li", {}, point)));
  const newest = state.evaluations.at(-1)?.at;
  byId("about").textContent = [state.about, newest == null ? "" : `newest evaluation ${moment(newest)}`].filter(Boolean).join(" · ");
  byId("notes").replaceChildren(...state.notes.map((note) => html("li", {}, note)));
  byId("progress").style.width = state.max_steps ? `${100 * Math.min(1, state.step / state.max_steps)}%` : "0";
}

const moment = (seconds) => new Date(1000 * seconds).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });

function drawRows() {
  const cell = (content, className = "") => html("td", { className }, content);
  byId("rows").replaceChildren(...state.evaluations.map(({ step, at, run, error, command }, index) => {
    const own = variant().curves, mean = own["alignment/mean"]?.[index] ?? null, half = own["alignment/half_width"]?.[index] ?? null, seconds = state.common.seconds?.[index] ?? null;
    const report = html("td");
    if (run && page.live) report.append(html("a", { href: `step/${run}`, target: "_blank", rel: "noopener" }, "open"));
    if (run) report.append(copier(command));
    return html("tr", {}, cell(step.toLocaleString("en"), "n"), cell(at == null ? "" : moment(at)), cell(mean == null ? "–" : signed(mean) + (half == null ? "" : ` ± ${half.toFixed(3)}`), "n"),
      cell(percent(state.common.pass_rate?.[index]), "n"), cell(seconds == null ? "–" : seconds.toFixed(1), "n"), report, cell(html("div", {}, error ?? ""), "wrong"));
  }).reverse());
}

// What is copied is also what is read: the command stands in the title, and on the button if it cannot be copied.
function copier(command) {
  const button = html("button", { type: "button", className: "go", title: command }, "copy command");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = "copied";
    } catch {
      button.textContent = command;
    }
  });
  return button;
}

// -- the token view ------------------------------------------------------------------------------------------------

const controls = new TokenControls(NOTHING, { nextTeacher });
const tokenView = controls.view;
tokenView.packText = (pack) => view.packs[pack];

const pairName = ([who, what]) => new Set(view.pairs.map((pair) => pair[1])).size > 1 ? `${who} · ${what}` : who;

// A variant is named after its teacher, its objective or both, as far as there are several; alone it has no name.
function pairOf(name) {
  return Math.max(0, view.pairs.findIndex(([who, what]) => [`${who}/${what}`, who, what].includes(name)));
}

function aim(pair) {
  tokenView.pair = pair;
  tokenView.teacher = view.teachers.indexOf(view.pairs[pair]?.[0]);
  byId("teacher").value = String(pair);
  tokenView.recolour();
}

function nextTeacher() {
  if (view.pairs.length) aim((tokenView.pair + 1) % view.pairs.length);
}

function layView(found) {
  view = found;
  options(byId("teacher"), view.pairs.map(pairName), 0);
  aim(pairOf(chosen));
  byId("book").hidden = !view.run;
  byId("unread").textContent = view.run ? "" : "There is no finished run directory yet.";
  controls.setData(view);
  drawSteps();
}

let refused = null;
async function openStep(run) {
  if (run === view.run) return drawSteps();
  try {
    const answer = await fetch(`view/${run}.json`);
    if (!answer.ok) throw new Error(await answer.text());
    layView(await answer.json());
  } catch (error) {
    refused = run;
    byId("unread").textContent = `${run} cannot be shown: ${error.message}`;
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
  // Whoever is reading is not interrupted; who has not begun gets the newest.
  if (following && refused !== newest.run) openStep(newest.run);
}

byId("step").addEventListener("change", (event) => { following = event.target.value === "0"; openStep(state.evaluations.filter(({ run }) => run).toReversed()[Number(event.target.value)].run); });
byId("teacher").addEventListener("change", (event) => aim(Number(event.target.value)));
for (const kind of ["pointerdown", "keydown"]) byId("book").addEventListener(kind, () => { following = false; });

// -- what is chosen, and news ---------------------------------------------------------------------------------------

function chooseVariant(name) {
  chosen = name;
  byId("variant").value = String(state.variants.findIndex((one) => one.name === name));
  drawWords();
  drawCurves();
  drawRows();
  aim(pairOf(name));
}

function draw() {
  const names = state.variants.map(({ name }) => name);
  if (!names.includes(chosen)) chosen = names[0] ?? null;
  options(byId("variant"), names.map(variantName), names.indexOf(chosen));
  byId("variant-pick").hidden = names.length < 2;
  drawWords();
  drawCurves();
  drawRows();
}

const PATIENCE_MS = 3000;
let tag = null;
async function ask() {
  const pulse = byId("pulse");
  try {
    const answer = await fetch("state.json", { cache: "no-cache" });
    if (!answer.ok) throw new Error(answer.statusText);
    if (answer.headers.get("ETag") !== tag) {
      tag = answer.headers.get("ETag");
      state = await answer.json();
      draw();
      drawSteps();
    }
    pulse.className = "live";
    pulse.textContent = "live";
  } catch {
    pulse.className = "lost";
    pulse.textContent = "server stopped";
  }
  setTimeout(ask, PATIENCE_MS);
}

byId("variant").addEventListener("change", (event) => chooseVariant(state.variants[Number(event.target.value)].name));
byId("made").textContent = page.version ? `Made by opd-align ${page.version}.` : "";
setUpTheme(() => tokenView.drawPlot());
draw();
layView(view);
onResize(() => { drawCurves(); tokenView.drawPlot(); tokenView.drawTree(); });
if (page.live) ask();
