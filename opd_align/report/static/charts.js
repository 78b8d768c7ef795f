// The report's charts: each draws one figure of an objective or a teacher.

// Teachers as dots with whiskers; beside them how their decisions divide.
function drawRanking(teachers, chosen, choose) {
  if (!teachers.length) return nothing("ranking", "No decision could be compared.");
  const step = 38, top = 24, { drawing, width, height } = chart("ranking", top + step * teachers.length + 26, "Teachers by mean alignment");
  const left = Math.min(150, width * 0.26), share = 108, number = 116, right = width - number - share - 28;
  const domain = extent(teachers.flatMap(({ alignment: { mean, half } }) => mean == null ? [] : [mean - (half || 0), mean + (half || 0)]), 0);
  const at = scale(domain, left + 12, right), bottom = top + step * teachers.length;
  const shareAt = width - share;
  const rows = teachers.map((teacher, index) => {
    const y = top + step * (index + 0.5), { mean, half, text: said } = teacher.alignment, colour = colourOf(teacher.side);
    const row = svg("g", { class: "row" }, svg("rect", { class: "back", x: -8, y: y - step / 2 + 2, width: width + 16, height: step - 4, rx: 7 }));
    row.append(svg("title", {}, `${teacher.name}: ${said}, ${teacher.nodes.toLocaleString("en")} decisions`));
    row.append(text(0, y, clipped(teacher.name, Math.floor(left / 7)), { class: "who" }));
    if (mean != null) {
      if (half != null) row.append(svg("line", { x1: at(mean - half), x2: at(mean + half), y1: y, y2: y, stroke: colour, "stroke-width": 2.5, "stroke-linecap": "round", opacity: 0.55 }));
      row.append(svg("circle", { cx: at(mean), cy: y, r: 5.5, fill: colour }));
    }
    row.append(text(right + number, y, said, { "text-anchor": "end", class: "number" }));
    let x = shareAt;
    for (const [name, colourName, opacity] of [["helpful", "--help", 0.85], ["undecided", "--open", 0.28], ["harmful", "--harm", 0.85]]) {
      const long = (teacher[name] || 0) * share;
      row.append(svg("rect", { x, y: y - 5, width: Math.max(long - 1, 0), height: 10, rx: 2, fill: `var(${colourName})`, opacity }, svg("title", {}, `${name} ${percent(teacher[name])}`)));
      x += long;
    }
    return pressable(row, teacher.name === chosen, `${teacher.name}, alignment ${said}`, () => choose(teacher.name));
  });
  bottomAxis(drawing, at, domain, bottom + 2, top, 4);
  drawing.append(text(right + number, 10, "mean ± 95 %", { class: "soft", "text-anchor": "end", "font-size": 11 }));
  drawing.append(text(shareAt, 10, "helps", { class: "soft", "font-size": 11 }), text(shareAt + share / 2, 10, "open", { class: "soft", "text-anchor": "middle", "font-size": 11 }), text(width, 10, "harms", { class: "soft", "text-anchor": "end", "font-size": 11 }));
  drawing.append(...rows);
}

