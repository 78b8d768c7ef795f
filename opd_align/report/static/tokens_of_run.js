// The token view of the dashboard: the rollouts of one evaluated step of one run.

const NO_TOKENS = { run: null, questions: [], token_texts: [], teachers: [], pairs: [], verdicts: [], packs: [] };

class TokensOfRun {
  // `isLive`: whether there is a server to ask for other steps; `selectedVariant`: `<teacher>/<objective>` of the page.
  constructor(views, { isLive, selectedVariant }) {
    Object.assign(this, { views, isLive, selectedVariant, view: NO_TOKENS, number: 0, evaluations: [], following: true, unreadable: null });
    this.controls = new TokenControls(NO_TOKENS, { nextTeacher: () => this.nextTeacher() });
    this.tokens = this.controls.view;
    this.tokens.packText = (pack) => this.view.packs[pack];
    byId("step").addEventListener("change", (event) => {
      this.following = event.target.value === "0";
      this.open(this.complete().toReversed()[Number(event.target.value)].run);
    });
    byId("teacher").addEventListener("change", (event) => this.showPair(Number(event.target.value)));
    for (const kind of ["pointerdown", "keydown"]) byId("reader-body").addEventListener(kind, () => { this.following = false; });
  }

  complete() {
    return this.evaluations.filter(({ run }) => run);
  }

  pairName([teacher, objective]) {
    return new Set(this.view.pairs.map((pair) => pair[1])).size > 1 ? `${teacher} · ${objective}` : teacher;
  }

  showVariant() {
    this.showPair(Math.max(0, this.view.pairs.findIndex(([teacher, objective]) => `${teacher}/${objective}` === this.selectedVariant())));
  }

  showPair(pair) {
    this.tokens.pair = pair;
    this.tokens.teacher = this.view.teachers.indexOf(this.view.pairs[pair]?.[0]);
    byId("teacher").value = String(pair);
    this.tokens.recolour();
  }

  nextTeacher() {
    if (this.view.pairs.length) this.showPair((this.tokens.pair + 1) % this.view.pairs.length);
  }

  // Another run, or the same one with more evaluations.
  update(number, evaluations) {
    const isOther = number !== this.number || this.view === NO_TOKENS;
    Object.assign(this, { number, evaluations });
    if (isOther) {
      Object.assign(this, { following: true, unreadable: null });
      this.show(this.views[number] ?? NO_TOKENS);
    } else this.drawSteps();
  }

  show(view) {
    this.view = view;
    options(byId("teacher"), view.pairs.map((pair) => this.pairName(pair)), 0);
    this.showVariant();
    byId("reader-body").hidden = !view.run;
    byId("reader-status").textContent = view.run ? "" : "No complete run directory yet.";
    this.controls.setData(view);
    this.drawSteps();
  }

  async open(run) {
    if (run === this.view.run) return this.drawSteps();
    const { number } = this;
    try {
      const response = await fetch(`view/${number}/${run}.json`);
      if (!response.ok) throw new Error(await response.text());
      const view = await response.json();
      if (number === this.number) this.show(view);
    } catch (error) {
      this.unreadable = run;
      byId("reader-status").textContent = `Cannot show ${run}: ${error.message}`;
      this.drawSteps();
    }
  }

  drawSteps() {
    const runs = this.isLive ? this.complete() : this.complete().filter(({ run }) => run === this.view.run);
    options(byId("step"), runs.map(({ step }) => `step ${formatSteps(step)}`).reverse(), runs.toReversed().findIndex(({ run }) => run === this.view.run));
    byId("step").parentElement.hidden = !runs.length;
    const newest = runs.at(-1), newer = byId("newer");
    newer.hidden = !newest || newest.run === this.view.run;
    if (newer.hidden) return;
    newer.textContent = `Show step ${formatSteps(newest.step)}`;
    newer.onclick = () => { this.following = true; this.open(newest.run); };
    // The newest step, unless the user has started to read.
    if (this.following && this.unreadable !== newest.run) this.open(newest.run);
  }
}
