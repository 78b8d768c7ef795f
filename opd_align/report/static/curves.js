// Charts over training steps. Hovering over one chart marks the same step in all of them; dragging zooms all of them.
// Where a value is unknown, a faint line connects the known points around it. With a single step there is no curve: the
// numbers are shown instead.

const FORMATTERS = {
  signed, plain, share: percent, chance,
  count: (value) => value.toLocaleString("en", { maximumFractionDigits: 2 }),
  seconds: (value) => `${value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en")} s`,
  number: (value) => (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(4)) : value === 0 ? "0" : value.toExponential(2)).replace(/^-/, "−"),
};
const HALF_WIDTHS = { share: percent, number: (half) => String(+half.toPrecision(2)), signed: (half) => half.toFixed(3) };
const DASHES = ["", "6 4", "2 3", "9 3 2 3", "1 4"];
const CHART_HEIGHT = 178, TALL_CHART_HEIGHT = 236, MIN_DRAG_PX = 8;

function formatValue(format, value, halfWidth = null) {
  if (value == null) return "–";
  return FORMATTERS[format](value) + (halfWidth == null ? "" : ` ± ${(HALF_WIDTHS[format] || HALF_WIDTHS.signed)(halfWidth)}`);
}

const formatSteps = (step) => step.toLocaleString("en");

class Curve {
  static all = new Set();
  static pointed = null;

  // `onZoom`: called with [low, high] in steps, or null for the whole training.
  constructor(title, { format = "signed", include = [], neutral = null, isTall = false, onZoom = () => {} } = {}) {
    Object.assign(this, { title, format, include, neutral, onZoom, height: isTall ? TALL_CHART_HEIGHT : CHART_HEIGHT, lines: [], drag: null });
    this.caption = html("figcaption");
    this.drawing = svg("svg", { role: "img", tabindex: "0" });
    this.chart = html("div", { className: "chart" });
    this.figure = html("figure", {}, this.caption, this.chart);
    this.listen();
    Curve.all.add(this);
  }

  remove() {
    this.figure.remove();
    Curve.all.delete(this);
  }

  formatted(value, halfWidth = null) {
    return formatValue(this.format, value, halfWidth);
  }

  // `lines`: name, identity (its colour), points, optionally dash, dots, faint, choose, and how it is called in the
  // legend (keyName, keyColour, hideValue), where a name is listed once; `range`: the steps to show; `failed`: step → error; `smoothing`: weight of earlier values, 0 to below 1.
  draw(lines, { range, failed = new Map(), smoothing = 0 }) {
    this.lines = lines.filter(({ points }) => points.some(isKnown)).map((line) => {
      const sign = significance(line.points, this.neutral);
      return { ...line, sign, colour: this.colourOf(line.identity, sign), shown: smoothed(line.points, smoothing) };
    });
    Object.assign(this, { failed, range, smoothing });
    this.drawCaption();
    const steps = new Set(this.lines.flatMap(({ points }) => points.filter(isKnown).map(([step]) => step)));
    this.figure.classList.toggle("single", steps.size < 2);
    if (steps.size < 2) {
      this.guide = null;
      this.chart.replaceChildren(...steps.size ? [this.numbers()] : [html("p", { className: "quiet" }, "No data yet.")]);
      return;
    }
    this.drawCurves();
    if (this.drawing.parentNode !== this.chart) this.chart.replaceChildren(this.drawing);
  }