function drawContrast(teachers, chosen, choose) {
  const known = teachers.filter(({ contrast }) => contrast.correct != null || contrast.incorrect != null);
  if (!known.length) return nothing("contrast", "There are no correct and incorrect rollouts to compare.");
  const step = 38, top = 24, { drawing, width } = chart("contrast", top + step * known.length + 26, "Correct against incorrect rollouts");
  const left = Math.min(140, width * 0.28), number = 178, right = width - number;
  const domain = extent(known.flatMap(({ contrast }) => [contrast.correct, contrast.incorrect]), 0);
  const at = scale(domain, left + 12, right - 8), bottom = top + step * known.length;
  const rows = known.map((teacher, index) => {
    const y = top + step * (index + 0.5), { correct, incorrect, delta, p } = teacher.contrast;
    const row = svg("g", { class: "row" }, svg("rect", { class: "back", x: -8, y: y - step / 2 + 2, width: width + 16, height: step - 4, rx: 7 }));
    row.append(svg("title", {}, `${teacher.name}: correct ${signed(correct)}, incorrect ${signed(incorrect)}, difference ${delta.text}, p ${p}`));
    row.append(text(0, y, clipped(teacher.name, Math.floor(left / 7)), { class: "who" }));
    if (correct != null && incorrect != null) row.append(svg("line", { x1: at(correct), x2: at(incorrect), y1: y, y2: y, stroke: "var(--open)", "stroke-width": 2 }));
    if (correct != null) row.append(svg("circle", { cx: at(correct), cy: y, r: 5, fill: "var(--ink)" }));
    if (incorrect != null) row.append(svg("circle", { cx: at(incorrect), cy: y, r: 4.5, fill: "var(--panel)", stroke: "var(--ink)", "stroke-width": 2 }));
    row.append(text(width - 50, y, delta.text, { "text-anchor": "end" }), text(width, y, p, { "text-anchor": "end", class: "soft" }));
    return pressable(row, teacher.name === chosen, `${teacher.name}: correct ${signed(correct)}, incorrect ${signed(incorrect)}`, () => choose(teacher.name));
  });
  bottomAxis(drawing, at, domain, bottom + 2, top, 4);
  drawing.append(text(width - 50, 10, "Δ ± 95 %", { class: "soft", "text-anchor": "end", "font-size": 11 }), text(width, 10, "p", { class: "soft", "text-anchor": "end", "font-size": 11 }));
  drawing.append(...rows);
}

