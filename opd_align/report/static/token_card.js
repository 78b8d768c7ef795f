// The details of one token: the tooltip on hover, and the card of the selected token with its children.

// The token's text, followed by what is known about it.
function tokenSummary({ path, pair, metadata }, depth) {
  const token = visibleToken(metadata.token_texts[path.tokenAt(depth)]), node = path.nodeAt[depth];
  if (node < 0) return [token, "not a decision"];
  const alignment = path.value("alignment", pair, node), srRange = `SR range ${plain(path.columns["node.sr_range"][node])}`;
  if (Number.isNaN(alignment)) return [token, "no effect on success", srRange];
  return [token, metadata.verdicts[path.value("verdict", pair, node)], `alignment ${signed(alignment, 2)}`, srRange];
}

function showTokenTooltip(view, depth, target) {
  const tip = byId("tip"), [token, ...facts] = tokenSummary(view, depth), children = view.path.children(depth, view.pair, view.teacher).slice(0, 4);
  const cells = (tag, values) => values.map((value) => html(tag, {}, value));
  tip.replaceChildren(
    html("div", {}, html("b", {}, token), ` · ${facts.join(" · ")}`),
    html("table", {}, html("tr", {}, ...cells("th", ["next token", "p", "t", "Q"])), ...children.map((child) => html("tr", { className: child.own ? "own" : "" },
      ...cells("td", [clipped(visibleToken(view.metadata.token_texts[child.token]), 16), probability(child.p), probability(child.t), probability(child.q)])))),
  );
  tip.hidden = false;
  const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const rightEdge = Math.min(innerWidth, view.text.getBoundingClientRect().right);
  tip.style.left = `${Math.max(8, Math.min(box.left, rightEdge - size.width - 12))}px`;
  tip.style.top = `${box.bottom + size.height + 14 > innerHeight ? box.top - size.height - 8 : box.bottom + 8}px`;
}

// With two continuations the alignment is +1 or −1 and nothing between: an interval would be [−1, −1] beside a
// probability of 2% that it is positive.
function alignmentText(alignment, low, high, positive, nKnown) {
  const likely = chance(alignment < 0 ? 1 - positive : positive), sign = alignment < 0 ? "negative" : "positive";
  if (nKnown === 2 && alignment !== 0) return `alignment ${signed(Math.sign(alignment), 0)} with probability ${likely} (two continuations: it is either +1 or −1)`;
  return `alignment ${signed(alignment, 2)}, 90% interval [${signed(low, 2)}, ${signed(high, 2)}], ${sign} with probability ${likely}`;
}

function drawTokenCard(view) {
  const { path, depth, pair, teacher, metadata } = view;
  if (!path || depth < 0) return;
  const node = path.nodeAt[depth], [token] = tokenSummary(view, depth);
  const decision = node < 0 ? "" : ` · decision ${node + 1} of ${path.depths.length}`;
  const parts = [html("h4", {}, clipped(token, 80)), html("div", { className: "position" }, `token ${depth + 1} of ${formatCount(path.length)}${decision}`)];
  const summary = html("p", { className: "summary" }), ofPair = (name) => path.value(name, pair, node), alignment = node < 0 ? NaN : ofPair("alignment");
  if (node < 0) summary.append("Not a decision: fewer than two continuations have a well-estimated success rate.");
  else if (Number.isNaN(alignment)) summary.append(html("span", { className: "chip undecided" }, "no effect"), "All known continuations have the same success rate.");
  else {
    const verdict = metadata.verdicts[ofPair("verdict")];
    summary.append(html("span", { className: `chip ${verdict}` }, verdict), alignmentText(alignment, ofPair("low"), ofPair("high"), ofPair("positive"), path.children(depth, pair, teacher).filter(({ known }) => known).length));
  }
  parts.push(summary, childrenChart(path.children(depth, pair, teacher), metadata.token_texts));
  if (node >= 0) {
    const ofTeacher = (name) => path.value(name, teacher, node), common = (name) => path.columns[`node.${name}`][node], list = html("dl");
    const facts = [["SR range", plain(common("sr_range"))], ["advantage", signed(ofTeacher("advantage"))], ["KL", plain(ofTeacher("kl"))], ["JS", plain(ofTeacher("js"))], ["L2", plain(ofTeacher("l2"))], ["cosine(p, t)", plain(ofTeacher("cosine"))],
      ["student entropy", plain(common("student_entropy"), 2)], ["teacher entropy", plain(ofTeacher("teacher_entropy"), 2)], ["visits", formatCount(common("visits"))], ["unseen mass", plain(common("tail_mass"))]];
    for (const [name, value] of facts) list.append(html("dt", {}, name), html("dd", {}, value));
    parts.push(list);
  }
  view.card.replaceChildren(...parts);
}

