// The controls of the token view: question, path and colour, by mouse and keyboard. The page chooses the teacher.

class TokenControls {
  constructor(metadata, { nextTeacher, onOpen = () => {} }) {
    const view = new TokenView(metadata);
    Object.assign(this, { view, onOpen, question: 0, path: 0, questionId: null });
    view.openPath = (path, depth) => this.choose(this.question, path, depth);
    byId("question").addEventListener("change", (event) => this.choose(Number(event.target.value), 0));
    byId("colour").addEventListener("change", (event) => { view.colour = event.target.value; view.recolour(); });
    byId("helpful").addEventListener("click", () => view.jump(1));
    byId("harmful").addEventListener("click", () => view.jump(-1));
    document.addEventListener("keydown", (event) => this.onKey(event, nextTeacher));
  }

  get questions() { return this.view.metadata.questions; }

  // Replaces the data; the current question and path stay open if they exist in the new data.
  setData(metadata) {
    Object.assign(this.view, { metadata, decoded: new Map() });
    options(byId("question"), this.questions.map(({ id, text }, index) => `${index + 1}. ${clipped(text || id, 60)}`), 0);
    const current = this.questions.findIndex(({ id, paths }) => id === this.questionId && paths.length);
    const question = current < 0 ? this.questions.findIndex(({ paths }) => paths.length) : current;
    if (this.questions.length) return this.choose(Math.max(question, 0), current < 0 ? 0 : Math.min(this.path, this.questions[current].paths.length - 1));
  }

  choose(question, path, depth = -1) {
    const record = this.questions[question];
    Object.assign(this, { question, path, questionId: record.id });
    byId("question").value = String(question);
    byId("paths").replaceChildren(...record.paths.map(({ correct, length, nodes }, index) => {
      const outcome = correct ? "correct" : "incorrect";
      const button = html("button", { type: "button", title: `${outcome} rollout, ${counted(length, "token")}, ${counted(nodes, "decision")}` }, `${correct ? "✓" : "✗"} ${index + 1}`);
      button.setAttribute("aria-pressed", String(index === path));
      button.setAttribute("aria-label", `path ${index + 1}, ${outcome}`);
      button.addEventListener("click", () => this.choose(question, index));
      return button;
    }));
    const line = byId("question-text");
    line.replaceChildren(record.text || record.id);
    if (record.answer != null) line.append(html("span", { className: "quiet" }, `answer: ${record.answer}`));
    if (record.pass_rate != null) line.append(html("span", { className: "quiet" }, `pass rate: ${percent(record.pass_rate)}`));
    this.onOpen(question);
    return this.view.open(question, path, depth);
  }

  onKey(event, nextTeacher) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const { view } = this, inText = event.target.closest("#text"), { paths } = this.questions[this.question] || { paths: [] };
    const changePath = (step) => { if (paths.length) this.choose(this.question, (this.path + step + paths.length) % paths.length); };
    const actions = {
      j: () => view.jump(1), J: () => view.jump(1, true), k: () => view.jump(-1), K: () => view.jump(-1, true),
      n: () => view.step(1), p: () => view.step(-1), t: nextTeacher, "[": () => changePath(-1), "]": () => changePath(1),
      ...(inText && { ArrowRight: () => view.step(1), ArrowLeft: () => view.step(-1), ArrowDown: () => view.select(view.depth + 1, { focus: true }), ArrowUp: () => view.select(view.depth - 1, { focus: true }) }),
    };
    if (!Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  }
}
