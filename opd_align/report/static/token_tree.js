// The generation tree around the selected token: the path in the top row, below each of its tokens the alternatives.

const MAX_ALTERNATIVES = 4;

function drawTokenTree(view) {
  const { path, depth, pair, metadata: { token_texts: tokenTexts } } = view;
  if (!path || depth < 0) return;
  const width = Math.max(byId("tree").clientWidth, 320), nColumns = Math.max(2, Math.min(7, Math.floor(width / 165))), columnWidth = width / nColumns;
  const rowHeight = 42, pathY = 34, padding = 16;
  const first = Math.max(0, Math.min(depth - Math.floor(nColumns / 3), path.length - nColumns)), columns = [];
  for (let position = first; position < Math.min(first + nColumns, path.length); position += 1) columns.push([position, path.children(position, pair, view.teacher)]);
  const nRows = Math.max(1, ...columns.map(([, children]) => Math.min(children.length - 1, MAX_ALTERNATIVES) + (children.length - 1 > MAX_ALTERNATIVES ? 1 : 0)));
  const { drawing } = chart("tree", pathY + 30 + rowHeight * nRows, "The generation tree around the selected token");
  const label = (child, x, y, bold) => [
    text(x, y, clipped(visibleToken(tokenTexts[child.token]), Math.floor((columnWidth - 30) / 7.8)), { class: "token", "font-weight": bold ? 600 : 400 }),
    text(x, y + 16, `p ${probability(child.p)}\u2002t ${probability(child.t)}\u2002Q ${probability(child.q)}`, { class: "soft", "font-size": 11 }),
  ];
  columns.forEach(([position, children], index) => {
    const left = index * columnWidth, own = children.find((child) => child.own), others = children.filter((child) => !child.own);
    const x = left + padding + 8, isSelected = position === depth;
    if (isSelected) drawing.append(svg("rect", { x: left + 1, y: 2, width: columnWidth - 2, height: pathY + 26 + rowHeight * nRows, rx: 9, fill: "var(--faint)" }));
    drawing.append(svg("line", { x1: left + 2, x2: left + columnWidth - 2, y1: 13, y2: 13, stroke: "var(--ink)", "stroke-width": 1 + 4 * own.p, opacity: 0.25 }));
    const node = path.nodeAt[position], alignment = node < 0 ? NaN : path.value("alignment", pair, node), stroke = Number.isNaN(alignment) ? "var(--open)" : colourOfSign(alignment);
    drawing.append(svg("circle", { cx: left + padding - 4, cy: 13, r: isSelected ? 6 : 4.5, fill: !Number.isNaN(alignment) && path.isUndecided(pair, node) ? "var(--panel)" : stroke, stroke, "stroke-width": 2 }));
    const ownToken = svg("g", { class: "go" }, svg("rect", { x: left + 4, y: 6, width: columnWidth - 8, height: 48, rx: 7, fill: "transparent" }), ...label(own, x, pathY, true));
    drawing.append(asButton(ownToken, isSelected, `${visibleToken(tokenTexts[own.token])}, token ${position + 1}`, () => view.select(position)));
    others.slice(0, MAX_ALTERNATIVES).forEach((child, row) => {
      const y = pathY + rowHeight * (row + 1), otherPath = view.branches.find((branch) => branch.depth === position && branch.token === child.token);
      drawing.append(svg("path", { d: `M${left + padding - 4} 13V${y - 8}Q${left + padding - 4} ${y} ${x - 3} ${y}`, fill: "none", stroke: "var(--ink)", "stroke-width": Math.max(0.7, 5 * child.p), opacity: 0.22 }));
      const branch = svg("g", otherPath ? { class: "go" } : { opacity: child.known ? 1 : 0.55 }, svg("rect", { x: x - 5, y: y - 10, width: columnWidth - padding - 12, height: 36, rx: 7, fill: "transparent" }), ...label(child, x, y, false));
      if (otherPath) {
        branch.append(text(left + columnWidth - 14, y, "↗", { class: "soft", "text-anchor": "end" }));
        asButton(branch, false, `open path ${otherPath.index + 1}, which takes this token`, () => view.openPath(otherPath.index, position));
      }
      drawing.append(branch);
    });
    if (others.length > MAX_ALTERNATIVES) drawing.append(text(x, pathY + rowHeight * (MAX_ALTERNATIVES + 1) - 4, `${others.length - MAX_ALTERNATIVES} more`, { class: "soft", "font-size": 11 }));
  });
}
