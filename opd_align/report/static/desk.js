// The desk around the token view: which question, path and colour are read, by mouse and by keys. Which teacher is
// looked at is the page's affair.

class Desk {
  constructor(overview, { nextTeacher, opened = () => {} }) {
    const reader = new Reader(overview);
    Object.assign(this, { reader, opened, question: 0, path: 0 });
    reader.turn = (path, depth) => this.choose(this.question, path, depth);
    byId("question").addEventListener("change", (event) => this.choose(Number(event.target.value), 0));
    byId("colour").addEventListener("change", (event) => { reader.colour = event.target.value; reader.recolour(); });
    byId("helpful").addEventListener("click", () => reader.jump(1));
    byId("harmful").addEventListener("click", () => reader.jump(-1));
    document.addEventListener("keydown", (event) => this.pressed(event, nextTeacher));
  }

  get questions() { return this.reader.overview.questions; }

  // A page may bring in other paths later; whoever is read stays in sight if it is still there.
  lay(overview) {
    Object.assign(this.reader, { overview, opened: new Map() });
    options(byId("question"), this.questions.map(({ id, text: asked }, index) => `${index + 1}. ${clipped(asked || id, 60)}`), 0);
    const id = this.read?.id, wanted = this.questions.findIndex((asked) => asked.id === id && asked.paths.length);
    const question = wanted < 0 ? this.questions.findIndex(({ paths }) => paths.length) : wanted;
    if (this.questions.length) this.choose(Math.max(question, 0), wanted < 0 ? 0 : Math.min(this.path, this.questions[wanted].paths.length - 1));
  }

  choose(question, path, depth = -1) {
    const asked = this.questions[question];
    Object.assign(this, { question, path, read: asked });
    byId("question").value = String(question);
    byId("paths").replaceChildren(...asked.paths.map((one, index) => {
      const button = html("button", { type: "button", title: `${one.correct ? "correct" : "incorrect"} rollout, ${one.length} tokens, ${one.nodes} decisions` }, `${one.correct ? "✓" : "✗"} ${index + 1}`);
      button.setAttribute("aria-pressed", String(index === path));
      button.setAttribute("aria-label", `path ${index + 1}, ${one.correct ? "correct" : "incorrect"}`);
      button.addEventListener("click", () => this.choose(question, index));
      return button;
    }));
    const line = byId("asked");
    line.replaceChildren(asked.text || asked.id);
    if (asked.answer != null) line.append(html("span", { className: "quiet" }, `answer ${asked.answer}`));
    const rate = asked.pass_rate == null ? "" : `solved in ${percent(asked.pass_rate)} of the rollouts`;
    if (rate) line.append(html("span", { className: "quiet" }, rate));
    this.opened(question);
    return this.reader.open(question, path, depth);
  }

  pressed(event, nextTeacher) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const { reader } = this, inText = event.target.closest("#text"), { paths } = this.questions[this.question] || { paths: [] };
    const turned = (step) => { if (paths.length) this.choose(this.question, (this.path + step + paths.length) % paths.length); };
    const acts = {
      j: () => reader.jump(1), J: () => reader.jump(1, true), k: () => reader.jump(-1), K: () => reader.jump(-1, true),
      n: () => reader.walk(1), p: () => reader.walk(-1), t: nextTeacher, "[": () => turned(-1), "]": () => turned(1),
      ...(inText && { ArrowRight: () => reader.walk(1), ArrowLeft: () => reader.walk(-1), ArrowDown: () => reader.select(reader.depth + 1, { focus: true }), ArrowUp: () => reader.select(reader.depth - 1, { focus: true }) }),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    event.preventDefault();
    acts[event.key]();
  }
}