// Signal against the share of decisions kept, from all on the left to few on the right.
function drawCurves(teacher) {
  if (!teacher) return nothing("curves", "No decision could be compared.");
  const { drawing, width, height } = chart("curves", 250, "Signal of selective distillation");
  const lines = [
    { name: "hindsight", colour: "var(--ink)", points: teacher.oracle.map((row) => [row.kept, row.signal.mean]) },
    { name: "cross-fitted", colour: "var(--ink)", dash: "5 4", points: teacher.oracle.map((row) => [row.kept, row.fitted.mean]) },
    ...Object.entries(teacher.filters).map(([name, rows], index) => ({
      name: `${name.toUpperCase()} filter`, colour: "var(--open)", dash: index ? "2 3" : "", points: rows.map((row) => [row.kept, row.signal.mean]),
    })),
  ].map((line) => ({ ...line, points: line.points.filter(([kept, signal]) => kept != null && signal != null && kept > 0).sort((a, b) => b[0] - a[0]) }))
    .filter((line) => line.points.length);
  if (!lines.length) return nothing("curves", "Too few decisions.");
  const left = 44, right = width - 104, top = 10, bottom = height - 40;
  const domain = extent(lines.flatMap((line) => line.points.map((point) => point[1])), 0);
  const x = scale([1, 0], left, right), y = scale(domain, bottom, top);
  for (const tick of ticks(...domain, 4)) {
    drawing.append(svg("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: tick === 0 ? "zero" : "axis" }));
    drawing.append(text(left - 8, y(tick), tickText(tick), { class: "soft", "text-anchor": "end", "font-size": 11 }));
  }
  for (const tick of [1, 0.75, 0.5, 0.25, 0]) drawing.append(text(x(tick), bottom + 14, `${100 * tick}`, { class: "soft", "text-anchor": "middle", "font-size": 11 }));
  drawing.append(text((left + right) / 2, bottom + 31, "decisions kept, %", { class: "soft", "text-anchor": "middle", "font-size": 11 }));
  const ends = [];
  for (const { name, colour, dash, points } of lines) {
    const d = points.map(([kept, signal], index) => `${index ? "L" : "M"}${x(kept).toFixed(1)} ${y(signal).toFixed(1)}`).join("");
    drawing.append(svg("path", { d, fill: "none", stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash || "none", "stroke-linejoin": "round" }));
    for (const [kept, signal] of points) drawing.append(svg("circle", { cx: x(kept), cy: y(signal), r: 2.4, fill: colour }, svg("title", {}, `${name}: ${percent(kept)} kept, signal ${signed(signal)}`)));
    const last = points[points.length - 1];
    ends.push({ name, colour, dash, at: y(last[1]) });
  }
  ends.sort((a, b) => a.at - b.at);
  ends.forEach((end, index) => { end.y = index ? Math.max(end.at, ends[index - 1].y + 16) : end.at; });
  const overflow = Math.max(0, ends[ends.length - 1].y - bottom);
  for (const { name, y: high, colour, dash } of ends) {
    drawing.append(svg("line", { x1: right + 8, x2: right + 26, y1: high - overflow, y2: high - overflow, stroke: colour, "stroke-width": 1.8, "stroke-dasharray": dash || "none" }));
    drawing.append(text(right + 31, high - overflow, name, { class: "soft", "font-size": 11.5 }));
  }
}

function drawSpread(teacher, note) {
  if (!teacher || !teacher.nodes) { note.textContent = ""; return nothing("spread", "No decision could be compared."); }
  const { counts, plus_one: plus, minus_one: minus } = teacher.histogram;
  note.textContent = `${teacher.nodes.toLocaleString("en")} decisions. ${percent(teacher.two_children)} have two continuations, where alignment can only be +1 (${percent(plus)} of all) or −1 (${percent(minus)}).`;
  const { drawing, width, height } = chart("spread", 250, "Distribution of alignment");
  const most = Math.max(...counts, 1), bottom = height - 40, each = width / counts.length;
  counts.forEach((count, index) => {
    const high = (count / most) * (bottom - 22), centre = (index + 0.5) / counts.length * 2 - 1;
    drawing.append(svg("rect", { x: index * each + 0.5, y: bottom - high, width: Math.max(each - 1, 1), height: high, rx: 1, fill: colourOf(centre), opacity: 0.35 + 0.5 * Math.abs(centre) }, svg("title", {}, `${count.toLocaleString("en")} decisions`)));
  });
  drawing.append(svg("line", { x1: 0, x2: width, y1: bottom + 0.5, y2: bottom + 0.5, class: "axis" }));
  drawing.append(svg("line", { x1: width / 2, x2: width / 2, y1: 12, y2: bottom, class: "zero" }));
  for (const [at, anchor, label] of [[0, "start", "−1"], [0.5, "middle", "0"], [1, "end", "+1"]]) drawing.append(text(at * width, bottom + 14, label, { class: "soft", "text-anchor": anchor, "font-size": 11 }));
  drawing.append(text(width / 2, bottom + 31, "alignment", { class: "soft", "text-anchor": "middle", "font-size": 11 }));
}

function drawCorrelations(rows, chosen) {
  const features = [...new Set(rows.map((row) => row.feature))];
  if (!features.length) return nothing("correlations", "This objective follows no teacher.");
  const { drawing, width, height } = chart("correlations", 250, "Correlations with alignment");
  const names = { "depth normalised": "depth", kl: "KL", js: "JS", l2: "L2", cosine: "cosine" };
  const left = 62, bottom = height - 40, step = bottom / features.length;
  const used = rows.filter((row) => row.teacher === chosen || row.teacher == null);
  const reach = Math.max(0.12, ...used.map(({ rho: { mean, half } }) => mean == null ? 0 : Math.abs(mean) + Math.min(half || 0, 1)));
  const domain = [-Math.min(reach, 1) * 1.05, Math.min(reach, 1) * 1.05], at = scale(domain, left, width - 6);
  bottomAxis(drawing, at, domain, bottom + 2, 0, 4);
  features.forEach((feature, index) => {
    const y = step * (index + 0.5);
    drawing.append(text(0, y, names[feature] || feature));
    for (const row of used.filter((candidate) => candidate.feature === feature && candidate.rho.mean != null)) {
      const own = row.teacher != null, { mean, half, text: said } = row.rho, here = own ? y - 4 : y + 6;
      const group = svg("g", { opacity: own ? 1 : 0.65 }, svg("title", {}, `${row.teacher || "all teachers"}: ${said}, ${row.paths} paths`));
      if (half != null) group.append(svg("line", { x1: at(Math.max(mean - half, domain[0])), x2: at(Math.min(mean + half, domain[1])), y1: here, y2: here, stroke: "var(--ink)", "stroke-width": 1.6, opacity: 0.5 }));
      group.append(svg("circle", { cx: at(mean), cy: here, r: 4, fill: own ? "var(--ink)" : "var(--panel)", stroke: "var(--ink)", "stroke-width": 1.6 }));
      drawing.append(group);
    }
  });
  drawing.append(text((left + width) / 2, bottom + 31, "Spearman ρ within paths", { class: "soft", "text-anchor": "middle", "font-size": 11 }));
}
