// Where a teacher helps and hurts: its best and worst decisions, and all of them by kind of token and by position.

// A table of decisions; each opens its place in the token view.
function decisionList(id, decisions, questions, onOpen) {
  if (!decisions.length) return showMessage(id, "None.");
  byId(id).replaceChildren(html("ol", { className: "decisions" }, ...decisions.map((decision) => {
    const { question, path, depth, token, kind, signal, verdict, correct } = decision;
    const button = html("button", { type: "button", className: "plain" },
      html("span", { className: "mono" }, visibleToken(token)), html("span", { className: `chip ${verdict}` }, verdict),
      html("span", { className: "number" }, signed(signal)), html("span", { className: "where" }, `${kind}, token ${depth + 1} of a${correct ? " correct" : "n incorrect"} rollout · ${clipped(questions[question].text || questions[question].id, 54)}`));
    button.addEventListener("click", () => onOpen(question, path, depth));
    return html("li", {}, button);
  })));
}

function partTable(id, title, parts) {
  const cell = (content) => html("td", { className: "n" }, content);
  const rows = parts.map(({ name, n_nodes: count, share, signal, helpful, harmful }) => html("tr", {}, html("td", {}, name), cell(formatCount(count)), cell(percent(share)), cell(signed(signal)), cell(percent(helpful)), cell(percent(harmful))));
  const head = html("tr", {}, html("th", {}, title), ...["decisions", "share", "signal", "helpful", "harmful"].map((name) => html("th", { className: "n" }, name)));
  byId(id).replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
}

function drawHighlights(teacher, questions, onOpen) {
  const { worst, best, kinds, positions } = teacher ? teacher.highlights : { worst: [], best: [], kinds: [], positions: [] };
  decisionList("worst", worst, questions, onOpen);
  decisionList("best", best, questions, onOpen);
  partTable("by-kind", "kind of token", kinds);
  partTable("by-position", "position", positions);
}
