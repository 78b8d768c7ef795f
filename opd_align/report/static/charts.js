// The charts of the report: each function draws one figure of an objective or of a teacher.

const ROW_HEIGHT = 38, TALL_ROW_HEIGHT = 56, NARROW = 480;
const small = (anchor) => ({ class: "soft", "text-anchor": anchor, "font-size": 11 });

const maxTicks = (width) => Math.max(2, Math.min(4, Math.floor(width / 45)));

// The layout of a teacher chart with `n` rows. On a narrow screen, name and numbers are above the marks, which then have
// the whole width: beside them, nothing would be left of the scale.
function teacherRows(id, n, label, { nameWidth, rightWidth }) {
  const isNarrow = byId(id).clientWidth < NARROW, rowHeight = isNarrow ? TALL_ROW_HEIGHT : ROW_HEIGHT, top = 24, bottom = top + rowHeight * n;
  const { drawing, width } = chart(id, bottom + 26, label), names = isNarrow ? 0 : Math.min(nameWidth, width * 0.28);
  const from = isNarrow ? 10 : names + 12, to = isNarrow ? width - 10 : width - rightWidth;
  const row = (teacher, index, tooltip) => {
    const middle = top + rowHeight * (index + 0.5), y = isNarrow ? middle + 12 : middle, textY = isNarrow ? middle - 12 : middle;
    const group = svg("g", { class: "row" }, svg("rect", { class: "back", x: -8, y: middle - rowHeight / 2 + 2, width: width + 16, height: rowHeight - 4, rx: 7 }));
    group.append(svg("title", {}, tooltip), text(0, textY, clipped(teacher.name, Math.floor((isNarrow ? width - 190 : names) / 7)), { class: "teacher" }));
    return { group, y, textY };
  };
  return { drawing, width, isNarrow, from, to, top, bottom, row };
}

// Mean alignment with its interval; on the right the shares of helpful, undecided and harmful decisions.
function drawRanking(teachers, selected, onSelect) {
  if (!teachers.length) return showMessage("ranking", "There are no decisions to compare.");
  const shareWidth = 156, numberWidth = 116;
  const { drawing, width, isNarrow, from, to, top, bottom, row: newRow } = teacherRows("ranking", teachers.length, "Teachers by mean alignment", { nameWidth: 150, rightWidth: numberWidth + shareWidth + 28 });
  // On a narrow screen there is no space for the shares; the tables have them.
  const showShares = !isNarrow, shareX = width - shareWidth, numberX = isNarrow ? width : to + numberWidth;
  const domain = extent(teachers.flatMap(({ alignment: { mean, half_width: half } }) => mean == null ? [] : [mean - (half || 0), mean + (half || 0)]), 0);
  const x = scale(domain, from, to);
  const rows = teachers.map((teacher, index) => {
    const { mean, half_width: half, text: value } = teacher.alignment, colour = colourOfSign(teacher.sign);
    const { group: row, y, textY } = newRow(teacher, index, `${teacher.name}: ${value}, ${counted(teacher.nodes, "decision")}`);
    if (mean != null) {
      if (half != null) row.append(svg("line", { x1: x(mean - half), x2: x(mean + half), y1: y, y2: y, stroke: colour, "stroke-width": 2.5, "stroke-linecap": "round", opacity: 0.55 }));
      row.append(svg("circle", { cx: x(mean), cy: y, r: 5.5, fill: colour }));
    }
    row.append(text(numberX, textY, value, { "text-anchor": "end", class: "number" }));
    let left = shareX;
    for (const [verdict, variable, opacity] of showShares ? [["helpful", "--help", 0.85], ["undecided", "--open", 0.28], ["harmful", "--harm", 0.85]] : []) {
      const length = (teacher[verdict] || 0) * shareWidth;
      row.append(svg("rect", { x: left, y: y - 5, width: Math.max(length - 1, 0), height: 10, rx: 2, fill: `var(${variable})`, opacity }, svg("title", {}, `${verdict}: ${percent(teacher[verdict])}`)));
      left += length;
    }
    return asButton(row, teacher.name === selected, `${teacher.name}, alignment ${value}`, () => onSelect(teacher.name));
  });
  bottomAxis(drawing, x, domain, bottom + 2, top, maxTicks(to - from));
  drawing.append(text(numberX, 10, "mean ± 95%", small("end")));
  if (showShares) drawing.append(text(shareX, 10, "helpful", small("start")), text(shareX + shareWidth / 2, 10, "undecided", small("middle")), text(width, 10, "harmful", small("end")));
  drawing.append(...rows);
}