// One row per child: p and t as bars, Q as a dot with its interval, both updates as bars from a common zero.
function childrenChart(children, tokenTexts) {
  const rows = children.filter((child, index) => child.known || child.own || index < 6), rowHeight = 40, width = 392, top = 22;
  const label = rows.map((child) => `${visibleToken(tokenTexts[child.token])}: p ${plain(child.p, 2)}, t ${plain(child.t, 2)}, Q ${plain(child.q, 2)}`).join("; ");
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${top + rowHeight * rows.length}`, role: "img", "aria-label": label });
  const barX = 100, barWidth = 58, qX = 210, qWidth = 62, updateX = 352, updateReach = 38;
  const maxAbs = (name) => Math.max(1e-12, ...rows.map((child) => Math.abs(child[name]) || 0));
  const maxUpdate = { ideal: maxAbs("ideal"), update: maxAbs("update") };
  for (const [x, title, anchor] of [[0, "next token", "start"], [barX, "student, teacher", "start"], [qX, "success Q", "start"], [updateX, "update", "middle"]]) drawing.append(text(x, 8, title, { class: "soft", "text-anchor": anchor }));
  rows.forEach((child, index) => {
    const y = top + rowHeight * (index + 0.5), group = svg("g", { opacity: child.known ? 1 : 0.5 }), token = visibleToken(tokenTexts[child.token]);
    group.append(svg("title", {}, `${token}: p ${plain(child.p)}, t ${plain(child.t)}, Q ${plain(child.q)} [${plain(child.low)}, ${plain(child.high)}], ${child.visits} visits; ideal update ${signed(child.ideal)}, update of the objective ${signed(child.update)}`));
    group.append(text(0, y, (child.own ? "▸ " : "") + clipped(token, child.own ? 11 : 13), { "font-family": "var(--mono)", "font-weight": child.own ? 600 : 400 }));
    for (const [name, value, fill, shift] of [["p", child.p, "var(--ink)", -7], ["t", child.t, "var(--open)", 7]]) {
      if (Number.isNaN(value)) continue;
      group.append(svg("rect", { x: barX, y: y + shift - 3.5, width: barWidth, height: 7, rx: 2, fill: "var(--faint)" }), svg("rect", { x: barX, y: y + shift - 3.5, width: Math.max(value * barWidth, 0.8), height: 7, rx: 2, fill }), text(barX + barWidth + 5, y + shift, `${name} ${probability(value)}`, { class: "soft" }));
    }
    const q = (value) => qX + value * qWidth;
    group.append(svg("line", { x1: qX, x2: qX + qWidth, y1: y, y2: y, stroke: "var(--line)", "stroke-width": 1.5 }));
    if (!Number.isNaN(child.q)) group.append(svg("line", { x1: q(child.low), x2: q(child.high), y1: y, y2: y, stroke: "var(--ink)", "stroke-width": 3, opacity: 0.3, "stroke-linecap": "round" }), svg("circle", { cx: q(child.q), cy: y, r: 4, fill: "var(--ink)" }), text(qX + qWidth + 7, y, probability(child.q), { class: "soft" }));
    group.append(svg("line", { x1: updateX, x2: updateX, y1: y - 14, y2: y + 14, stroke: "var(--line)" }));
    const agreement = child.update * child.ideal > 0 ? "var(--help)" : "var(--harm)";
    for (const [name, fill, shift] of [["ideal", "var(--open)", -6], ["update", agreement, 6]]) {
      if (Number.isNaN(child[name])) continue;
      const length = (child[name] / maxUpdate[name]) * updateReach;
      group.append(svg("rect", { x: Math.min(updateX, updateX + length), y: y + shift - 4, width: Math.max(Math.abs(length), 0.8), height: 8, rx: 2, fill }));
    }
    drawing.append(group);
  });
  const hidden = children.length - rows.length;
  const legend = `update: ideal in grey, the objective's in blue (same direction) or orange (opposite direction), each on its own scale${hidden > 0 ? ` · ${hidden} more token${hidden > 1 ? "s" : ""}` : ""}`;
  return html("div", {}, drawing, html("div", { className: "position" }, legend));
}
