// The report page: the selected objective and teacher, and everything that is redrawn when they change.

const overview = JSON.parse(byId("overview").textContent);
const state = { objective: 0, teacher: null };
const controls = new TokenControls(overview, { nextTeacher, onOpen: markQuestion });
const tokenView = controls.view;
byId("teacher-notes").previousElementSibling.hidden = !byId("teacher-notes").children.length;

document.body.classList.toggle("one-teacher", overview.teachers.length < 2);
document.body.classList.toggle("one-candidate", overview.pairs.length < 2);

const NO_OBJECTIVE = { name: "", teachers: [], correlations: [], verdict: { headline: "", points: [] } };
const objective = () => overview.objectives[state.objective] || NO_OBJECTIVE;
const teacher = () => objective().teachers.find(({ name }) => name === state.teacher);
const teacherNames = () => objective().teachers.map(({ name }) => name);

function pairIndex(teacherName) {
  return overview.pairs.findIndex(([name, objectiveName]) => name === teacherName && objectiveName === objective().name);
}

function drawOverview() {
  const { teachers, correlations, verdict } = objective();
  byId("headline").textContent = verdict.headline;
  byId("points").replaceChildren(...verdict.points.map((point) => html("li", {}, point)));
  drawRanking(teachers, state.teacher, selectTeacher);
  drawContrast(teachers, state.teacher, selectTeacher);
  drawSelectiveCurves(teacher());
  drawHistogram(teacher(), byId("histogram-note"));
  drawCorrelations(overview.teachers.length < 2 ? correlations.filter(({ teacher: name }) => name != null) : correlations, state.teacher);
  drawHighlights(teacher(), overview.questions, (question, path, depth) => { controls.choose(question, path, depth); byId("tokens").scrollIntoView(); });
  byId("highlights-teacher").textContent = state.teacher ?? "";
}

function selectObjective(index) {
  state.objective = index;
  const names = teacherNames();
  if (!names.includes(state.teacher)) state.teacher = names[0] ?? null;
  options(byId("teacher"), names, names.indexOf(state.teacher));
  redraw();
}

function selectTeacher(name) {
  state.teacher = name;
  byId("teacher").value = String(teacherNames().indexOf(name));
  redraw();
}

function nextTeacher() {
  const names = teacherNames();
  if (names.length) selectTeacher(names[(names.indexOf(state.teacher) + 1) % names.length]);
}

// What the selected teacher read for the open question: its prompt, or else the student's.
function showPrompt() {
  const texts = overview.prompts[controls.questionId] || {}, prompt = texts[state.teacher] ?? texts[""], box = byId("prompt");
  box.hidden = prompt == null;
  byId("prompt-title").textContent = `What ${state.teacher in texts ? state.teacher : "the student"} read for this question`;
  byId("prompt-text").textContent = prompt ?? "";
}

function redraw() {
  showPrompt();
  tokenView.pair = Math.max(0, pairIndex(state.teacher));
  tokenView.teacher = overview.teachers.indexOf(state.teacher);
  drawOverview();
  tokenView.recolour();
  if (tokenView.onSelect) updateLink();
}

// -- the address: question, path, token, teacher and objective after the #, so that a place can be linked to --------------

const hasPlace = (hash) => hash.includes("=");

function placeHash() {
  const { path, question, index, depth } = tokenView, place = new URLSearchParams();
  if (path) for (const [name, value] of [["question", overview.questions[question].id], ["path", index + 1], ["token", depth + 1]]) place.set(name, value);
  if (state.teacher != null) place.set("teacher", state.teacher);
  if (overview.objectives.length > 1) place.set("objective", objective().name);
  return `#${place}`;
}

let linkTimer = 0;
// Browsers limit how often an address may change, and holding an arrow key moves fast.
function updateLink() {
  clearTimeout(linkTimer);
  linkTimer = setTimeout(() => { try { history.replaceState(null, "", placeHash()); } catch { /* a page without an address */ } }, 200);
}

// Opens the place of the address; what it names and this report does not have is ignored.
function followLink() {
  if (!hasPlace(location.hash)) return null;
  const place = new URLSearchParams(location.hash.slice(1)), number = (name) => Number.parseInt(place.get(name) ?? "", 10) - 1;
  const objectiveIndex = overview.objectives.findIndex(({ name }) => name === place.get("objective"));
  if (objectiveIndex >= 0) { byId("objective").value = String(objectiveIndex); selectObjective(objectiveIndex); }
  if (teacherNames().includes(place.get("teacher"))) selectTeacher(place.get("teacher"));
  const question = overview.questions.findIndex(({ id }) => id === place.get("question"));
  if (question < 0) return null;
  const path = number("path"), depth = number("token");
  byId("tokens").scrollIntoView();
  return controls.choose(question, overview.questions[question].paths[path] ? path : 0, depth >= 0 ? depth : -1);
}

function markQuestion(question) {
  showPrompt();
  for (const row of byId("rows").children) row.setAttribute("aria-current", String(row.dataset.question === String(question)));
}

function drawQuestions() {
  byId("rows").replaceChildren(...overview.questions.map((record, question) => {
    const buttons = record.paths.map(({ correct, length }, index) => {
      const button = html("button", { type: "button", className: "go", title: counted(length, "token") }, correct ? "✓" : "✗");
      button.setAttribute("aria-label", `open ${correct ? "correct" : "incorrect"} path ${index + 1} of ${record.id}`);
      button.addEventListener("click", () => { controls.choose(question, index); byId("tokens").scrollIntoView(); });
      return button;
    });
    const cell = (className, ...content) => html("td", { className }, ...content), cut = (className, content) => html("td", { className, title: content }, content);
    const decisions = record.paths.reduce((sum, { nodes }) => sum + nodes, 0);
    const row = html("tr", {}, cut("id", record.id), cut("text", record.text), cell("n", percent(record.pass_rate)), cell("n", formatCount(record.rollouts)),
      cell("paths", ...buttons), cell("n", formatCount(decisions)), cut("text", record.note));
    row.dataset.question = question;
    return row;
  }));
}

byId("objective").addEventListener("change", (event) => selectObjective(Number(event.target.value)));
byId("teacher").addEventListener("change", (event) => selectTeacher(teacherNames()[Number(event.target.value)]));
byId("find").addEventListener("input", (event) => {
  const query = event.target.value.toLowerCase();
  for (const row of byId("rows").children) row.hidden = !row.textContent.toLowerCase().includes(query);
});

byId("version").textContent = overview.version ? `Generated by opd-align ${overview.version}.` : "";
options(byId("objective"), overview.objectives.map(({ name }) => name), 0);
byId("objective-pick").hidden = overview.objectives.length < 2;
drawQuestions();
setUpTheme(() => tokenView.drawPlot());
selectObjective(0);
const opening = controls.setData(overview);
// Only then: opening the page itself does not change its address.
Promise.resolve(followLink() ?? opening).then(() => { tokenView.onSelect = updateLink; });
addEventListener("hashchange", followLink);
setUpPrinting(() => tokenView.drawPlot());
onResize(() => { drawOverview(); tokenView.drawPlot(); tokenView.drawTree(); });