  drawCurves() {
    const width = Math.max(this.chart.clientWidth, 240), { height } = this, left = 46, right = width - 8, top = 8, bottom = height - 24;
    const { drawing, range } = this;
    Object.assign(this, { left: left + 4, right, top, bottom, x: scale(range, left + 4, right) });
    const visible = this.lines.map((line) => ({ ...line, shown: within(line.shown, range), raw: within(line.points, range) }));
    const values = visible.flatMap(({ shown, raw, faint }) => [...shown, ...this.smoothing ? [] : faint ? [] : raw].flatMap(([, value, low, high]) => faint || low == null ? [value] : [value, low, high]));
    const domain = extent(values, ...this.include);
    this.y = scale(domain, bottom, top);
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    drawing.setAttribute("height", height);
    drawing.setAttribute("aria-label", this.description());
    const id = `clip-${[...Curve.all].indexOf(this)}`;
    const parts = [svg("clipPath", { id }, svg("rect", { x: left, y: 0, width: right - left + 4, height: bottom + 4 }))];
    const tickLabel = (tick) => this.format === "share" || this.format === "chance" ? `${+(100 * tick).toPrecision(6)}%` : this.format === "number" || this.format === "count" ? FORMATTERS[this.format](tick) : tickText(tick);
    for (const tick of ticks(...domain, 4).filter((tick) => this.format !== "count" || Number.isInteger(tick))) {
      parts.push(svg("line", { x1: left, x2: right, y1: this.y(tick), y2: this.y(tick), class: tick === this.neutral ? "zero" : "axis" }));
      parts.push(text(left - 8, this.y(tick), tickLabel(tick), { class: "soft", "text-anchor": "end", "font-size": 11 }));
    }
    for (const tick of ticks(...range, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
      const at = this.x(tick), anchor = at > right - 18 ? "end" : at < left + 12 ? "start" : "middle";
      parts.push(text(anchor === "end" ? right + 4 : at, bottom + 15, formatSteps(tick), { class: "soft", "text-anchor": anchor, "font-size": 11 }));
    }
    const inside = svg("g", { "clip-path": `url(#${id})` });
    for (const line of visible.toReversed()) inside.append(this.drawLine(line));
    parts.push(inside);
    for (const step of this.failed.keys()) if (step >= range[0] && step <= range[1]) parts.push(text(this.x(step), bottom, "✕", { class: "cross", "text-anchor": "middle" }));
    this.guide = svg("g", { visibility: "hidden" }, svg("line", { class: "guide", y1: top, y2: bottom }));
    this.brush = svg("rect", { class: "brush", y: top, height: bottom - top, visibility: "hidden" });
    drawing.replaceChildren(...parts, this.guide, this.brush);
  }

  drawLine({ shown, raw, colour, dash, faint, dots = true }) {
    const group = svg("g", { opacity: faint ? 0.45 : 1 }), { x, y } = this, width = this.right - this.left;
    const place = (step, value) => `${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    const path = (segment) => `M${segment.map(([step, value]) => place(step, value)).join("L")}`;
    const drawn = thinned(shown, x, width), segments = segmentsOf(drawn);
    segments.slice(1).forEach((segment, before) => {
      const [from, to] = [segments[before].at(-1), segment[0]].map(([step, value]) => place(step, value));
      group.append(svg("path", { class: "gap", d: `M${from}L${to}`, stroke: colour, "stroke-width": 1.2, opacity: 0.3 }));
    });
    // Intervals are those of the values, not of what smoothing makes of them.
    for (const segment of faint ? [] : segmentsOf(this.smoothing ? thinned(raw, x, width) : drawn)) {
      const band = segment.filter(([, , low]) => low != null);
      if (band.length > 1) {
        const outline = [...band.map(([step, , , high]) => place(step, high)), ...band.toReversed().map(([step, , low]) => place(step, low))];
        group.append(svg("path", { class: "band", d: `M${outline.join("L")}Z`, fill: colour, opacity: this.lines.length > 2 ? 0.08 : 0.13 }));
      } else for (const [step, , low, high] of band) group.append(svg("line", { class: "band", x1: x(step), x2: x(step), y1: y(low), y2: y(high), stroke: colour, "stroke-width": 2, opacity: 0.35 }));
      if (this.smoothing && segment.length > 1) group.append(svg("path", { class: "raw", d: path(segment), fill: "none", stroke: colour, "stroke-width": 1, opacity: 0.3 }));
    }
    for (const segment of segments) {
      if (segment.length > 1) group.append(svg("path", { class: "line", d: path(segment), fill: "none", stroke: colour, "stroke-width": faint ? 1.4 : 1.9, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" }));
      if (segment.length === 1 || (dots && shown.length <= 40)) for (const [step, value] of segment) group.append(svg("circle", { cx: x(step), cy: y(value), r: faint ? 1.8 : 2.6, fill: colour }));
    }
    return group;
  }

  // With a single step: its numbers.
  numbers() {
    return html("dl", { className: "numbers" }, ...this.lines.flatMap(({ name, points, colour, dash, sign }) => {
      const [, value, , , half] = points.find(isKnown);
      const number = html("dd", { className: this.signClass(sign) }, this.formatted(value), html("small", {}, half == null ? "" : this.formatted(value, half).slice(this.formatted(value).length)));
      return this.lines.length > 1 ? [html("dt", { title: name }, swatch(colour, dash), html("span", {}, name)), number] : [number];
    }));
  }

  // Without colour until the interval excludes the value that means no effect; then that of the line, if it has one.
  colourOf(identity, sign) {
    if (this.neutral == null) return identity;
    return identity === "var(--ink)" ? colourOfSign(sign) : sign ? identity : `color-mix(in srgb, ${identity} 40%, var(--open))`;
  }

  signClass(sign) {
    return this.neutral == null ? "" : sign > 0 ? "helps" : sign < 0 ? "harms" : "open";
  }

  drawCaption() {
    const newest = ({ points }) => points.findLast(isKnown);
    const parts = [html("h3", { title: this.title }, this.title)], single = new Set(this.lines.flatMap(({ points }) => points.filter(isKnown).map(([step]) => step))).size < 2;
    const keyed = [...new Map(this.lines.toReversed().map((line) => [line.keyName ?? line.name, line])).values()].reverse();
    if (single) { this.caption.replaceChildren(...parts); return; }
    if (this.lines.length === 1) {
      const [line] = this.lines, [, value, , , half] = newest(line);
      parts.push(html("span", { className: `latest ${this.signClass(line.sign)}` }, this.formatted(value, half)));
    } else {
      parts.push(html("span", { className: "legend" }, ...keyed.map((line) => {
        const value = line.hideValue ? [] : [html("b", { className: this.signClass(line.sign) }, this.formatted(newest(line)[1]))];
        const entry = html(line.choose ? "button" : "span", { title: line.name }, swatch(line.keyColour ?? line.colour, line.dash), html("span", {}, line.keyName ?? line.name), ...value);
        if (line.choose) { entry.type = "button"; entry.setAttribute("aria-pressed", String(!line.faint)); entry.addEventListener("click", line.choose); }
        return entry;
      })));
    }
    this.caption.replaceChildren(...parts);
  }

  description() {
    return `${this.title}: ${this.lines.map(({ name, points }) => { const [step, value] = points.findLast(isKnown); return `${name} ${this.formatted(value)} at step ${step}`; }).join("; ")}`;
  }

  // -- pointing and zooming --------------------------------------------------------------------------------------

  listen() {
    const { drawing } = this, offset = (event) => event.clientX - drawing.getBoundingClientRect().left;
    drawing.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.x) return;
      this.drag = offset(event);
      drawing.setPointerCapture(event.pointerId);
    });
    drawing.addEventListener("pointermove", (event) => {
      if (this.drag != null && Math.abs(offset(event) - this.drag) > MIN_DRAG_PX) this.drawBrush(offset(event));
      else this.point(this.stepAt(offset(event)));
    });
    drawing.addEventListener("pointerup", (event) => {
      const from = this.drag, to = offset(event);
      this.endDrag();
      if (from != null && Math.abs(to - from) > MIN_DRAG_PX) this.onZoom([Math.floor(this.stepAt(Math.min(from, to))), Math.ceil(this.stepAt(Math.max(from, to)))]);
    });
    drawing.addEventListener("pointercancel", () => this.endDrag());
    drawing.addEventListener("pointerleave", () => { if (this.drag == null) Curve.hidePointer(); });
    drawing.addEventListener("dblclick", () => this.onZoom(null));
    drawing.addEventListener("focus", () => { if (drawing.matches(":focus-visible")) this.point(this.steps().at(-1)); });
    drawing.addEventListener("blur", () => Curve.hidePointer());
    drawing.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    const steps = this.steps(), at = steps.indexOf(this.step), move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (move) this.point(steps[Math.max(0, Math.min(at + move, steps.length - 1))]);
    else if (event.key === "+" || event.key === "-") {
      const [low, high] = this.range, centre = this.step ?? (low + high) / 2, half = (high - low) * (event.key === "+" ? 0.25 : 1);
      this.onZoom([Math.floor(centre - half), Math.ceil(centre + half)]);
    } else if (event.key === "0" || event.key === "Escape") this.onZoom(null);
    else return;
    event.preventDefault();
  }

  endDrag() {
    this.drag = null;
    this.brush?.setAttribute("visibility", "hidden");
  }

  drawBrush(to) {
    const [low, high] = [this.drag, to].sort((a, b) => a - b).map((at) => Math.max(this.left, Math.min(at, this.right)));
    this.brush.setAttribute("x", low);
    this.brush.setAttribute("width", high - low);
    this.brush.setAttribute("visibility", "visible");
    Curve.hidePointer();
  }

  stepAt(offset) {
    const [low, high] = this.range, share = (Math.max(this.left, Math.min(offset, this.right)) - this.left) / (this.right - this.left);
    return low + share * (high - low);
  }

  // The steps inside the range at which there is something to read.
  steps() {
    const known = this.lines.flatMap(({ points }) => within(points, this.range).filter(isKnown).map(([step]) => step));
    return [...new Set([...known, ...this.failed.keys()])].filter((step) => step >= this.range[0] && step <= this.range[1]).sort((a, b) => a - b);
  }

  // Of the lines' points nearest to a step and the failed evaluations, the nearest step.
  nearestStep(step) {
    const found = [...this.lines.map(({ points }) => nearestPoint(points, step)?.[0]), ...this.failed.keys()].filter((one) => one != null);
    return found.reduce((best, one) => Math.abs(one - step) < Math.abs(best - step) ? one : best, found[0]);
  }

  mark(step) {
    if (!this.guide) return;
    const nearest = this.nearestStep(step), guide = this.guide.firstChild;
    if (nearest < this.range[0] || nearest > this.range[1]) { this.guide.setAttribute("visibility", "hidden"); return; }
    for (const name of ["x1", "x2"]) guide.setAttribute(name, this.x(nearest));
    this.guide.replaceChildren(guide, ...this.pointsAt(nearest, (line) => line.shown).map(([{ colour }, [at, value]]) => svg("circle", { cx: this.x(at), cy: this.y(value), r: 4, fill: colour, stroke: "var(--paper)", "stroke-width": 1.5 })));
    this.guide.setAttribute("visibility", "visible");
  }

  // The lines that have a value at a step; those of other runs, evaluated at other steps, with their nearest one.
  pointsAt(step, of = (line) => line.points) {
    const found = this.lines.map((line) => [line, nearestPoint(of(line), step)]).filter(([, point]) => point);
    return this.lines.some(({ run }) => run) && !this.failed.has(step) ? found : found.filter(([, point]) => point[0] === step);
  }

  point(near) {
    if (near == null || !this.guide) return;
    const step = this.nearestStep(near);
    this.step = step;
    Curve.pointed = { curve: this, step };
    for (const curve of Curve.all) curve.mark(step);
    const tip = byId("tip"), rows = this.pointsAt(step).map(([{ name, colour }, [at, value, low, high, half]]) => {
      const spread = half == null && low != null ? ` (${this.formatted(low)} to ${this.formatted(high)})` : "";
      return html("tr", {}, html("td", {}, swatch(colour), name), html("td", { className: "n" }, this.formatted(value, half) + spread + (at === step ? "" : ` at ${formatSteps(at)}`)));
    });
    const parts = [html("b", {}, `step ${formatSteps(step)}`)];
    if (this.failed.has(step)) parts.push(html("span", { className: "failed" }, `failed: ${clipped(this.failed.get(step), 300)}`));
    if (rows.length) parts.push(html("table", {}, ...rows));
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const box = this.chart.getBoundingClientRect(), size = tip.getBoundingClientRect(), at = box.left + this.x(step);
    tip.style.left = `${Math.max(8, at + 14 + size.width > innerWidth - 8 ? at - size.width - 14 : at + 14)}px`;
    tip.style.top = `${Math.max(8, Math.min(box.top + 12, innerHeight - size.height - 8))}px`;
  }

  static hidePointer() {
    Curve.pointed = null;
    byId("tip").hidden = true;
    for (const { guide } of Curve.all) guide?.setAttribute("visibility", "hidden");
  }

  // After an update, what the user points at stays.
  static restorePointer() {
    if (Curve.pointed && Curve.all.has(Curve.pointed.curve)) Curve.pointed.curve.point(Curve.pointed.step);
    else Curve.hidePointer();
  }
}

function swatch(colour, dash = "") {
  return svg("svg", { viewBox: "0 0 22 8", class: "swatch-line" }, svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, stroke: colour, "stroke-width": 2.2, "stroke-dasharray": dash || "none" }));
}
