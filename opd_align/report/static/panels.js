// The panels: which charts are shown, and what they share: the range of steps and the smoothing. What differs from the
// default is in the address of the page, so that a link shows the same.

const LOSS_KEYS = ["loss", "train_loss", "train/loss"];
const MINOR_SCALARS = /runtime|per_second|flos|num_tokens|^epoch$/;
const MAX_SCALARS = 6;
const slugOf = (title) => title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");

// The part of the address after #, as key=value pairs.
const address = {
  get: (name) => new URLSearchParams(location.hash.slice(1)).get(name),
  list: (name) => new URLSearchParams(location.hash.slice(1)).getAll(name).filter(Boolean),
  set(values) {
    const entries = Object.entries(values).flatMap(([name, value]) => (Array.isArray(value) ? value : [value]).map((one) => [name, one]));
    const written = new URLSearchParams(entries.filter(([, value]) => value != null && value !== "")).toString();
    history.replaceState(null, "", written || location.hash ? `#${written}` : location.href);
  },
};

class Panels {
  // `specs`: the charts of the registry; `linesOf`: the lines of one of them; `onChange`: called when a user changes
  // what is shown; `onZoom`: called with the new range of steps or null.
  constructor(specs, { linesOf, onChange, onZoom }) {
    Object.assign(this, { linesOf, onChange, onZoom, panels: [], zoom: null, smoothing: 0 });
    this.readAddress();
    const loss = { title: "Loss", section: "overview", source: "log", format: "number", include: [], neutral: null, range: [null, null], lines: [{ key: LOSS_KEYS[0], label: "" }] };
    for (const spec of [loss, ...specs]) this.add(spec, true);
    this.slider = byId("smoothing");
    this.slider.value = String(this.smoothing);
    this.slider.addEventListener("input", () => { this.smoothing = Number(this.slider.value); this.onChange(); });
    byId("reset-zoom").addEventListener("click", () => this.setZoom(null));
    byId("all-panels").addEventListener("click", () => this.showAll(true));
    byId("default-panels").addEventListener("click", () => this.showAll(null));
  }

  readAddress() {
    this.changed = new Map([...address.list("show").map((slug) => [slug, true]), ...address.list("hide").map((slug) => [slug, false])]);
    this.smoothing = Math.max(0, Math.min(Number(address.get("smooth")) || 0, 0.99));
    const [low, high] = (address.get("zoom") || "").split("-").map(Number);
    this.zoom = high > low ? [low, high] : null;
  }

  get addressValues() {
    const names = (wanted) => [...this.changed].filter(([, shown]) => shown === wanted).map(([slug]) => slug);
    return { smooth: this.smoothing || null, zoom: this.zoom?.join("-"), show: names(true), hide: names(false) };
  }

  add(spec, isDefault) {
    const curve = new Curve(spec.title, { ...spec, isTall: spec.section === "overview", onZoom: (range) => this.setZoom(range) });
    const panel = { spec, curve, slug: slugOf(spec.title), isDefault, hasData: false };
    curve.figure.dataset.panel = panel.slug;
    byId(`${spec.section}-charts`).append(curve.figure);
    this.panels.push(panel);
  }

  isShown = ({ slug, isDefault }) => this.changed.get(slug) ?? isDefault;

  setZoom(range) {
    this.zoom = range && range[1] > range[0] ? range : null;
    this.onZoom(this.zoom);
  }

  // A panel for every scalar of the trainers' logs that no chart of the registry shows; the first few are shown.
  addScalars(names) {
    const known = new Set(this.panels.flatMap(({ spec }) => spec.source === "log" ? spec.lines.map(({ key }) => key) : []));
    let shown = this.panels.filter(({ spec, isDefault }) => spec.section === "trainer" && isDefault).length;
    for (const name of names.filter((one) => !known.has(one) && !LOSS_KEYS.includes(one))) {
      const isDefault = !name.startsWith("gate/") && !MINOR_SCALARS.test(name) && shown < MAX_SCALARS;
      shown += isDefault;
      this.add({ title: name, section: name.startsWith("gate/") ? "gate" : "trainer", source: "log", format: "number", include: [], neutral: null, range: [null, null], lines: [{ key: name, label: "" }] }, isDefault);
    }
  }

