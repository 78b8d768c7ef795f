// The page: what is chosen, and who is told.

const overview = JSON.parse(byId("overview").textContent);
const state = { objective: 0, teacher: null };
const desk = new Desk(overview, { nextTeacher, opened: markQuestion });
const reader = desk.reader;

const objective = () => overview.objectives[state.objective] || { name: "", guided: false, teachers: [], correlations: [], verdict: { headline: "", points: [] } };
const teacher = () => objective().teachers.find((candidate) => candidate.name === state.teacher);

function pairOf(name) {
  return overview.pairs.findIndex(([who, what]) => who === name && what === objective().name);
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

function nextTeacher() {
  const names = objective().teachers.map(({ name }) => name);
  if (names.length) chooseTeacher(names[(names.indexOf(state.teacher) + 1) % names.length]);
}

function aim() {
  reader.pair = Math.max(0, pairOf(state.teacher));
  reader.teacher = overview.teachers.indexOf(state.teacher);
  drawOverview();
  reader.recolour();
}

function markQuestion(question) {
  for (const row of byId("rows").children) row.setAttribute("aria-current", String(row.dataset.question === String(question)));
}

function drawQuestions() {
  byId("rows").replaceChildren(...overview.questions.map((asked, question) => {
    const go = asked.paths.map((one, index) => {
      const button = html("button", { type: "button", className: "go", title: `${one.length} tokens` }, one.correct ? "✓" : "✗");
      button.setAttribute("aria-label", `read ${one.correct ? "correct" : "incorrect"} path ${index + 1} of ${asked.id}`);
      button.addEventListener("click", () => { desk.choose(question, index); byId("reader").scrollIntoView(); });
      return button;
    });
    const decisions = asked.paths.reduce((sum, one) => sum + one.nodes, 0);
    const row = html("tr", {}, html("td", { className: "id", title: asked.id }, asked.id), html("td", { className: "text", title: asked.text }, asked.text), html("td", { className: "n" }, percent(asked.pass_rate)),
      html("td", { className: "n" }, asked.rollouts.toLocaleString("en")), html("td", {}, ...go), html("td", { className: "n" }, decisions.toLocaleString("en")), html("td", { className: "text", title: asked.note }, asked.note));
    row.dataset.question = question;
    return row;
  }));
}

byId("objective").addEventListener("change", (event) => chooseObjective(Number(event.target.value)));
byId("teacher").addEventListener("change", (event) => chooseTeacher(objective().teachers[Number(event.target.value)].name));
byId("find").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const row of byId("rows").children) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});

byId("made").textContent = overview.version ? `Made by opd-align ${overview.version}.` : "";
options(byId("objective"), overview.objectives.map(({ name }) => name), 0);
byId("objective-pick").hidden = overview.objectives.length < 2;
drawQuestions();
lightOrDark(() => reader.drawPlot());
chooseObjective(0);
desk.lay(overview);
whenResized(() => { drawOverview(); reader.drawPlot(); reader.drawTree(); });