function drawContrast(teachers, selected, onSelect) {
  const known = teachers.filter(({ contrast }) => contrast.correct != null || contrast.incorrect != null);
  if (!known.length) return showMessage("contrast", "There are no correct and incorrect rollouts to compare.");
  const { drawing, width, from, to, top, bottom, row: newRow } = teacherRows("contrast", known.length, "Correct vs. incorrect rollouts", { nameWidth: 140, rightWidth: 186 });
  const domain = extent(known.flatMap(({ contrast }) => [contrast.correct, contrast.incorrect]), 0), x = scale(domain, from, to);
  const rows = known.map((teacher, index) => {
    const { correct, incorrect, delta, p } = teacher.contrast, values = `${teacher.name}: correct ${signed(correct)}, incorrect ${signed(incorrect)}`;
    const { group: row, y, textY } = newRow(teacher, index, `${values}, difference ${delta.text}, p = ${p}`);
    if (correct != null && incorrect != null) row.append(svg("line", { x1: x(correct), x2: x(incorrect), y1: y, y2: y, stroke: "var(--open)", "stroke-width": 2 }));
    if (correct != null) row.append(svg("circle", { cx: x(correct), cy: y, r: 5, fill: "var(--ink)" }));
    if (incorrect != null) row.append(svg("circle", { cx: x(incorrect), cy: y, r: 4.5, fill: "var(--panel)", stroke: "var(--ink)", "stroke-width": 2 }));
    row.append(text(width - 50, textY, delta.text, { "text-anchor": "end" }), text(width, textY, p, { "text-anchor": "end", class: "soft" }));
    return asButton(row, teacher.name === selected, values, () => onSelect(teacher.name));
  });
  bottomAxis(drawing, x, domain, bottom + 2, top, maxTicks(to - from));
  drawing.append(text(width - 50, 10, "Δ ± 95%", small("end")), text(width, 10, "p", small("end")));
  drawing.append(...rows);
}