  draw({ names, range, failed }) {
    this.addScalars(names);
    const loss = this.panels[0].spec.lines[0];
    loss.key = LOSS_KEYS.find((key) => names.includes(key)) ?? loss.key;
    const shown = this.zoom ? [Math.max(this.zoom[0], range[0]), Math.min(this.zoom[1], range[1])] : range;
    const visibleRange = shown[1] > shown[0] ? shown : range;
    for (const panel of this.panels) {
      const lines = this.linesOf(panel.spec), hasData = lines.some(({ points }) => points.some(isKnown));
      panel.hasData = hasData;
      // The panels of the first screen stay, so that it does not move when the first evaluation comes.
      panel.curve.figure.hidden = !this.isShown(panel) || (!hasData && panel.spec.section !== "overview");
      if (!panel.curve.figure.hidden) panel.curve.draw(lines, { range: visibleRange, failed: panel.spec.source === "log" ? new Map() : failed, smoothing: this.smoothing });
      else panel.curve.guide = null;
    }
    for (const section of new Set(this.panels.map(({ spec }) => spec.section))) {
      if (section === "overview") continue;
      const isEmpty = this.panels.every(({ spec, curve }) => spec.section !== section || curve.figure.hidden);
      for (const element of [byId(section), document.querySelector(`nav a[href="#${section}"]`)]) element.hidden = isEmpty;
    }
    byId("reset-zoom").hidden = !this.zoom;
    if (this.zoom) byId("reset-zoom").textContent = `Steps ${formatSteps(visibleRange[0])} to ${formatSteps(visibleRange[1])} ×`;
    byId("smoothing-value").textContent = this.smoothing ? this.smoothing.toFixed(2) : "off";
    this.drawChoices();
    Curve.restorePointer();
  }

  drawChoices() {
    const withData = this.panels.filter(({ hasData }) => hasData), shown = withData.filter(this.isShown).length;
    byId("panels-summary").textContent = `Panels ${shown} of ${withData.length}`;
    // Drawn again only if the panels are others: a user may be going through the list.
    const listed = withData.map(({ slug }) => slug).join();
    if (listed === this.listed) {
      for (const [panel, box] of this.boxes) box.checked = this.isShown(panel);
      return;
    }
    this.listed = listed;
    this.boxes = withData.map((panel) => {
      const box = html("input", { type: "checkbox", checked: this.isShown(panel) });
      box.addEventListener("change", () => this.show(panel, box.checked));
      return [panel, box];
    });
    const groups = Map.groupBy(this.boxes, ([{ spec }]) => spec.section);
    byId("panel-choices").replaceChildren(...Object.entries(SECTION_NAMES).filter(([section]) => groups.has(section)).map(([section, name]) => html("fieldset", {}, html("legend", {}, name), ...groups.get(section).map(([{ spec }, box]) => html("label", { title: spec.title }, box, spec.title)))));
  }

  show(panel, isShown) {
    if (isShown === panel.isDefault) this.changed.delete(panel.slug);
    else this.changed.set(panel.slug, isShown);
    this.onChange();
  }

  // `isShown`: true for all panels, null for the default ones.
  showAll(isShown) {
    this.changed = new Map(isShown ? this.panels.filter(({ isDefault }) => !isDefault).map(({ slug }) => [slug, true]) : []);
    this.onChange();
  }
}

const SECTION_NAMES = { overview: "First screen", alignment: "Alignment", selection: "Selective distillation", gate: "Gate", trainer: "Trainer log", cost: "Cost" };
