// The plot above the text: success rate after each token and alignment at each decision, along the whole path. Curves
// are drawn once per path; the visible range and the selected token are drawn over them while scrolling.

const PLOT_LEFT = 74, PLOT_RIGHT_MARGIN = 4;

class PathPlot {
  constructor(view) {
    Object.assign(this, { view, canvas: byId("plot"), curves: null, x: null, frame: 0 });
    this.canvas.addEventListener("click", (event) => this.selectNear(event.offsetX));
  }

  draw() {
    const { canvas, view: { path, pair } } = this, ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
    const curves = (this.curves = document.createElement("canvas"));
    curves.width = canvas.width = Math.round(width * ratio);
    curves.height = canvas.height = Math.round(height * ratio);
    const context = curves.getContext("2d"), style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
    context.scale(ratio, ratio);
    if (!path) return this.drawOverlay();
    const x = (this.x = (depth) => PLOT_LEFT + ((depth + 0.5) / path.length) * (width - PLOT_LEFT - PLOT_RIGHT_MARGIN));
    const success = (q) => 6 + (1 - q) * 54, middle = 100, reach = 30;
    context.font = `11px ${colour("--sans")}`;
    context.fillStyle = colour("--quiet");
    context.textBaseline = "middle";
    context.fillText("success Q", 0, 33);
    context.fillText("alignment", 0, middle);
    context.textAlign = "right";
    for (const [label, y] of [["1", success(1)], ["0", success(0)], ["+1", middle - reach + 3], ["−1", middle + reach - 3]]) context.fillText(label, PLOT_LEFT - 6, y);
    context.strokeStyle = colour("--line");
    for (const y of [success(0), success(1), middle]) { context.beginPath(); context.moveTo(PLOT_LEFT, y); context.lineTo(width - PLOT_RIGHT_MARGIN, y); context.stroke(); }
    this.drawSuccess(context, colour, x, success, width);
    const barWidth = Math.max(1, Math.min(5, ((width - PLOT_LEFT) / path.length) * 0.75)), density = Math.min(1, (2 * (width - PLOT_LEFT)) / Math.max(path.depths.length, 1));
    const colourOf = { 1: colour("--help"), [-1]: colour("--harm") };
    path.depths.forEach((depth, node) => {
      const alignment = path.value("alignment", pair, node);
      if (!alignment) return;
      context.globalAlpha = (path.isUndecided(pair, node) ? 0.28 : 0.95) * Math.max(density, 0.25);
      context.fillStyle = colourOf[Math.sign(alignment)];
      context.fillRect(x(depth) - barWidth / 2, Math.min(middle, middle - alignment * reach), barWidth, Math.max(Math.abs(alignment) * reach, 1));
    });
    this.drawOverlay();
  }

  // Where several tokens share a pixel, it shows the range of their values.
  drawSuccess(context, colour, x, success, width) {
    const { path } = this.view, { columns } = path, perPixel = Math.max(1, Math.floor(path.length / (width - PLOT_LEFT))), pixels = [];
    for (let depth = 0; depth < path.length; depth += perPixel) {
      const pixel = { x: x(Math.min(depth + (perPixel - 1) / 2, path.length - 1)), low: 1, high: 0, min: 1, max: 0 };
      for (let next = depth; next < Math.min(depth + perPixel, path.length); next += 1) {
        const child = path.ownChild[next], q = columns.q[child];
        if (Number.isNaN(q)) continue;
        pixel.low = Math.min(pixel.low, columns.q_low[child]);
        pixel.high = Math.max(pixel.high, columns.q_high[child]);
        pixel.min = Math.min(pixel.min, q);
        pixel.max = Math.max(pixel.max, q);
      }
      if (pixel.min <= pixel.max) pixels.push(pixel);
    }
    context.fillStyle = colour("--open");
    context.globalAlpha = 0.28;
    context.beginPath();
    for (const pixel of pixels) context.lineTo(pixel.x, success(pixel.high));
    for (const pixel of [...pixels].reverse()) context.lineTo(pixel.x, success(pixel.low));
    context.fill();
    context.globalAlpha = 1;
    if (perPixel === 1) {
      context.strokeStyle = colour("--ink");
      context.lineWidth = 1.3;
      context.beginPath();
      for (const pixel of pixels) context.lineTo(pixel.x, success(pixel.min));
      context.stroke();
    } else {
      context.fillStyle = colour("--ink");
      for (const pixel of pixels) context.fillRect(pixel.x - 0.5, success(pixel.max) - 0.6, 1, success(pixel.min) - success(pixel.max) + 1.2);
    }
  }

  requestOverlay() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.drawOverlay(); });
  }

  drawOverlay() {
    const { canvas, curves, x, view: { path, depth } } = this, context = canvas.getContext("2d"), ratio = devicePixelRatio || 1, height = canvas.clientHeight;
    if (!curves || !curves.width) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    const style = getComputedStyle(document.documentElement);
    if (path && x) {
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      const [from, to] = this.view.visibleRange();
      context.fillStyle = style.getPropertyValue("--faint");
      if (to - from < 0.98 * path.length) context.fillRect(x(from), 0, Math.max(x(to) - x(from), 2), height);
      context.setTransform(1, 0, 0, 1, 0, 0);
    }
    context.drawImage(curves, 0, 0);
    if (path && depth >= 0 && x) {
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = style.getPropertyValue("--ink");
      context.fillRect(x(depth) - 0.5, 0, 1, height);
      context.beginPath();
      context.arc(x(depth), 66, 3.5, 0, 7);
      context.fill();
    }
  }

  // Selects the token at a horizontal position, preferring a decision nearby.
  selectNear(offsetX) {
    const { path } = this.view;
    if (!path) return;
    const position = ((offsetX - PLOT_LEFT) / (this.canvas.clientWidth - PLOT_LEFT - PLOT_RIGHT_MARGIN)) * path.length;
    let nearest = Math.max(0, Math.min(Math.round(position - 0.5), path.length - 1)), distance = Math.max(2, path.length / 150);
    for (const depth of path.depths) if (Math.abs(depth - position) < distance) { distance = Math.abs(depth - position); nearest = depth; }
    this.view.select(nearest);
  }
}
