// The page: what is chosen, and who is told.

const overview = JSON.parse(document.getElementById("overview").textContent);
const state = { objective: 0, teacher: null, question: 0, path: 0 };
const byId = (id) => document.getElementById(id);
const reader = new Reader(overview);

const objective = () => overview.objectives[state.objective] || { name: "", guided: false, teachers: [], correlations: [], verdict: { headline: "", points: [] } };
const teacher = () => objective().teachers.find((candidate) => candidate.name === state.teacher);

function pairOf(name) {
  return overview.pairs.findIndex(([who, what]) => who === name && what === objective().name);
}

function options(select, names, chosen) {
  select.replaceChildren(...names.map((name, index) => html("option", { value: String(index) }, name)));
  select.value = String(Math.max(0, chosen));
}

function drawOverview() {
  const { teachers, correlations, verdict } = objective();
  byId("headline").textContent = verdict.headline;
  byId("points").replaceChildren(...verdict.points.map((point) => html("li", {}, point)));
  drawRanking(teachers, state.teacher, chooseTeacher);
  drawContrast(teachers, state.teacher, chooseTeacher);
  drawCurves(teacher());
  drawSpread(teacher(), byId("spread-note"));
  drawCorrelations(correlations, state.teacher);
}

function chooseObjective(index) {
  state.objective = index;
  const names = objective().teachers.map(({ name }) => name);
  if (!names.includes(state.teacher)) state.teacher = names[0] ?? null;
  options(byId("teacher"), names, names.indexOf(state.teacher));
  aim();
}

function chooseTeacher(name) {
  state.teacher = name;
  byId("teacher").value = String(objective().teachers.findIndex((candidate) => candidate.name === name));
  aim();
}

function aim() {
  reader.pair = Math.max(0, pairOf(state.teacher));
  reader.teacher = overview.teachers.indexOf(state.teacher);
  drawOverview();
  reader.recolour();
}

function choosePath(question, path, depth = -1) {
  Object.assign(state, { question, path });
  const asked = overview.questions[question];
  byId("question").value = String(question);
  byId("paths").replaceChildren(...asked.paths.map((one, index) => {
    const button = html("button", { type: "button", title: `${one.correct ? "correct" : "incorrect"} rollout, ${one.length} tokens, ${one.nodes} decisions` }, `${one.correct ? "✓" : "✗"} ${index + 1}`);
    button.setAttribute("aria-pressed", String(index === path));
    button.setAttribute("aria-label", `path ${index + 1}, ${one.correct ? "correct" : "incorrect"}`);
    button.addEventListener("click", () => choosePath(question, index));
    return button;
  }));
  const line = byId("asked");
  line.replaceChildren(asked.text || asked.id);
  if (asked.answer != null) line.append(html("span", { className: "quiet" }, `answer ${asked.answer}`));
  const rate = asked.pass_rate == null ? "" : `solved in ${percent(asked.pass_rate)} of the rollouts`;
  if (rate) line.append(html("span", { className: "quiet" }, rate));
  for (const row of byId("rows").children) row.setAttribute("aria-current", String(row.dataset.question === String(question)));
  return reader.open(question, path, depth);
}

reader.turn = (path, depth) => choosePath(state.question, path, depth);

function drawQuestions() {
  byId("rows").replaceChildren(...overview.questions.map((asked, question) => {
    const go = asked.paths.map((one, index) => {
      const button = html("button", { type: "button", className: "go", title: `${one.length} tokens` }, one.correct ? "✓" : "✗");
      button.setAttribute("aria-label", `read ${one.correct ? "correct" : "incorrect"} path ${index + 1} of ${asked.id}`);
      button.addEventListener("click", () => { choosePath(question, index); byId("reader").scrollIntoView(); });
      return button;
    });
    const decisions = asked.paths.reduce((sum, one) => sum + one.nodes, 0);
    const row = html("tr", {}, html("td", { className: "id", title: asked.id }, asked.id), html("td", { className: "text", title: asked.text }, asked.text), html("td", { className: "n" }, percent(asked.pass_rate)),
      html("td", { className: "n" }, asked.rollouts.toLocaleString("en")), html("td", {}, ...go), html("td", { className: "n" }, decisions.toLocaleString("en")), html("td", { className: "text", title: asked.note }, asked.note));
    row.dataset.question = question;
    return row;
  }));
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
  reader.drawPlot();
}

byId("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
byId("objective").addEventListener("change", (event) => chooseObjective(Number(event.target.value)));
byId("teacher").addEventListener("change", (event) => chooseTeacher(objective().teachers[Number(event.target.value)].name));
byId("question").addEventListener("change", (event) => choosePath(Number(event.target.value), 0));
byId("colour").addEventListener("change", (event) => { reader.colour = event.target.value; reader.recolour(); });
byId("helpful").addEventListener("click", () => reader.jump(1));
byId("harmful").addEventListener("click", () => reader.jump(-1));
byId("find").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const row of byId("rows").children) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const inText = event.target.closest("#text"), { paths } = overview.questions[state.question] || { paths: [] };
  const nextTeacher = () => {
    const names = objective().teachers.map(({ name }) => name);
    if (names.length) chooseTeacher(names[(names.indexOf(state.teacher) + 1) % names.length]);
  };
  const turned = (step) => { if (paths.length) choosePath(state.question, (state.path + step + paths.length) % paths.length); };
  const acts = {
    j: () => reader.jump(1), J: () => reader.jump(1, true), k: () => reader.jump(-1), K: () => reader.jump(-1, true),
    n: () => reader.walk(1), p: () => reader.walk(-1), t: nextTeacher, "[": () => turned(-1), "]": () => turned(1),
    ...(inText && { ArrowRight: () => reader.walk(1), ArrowLeft: () => reader.walk(-1), ArrowDown: () => reader.select(reader.depth + 1, { focus: true }), ArrowUp: () => reader.select(reader.depth - 1, { focus: true }) }),
  };
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
});

let resizing = 0;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { drawOverview(); reader.drawPlot(); reader.drawTree(); }, 120);
});

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
byId("made").textContent = overview.version ? `Made by opd-align ${overview.version}.` : "";
options(byId("objective"), overview.objectives.map(({ name }) => name), 0);
byId("objective-pick").hidden = overview.objectives.length < 2;
options(byId("question"), overview.questions.map(({ id, text: asked }, index) => `${index + 1}. ${clipped(asked || id, 60)}`), 0);
drawQuestions();
theme(dark.matches ? "dark" : "light");
chooseObjective(0);
const first = Math.max(0, overview.questions.findIndex(({ paths }) => paths.length));
if (overview.questions.length) choosePath(first, 0);
