// Charts over training steps. Hovering over one chart marks the same step in all of them.
// Where a value is unknown, a faint line connects the known points around it.

const FORMATTERS = {
  signed, plain, share: percent,
  count: (value) => value.toLocaleString("en", { maximumFractionDigits: 2 }),
  seconds: (value) => `${value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} s`,
  number: (value) => Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(4)) : value === 0 ? "0" : value.toExponential(2),
};
const DASHES = ["", "6 4", "2 3", "9 3 2 3", "1 4"];

function formatValue(format, value, halfWidth = null) {
  if (value == null) return "–";
  return FORMATTERS[format](value) + (halfWidth == null ? "" : ` ± ${halfWidth.toFixed(3)}`);
}

class Curve {
  static all = new Set();

  constructor(title, { format = "signed", include = [], clip = null, tall = false } = {}) {
    Object.assign(this, { title, format, include, clip, tall, lines: [], steps: [] });
    this.caption = html("figcaption");
    this.chart = html("div", { className: "chart" });
    this.figure = html("figure", {}, this.caption, this.chart);
    Curve.all.add(this);
  }

  formatted(value, halfWidth = null) {
    return formatValue(this.format, value, halfWidth);
  }

  // `lines`: name, colour, points [step, value, half-width], optionally dash, faint and choose; `failed`: step → error;
  // `controls`: elements for the caption.
  draw(lines, { range, failed, controls = [] }) {
    Object.assign(this, { lines: lines.filter((line) => line.points.some(([, value]) => value != null)), failed });
    this.drawCaption(controls);
    if (!this.lines.length) {
      Object.assign(this, { steps: [], guide: null });
      this.chart.replaceChildren(html("p", { className: "quiet" }, "No data yet."));
      return;
    }
    const width = Math.max(this.chart.clientWidth, 240), height = this.tall ? 270 : 170, left = 46, right = width - 8, top = 8, bottom = height - 24;
    const clamped = (value) => this.clip ? Math.max(this.clip[0], Math.min(value, this.clip[1])) : value;
    const values = this.lines.flatMap(({ points, faint }) => points.flatMap(([, value, half]) => value == null ? [] : half == null || faint ? [value] : [clamped(value - half), clamped(value + half)]));
    const domain = extent(values, ...this.include), y = scale(domain, bottom, top);
    this.x = scale(range, left + 4, right);
    this.steps = [...new Set([...this.lines.flatMap(({ points }) => points.filter(([, value]) => value != null).map(([step]) => step)), ...failed.keys()])].sort((a, b) => a - b);
    const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0", "aria-label": this.description() });
    const tickLabel = (tick) => this.format === "share" ? `${+(100 * tick).toPrecision(6)}%` : this.format === "number" || this.format === "count" ? FORMATTERS[this.format](tick) : tickText(tick);
    for (const tick of ticks(...domain, this.tall ? 5 : 4).filter((tick) => this.format !== "count" || Number.isInteger(tick))) {
      drawing.append(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: tick === 0 ? "zero" : "axis" }));
      drawing.append(text(left - 8, y(tick), tickLabel(tick), { class: "soft", "text-anchor": "end", "font-size": 11 }));
    }
    for (const tick of ticks(...range, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
      drawing.append(text(this.x(tick), bottom + 15, tick.toLocaleString("en"), { class: "soft", "text-anchor": tick === range[1] ? "end" : "middle", "font-size": 11 }));
    }
    for (const line of [...this.lines].reverse()) drawing.append(this.drawLine(line, y, clamped));
    for (const step of failed.keys()) drawing.append(text(this.x(step), bottom, "✕", { class: "cross", "text-anchor": "middle" }));
    this.guide = svg("g", { visibility: "hidden" }, svg("line", { class: "guide", y1: top, y2: bottom }));
    this.y = y;
    drawing.append(this.guide);
    drawing.addEventListener("pointermove", (event) => this.point(this.nearest(event.offsetX)));
    drawing.addEventListener("pointerleave", () => Curve.hidePointer());
    drawing.addEventListener("focus", () => { if (drawing.matches(":focus-visible")) this.point(this.steps.at(-1)); });
    drawing.addEventListener("blur", () => Curve.hidePointer());
    drawing.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      event.preventDefault();
      this.point(this.steps[Math.max(0, Math.min(this.steps.indexOf(this.step) + move, this.steps.length - 1))]);
    });
    this.chart.replaceChildren(drawing);
  }

  drawCaption(controls) {
    const newest = ({ points }) => points.findLast(([, value]) => value != null);
    const parts = [html("h3", {}, this.title), ...controls];
    if (this.lines.length === 1) parts.push(html("span", { className: "latest" }, this.formatted(...newest(this.lines[0]).slice(1))));
    else {
      parts.push(html("span", { className: "legend" }, ...this.lines.map((line) => {
        const entry = html(line.choose ? "button" : "span", { title: line.name }, svg("svg", { viewBox: "0 0 22 8" }, svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: line.colour, "stroke-width": 2.2, "stroke-dasharray": line.dash || "none" })),
          html("span", {}, line.name), html("b", {}, this.formatted(newest(line)[1])));
        if (line.choose) { entry.type = "button"; entry.setAttribute("aria-pressed", String(!line.faint)); entry.addEventListener("click", line.choose); }
        return entry;
      })));
    }
    this.caption.replaceChildren(...parts);
  }

  description() {
    return `${this.title}: ${this.lines.map(({ name, points }) => { const [step, value] = points.findLast((point) => point[1] != null); return `${name} ${this.formatted(value)} at step ${step}`; }).join("; ")}`;
  }

  drawLine({ points, colour, dash, faint }, y, clamped) {
    const group = svg("g", { opacity: faint ? 0.45 : 1 }), place = (step, value) => `${this.x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    const segments = [];
    let current = null;
    for (const point of points) {
      if (point[1] == null) { current = null; continue; }
      if (!current) segments.push((current = []));
      current.push(point);
    }
    segments.slice(1).forEach((segment, before) => {
      const [from, to] = [segments[before].at(-1), segment[0]].map(([step, value]) => place(step, value));
      group.append(svg("path", { d: `M${from}L${to}`, stroke: colour, "stroke-width": 1.2, opacity: 0.3 }));
    });
    for (const segment of segments) {
      const withBand = faint ? [] : segment.filter(([, , half]) => half != null);
      if (withBand.length > 1) {
        const outline = [...withBand.map(([step, value, half]) => place(step, clamped(value + half))), ...withBand.toReversed().map(([step, value, half]) => place(step, clamped(value - half)))];
        group.append(svg("path", { d: `M${outline.join("L")}Z`, fill: colour, opacity: 0.13 }));
      } else for (const [step, value, half] of withBand) group.append(svg("line", { x1: this.x(step), x2: this.x(step), y1: y(clamped(value - half)), y2: y(clamped(value + half)), stroke: colour, "stroke-width": 2, opacity: 0.35 }));
      if (segment.length > 1) group.append(svg("path", { d: `M${segment.map(([step, value]) => place(step, value)).join("L")}`, fill: "none", stroke: colour, "stroke-width": faint ? 1.4 : 1.9, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" }));
      if (segment.length === 1 || points.length <= 40) for (const [step, value] of segment) group.append(svg("circle", { cx: this.x(step), cy: y(value), r: faint ? 1.8 : 2.6, fill: colour }));
    }
    return group;
  }

  nearest(offset) {
    return this.steps.reduce((best, step) => Math.abs(this.x(step) - offset) < Math.abs(this.x(best) - offset) ? step : best, this.steps[0]);
  }

  mark(step) {
    if (!this.guide) return;
    const nearest = this.nearest(this.x(step)), guide = this.guide.firstChild;
    for (const name of ["x1", "x2"]) guide.setAttribute(name, this.x(nearest));
    this.guide.replaceChildren(guide, ...this.lines.flatMap(({ points, colour }) => points.filter(([at, value]) => at === nearest && value != null).map(([at, value]) => svg("circle", { cx: this.x(at), cy: this.y(value), r: 4, fill: colour, stroke: "var(--paper)", "stroke-width": 1.5 }))));
    this.guide.setAttribute("visibility", "visible");
  }

  point(step) {
    this.step = step;
    for (const curve of Curve.all) curve.mark(step);
    const tip = byId("tip"), rows = this.lines.flatMap(({ name, points }) => points.filter(([at]) => at === step).map(([, value, half]) => html("tr", {}, html("td", {}, name), html("td", { className: "n" }, this.formatted(value, half)))));
    const parts = [html("b", {}, `step ${step.toLocaleString("en")}`)];
    if (this.failed.has(step)) parts.push(html("span", { className: "failed" }, `failed: ${clipped(this.failed.get(step), 300)}`));
    if (rows.length) parts.push(html("table", {}, ...rows));
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = this.chart.getBoundingClientRect(), size = tip.getBoundingClientRect(), at = box.left + this.x(step);
    tip.style.left = `${Math.max(8, at + 14 + size.width > innerWidth - 8 ? at - size.width - 14 : at + 14)}px`;
    tip.style.top = `${Math.max(8, Math.min(box.top + 12, innerHeight - size.height - 8))}px`;
  }

  static hidePointer() {
    byId("tip").hidden = true;
    for (const { guide } of Curve.all) guide?.setAttribute("visibility", "hidden");
  }
}