// Signal against the share of decisions kept, from all on the left to few on the right; bands are 95% intervals.
function drawSelectiveCurves(teacher) {
  if (!teacher) return showMessage("selective-curves", "There are no decisions to compare.");
  const { drawing, width, height } = chart("selective-curves", 250, "Signal of selective distillation");
  const styles = { oracle: { colour: "var(--ink)" }, "cross-fitted": { colour: "var(--ink)", dash: "5 4", band: true } };
  const lines = teacher.curves.filter(({ points }) => points.length).map(({ name, points }, index) => ({
    name: styles[name] ? name : `${name.toUpperCase()} filter`, colour: "var(--help)", dash: index > 2 ? "2 3" : "", band: index === 2, ...styles[name],
    points: points.map(({ kept, signal, low, high }) => [kept, signal, low, high]),
  }));
  if (!lines.length) return showMessage("selective-curves", "There are too few decisions.");
  const left = 44, right = width - 104, top = 10, bottom = height - 40;
  const domain = extent(lines.flatMap((line) => line.points.flatMap((point) => line.band ? point.slice(1) : [point[1]])), 0);
  const x = scale([1, 0], left, right), y = scale(domain, bottom, top);
  for (const tick of ticks(...domain, 4)) {
    drawing.append(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: tick === 0 ? "zero" : "axis" }));
    drawing.append(text(left - 8, y(tick), tickText(tick), small("end")));
  }
  for (const tick of [1, 0.75, 0.5, 0.25, 0]) drawing.append(text(x(tick), bottom + 14, `${100 * tick}`, small("middle")));
  drawing.append(text((left + right) / 2, bottom + 31, "decisions kept (%)", small("middle")));
  const labels = [];
  for (const { colour, band, points } of lines) {
    const known = points.filter(([, , low]) => low != null);
    if (!band || known.length < 2) continue;
    const corners = [...known.map(([kept, , , high]) => [kept, high]), ...known.map(([kept, , low]) => [kept, low]).reverse()];
    drawing.append(svg("path", { d: `${corners.map(([kept, value], index) => `${index ? "L" : "M"}${x(kept).toFixed(1)} ${y(value).toFixed(1)}`).join("")}Z`, fill: colour, opacity: 0.1, class: "band" }));
  }
  for (const { name, colour, dash, points } of lines) {
    const d = points.map(([kept, signal], index) => `${index ? "L" : "M"}${x(kept).toFixed(1)} ${y(signal).toFixed(1)}`).join("");
    drawing.append(svg("path", { d, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" }));
    for (const [kept, signal, low, high] of points) {
      const interval = low == null ? "" : `, 95% interval ${signed(low)} to ${signed(high)}`;
      drawing.append(svg("circle", { cx: x(kept), cy: y(signal), r: 2.4, fill: colour }, svg("title", {}, `${name}: ${percent(kept)} kept, signal ${signed(signal)}${interval}`)));
    }
    labels.push({ name, colour, dash, lineEnd: y(points[points.length - 1][1]) });
  }
  // Labels at the ends of their lines, moved apart where they would overlap.
  labels.sort((a, b) => a.lineEnd - b.lineEnd);
  labels.forEach((label, index) => { label.y = index ? Math.max(label.lineEnd, labels[index - 1].y + 16) : label.lineEnd; });
  const overflow = Math.max(0, labels[labels.length - 1].y - bottom);
  for (const { name, y: labelY, colour, dash } of labels) {
    drawing.append(svg("line", { x1: right + 8, x2: right + 26, y1: labelY - overflow, y2: labelY - overflow, stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash || "none" }));
    drawing.append(text(right + 31, labelY - overflow, name, { class: "soft", "font-size": 11.5 }));
  }
}

function drawHistogram(teacher, note) {
  if (!teacher || !teacher.nodes) { note.textContent = ""; return showMessage("histogram", "There are no decisions to compare."); }
  const { counts, plus_one: plusOne, minus_one: minusOne } = teacher.histogram;
  note.textContent = `${counted(teacher.nodes, "decision")}. ${percent(teacher.two_children)} have two continuations, where alignment is exactly +1 (${percent(plusOne)} of all) or −1 (${percent(minusOne)}).`;
  const { drawing, width, height } = chart("histogram", 250, "Distribution of alignment");
  const maxCount = Math.max(...counts, 1), bottom = height - 40, barWidth = width / counts.length;
  counts.forEach((count, index) => {
    const barHeight = (count / maxCount) * (bottom - 22), centre = (index + 0.5) / counts.length * 2 - 1;
    drawing.append(svg("rect", { x: index * barWidth + 0.5, y: bottom - barHeight, width: Math.max(barWidth - 1, 1), height: barHeight, rx: 1, fill: colourOfSign(centre), opacity: 0.35 + 0.5 * Math.abs(centre) }, svg("title", {}, counted(count, "decision"))));
  });
  drawing.append(svg("line", { x1: 0, x2: width, y1: bottom + 0.5, y2: bottom + 0.5, class: "axis" }));
  drawing.append(svg("line", { x1: width / 2, x2: width / 2, y1: 12, y2: bottom, class: "zero" }));
  for (const [share, anchor, label] of [[0, "start", "−1"], [0.5, "middle", "0"], [1, "end", "+1"]]) drawing.append(text(share * width, bottom + 14, label, small(anchor)));
  drawing.append(text(width / 2, bottom + 31, "alignment", small("middle")));
}

function drawCorrelations(rows, selected) {
  const features = [...new Set(rows.map((row) => row.feature))];
  if (!features.length) return showMessage("correlations", "Not available: this objective does not use a teacher, or there are no decisions.");
  const { drawing, width, height } = chart("correlations", 250, "Correlations with alignment");
  const labels = { "depth normalised": "depth", kl: "KL", js: "JS", l2: "L2", cosine: "cosine" };
  const left = 62, bottom = height - 40, rowHeight = bottom / features.length;
  const visible = rows.filter((row) => row.teacher === selected || row.teacher == null);
  const reach = Math.max(0.12, ...visible.map(({ rho: { mean, half_width: half } }) => mean == null ? 0 : Math.abs(mean) + Math.min(half || 0, 1)));
  const domain = [-Math.min(reach, 1) * 1.05, Math.min(reach, 1) * 1.05], x = scale(domain, left, width - 6);
  bottomAxis(drawing, x, domain, bottom + 2, 0, 5);
  features.forEach((feature, index) => {
    const y = rowHeight * (index + 0.5);
    drawing.append(text(0, y, labels[feature] || feature));
    for (const row of visible.filter((candidate) => candidate.feature === feature && candidate.rho.mean != null)) {
      const isSelected = row.teacher != null, { mean, half_width: half, text: value } = row.rho, rowY = isSelected ? y - 4 : y + 6;
      const group = svg("g", { opacity: isSelected ? 1 : 0.65 }, svg("title", {}, `${row.teacher || "all teachers"}: ${value}, ${counted(row.paths, "path")}`));
      if (half != null) group.append(svg("line", { x1: x(Math.max(mean - half, domain[0])), x2: x(Math.min(mean + half, domain[1])), y1: rowY, y2: rowY, stroke: "var(--ink)", "stroke-width": 1.6, opacity: 0.5 }));
      group.append(svg("circle", { cx: x(mean), cy: rowY, r: 4, fill: isSelected ? "var(--ink)" : "var(--panel)", stroke: "var(--ink)", "stroke-width": 1.6 }));
      drawing.append(group);
    }
  });
  drawing.append(text((left + width) / 2, bottom + 31, "Spearman ρ within paths", small("middle")));
}
