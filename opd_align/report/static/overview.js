// The first screen: loss, pass rate, headline alignment, alarm, overhead, next evaluation. One training has tiles;
// several have a table, which is also the legend of the charts.

const ALARM_LEVELS = { 1: ["helps", "helps"], 0: ["unsure", "open"], "-1": ["fades", "harms"], "-2": ["harms", "harms"] };

function newestPoint(points) {
  return points.findLast(isKnown) ?? null;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} days`;
}

// What the first screen says about a run: title, value, detail and the class of its colour. `showTeacher`: whether to
// name the teacher, since there are several.
function facts(run, log, variant, showTeacher) {
  const { evaluations } = run, curve = (curves, key, halfWidth, range) => evaluationPoints(evaluations, curves, { key, half_width: halfWidth }, range);
  return [
    lossFact(log), passRateFact(curve(run.common, "student/pass_rate", "student/pass_rate_half_width", [0, 1])),
    alignmentFact(curve(variant.curves, "alignment/weighted", "alignment/weighted_half_width", [-1, 1]), variant, showTeacher),
    alarmFact(variant, evaluations), overheadFact(run, log), nextFact(run, log),
  ];
}

const sinceStart = (format, points) => {
  const known = points.filter(isKnown);
  return known.length > 1 ? `${formatValue(format, known[0][1])} at step ${formatSteps(known[0][0])}` : "";
};

function lossFact({ curves }) {
  const key = LOSS_KEYS.find((one) => Object.hasOwn(curves, one));
  if (!key) return { title: "Loss", value: "–", detail: "not logged yet" };
  const { newest, steps, values } = curves[key];
  return { title: "Loss", value: formatValue("number", newest), detail: steps.length > 1 ? `${formatValue("number", values[0])} at step ${formatSteps(steps[0])}` : "" };
}

function passRateFact(points) {
  const [, value, , , half] = newestPoint(points) ?? [null, null];
  return { title: "Pass rate", value: formatValue("share", value), half: half == null ? "" : `± ${percent(half)}`, detail: value == null ? "no evaluation yet" : sinceStart("share", points) };
}

function alignmentFact(points, { label }, showTeacher) {
  const [, value, low, high] = newestPoint(points) ?? [null, null], sign = significance(points, 0);
  const interval = value == null ? "no evaluation yet" : low == null ? "too few questions for an interval" : `${signed(low, 2)} to ${signed(high, 2)}`;
  return { title: "SR-weighted alignment", value: formatValue("signed", value), detail: showTeacher && label ? `${interval} · ${label}` : interval, tone: sign > 0 ? "helps" : sign < 0 ? "harms" : "open" };
}

function alarmFact({ curves }, evaluations) {
  const level = newestPoint(evaluationPoints(evaluations, curves, { key: "alarm/level" }, [null, null])), helps = newestPoint(evaluationPoints(evaluations, curves, { key: "alarm/p_helps" }, [0, 1]));
  if (!level) return { title: "Alarm", value: "–", detail: evaluations.length ? "not recorded" : "no evaluation yet" };
  const [name, tone] = ALARM_LEVELS[level[1]] ?? ["unknown", "open"];
  return { title: "Alarm", value: name, detail: helps ? `helps with probability ${chance(helps[1])}` : "", tone, raised: level[1] < 0 };
}

function overheadFact({ common, evaluations }) {
  const [, share] = newestPoint(evaluationPoints(evaluations, common, { key: "evaluation/overhead_share" }, [0, 1])) ?? [null, null];
  const [, seconds] = newestPoint(evaluationPoints(evaluations, common, { key: "evaluation/seconds" }, [0, null])) ?? [null, null];
  const perEvaluation = seconds == null ? "" : `${duration(seconds)} per evaluation`;
  const shown = share == null ? "–" : share > 0 && share < 0.1 ? `${(100 * share).toFixed(1)}%` : percent(share);
  return { title: "Overhead", value: shown, detail: perEvaluation || "no evaluation yet" };
}

function nextFact({ next_step: next, evaluations }, { step, finished, seconds_per_step: pace }) {
  const title = "Next evaluation";
  if (finished) return { title, value: "none", detail: `training ended at step ${formatSteps(step)}` };
  if (next == null) return { title, value: "–", detail: evaluations.length ? "not known" : "no evaluation yet" };
  const steps = next - step;
  if (steps <= 0) return { title, value: `step ${formatSteps(next)}`, detail: "due, or delayed by max_overhead" };
  return { title, value: `step ${formatSteps(next)}`, detail: `in ${counted(steps, "step")}${pace ? `, about ${duration(steps * pace)}` : ""}` };
}

// One run: tiles.
function drawTiles(container, list) {
  container.className = "tiles";
  container.replaceChildren(...list.map(({ title, value, half = "", detail, tone = "", raised }) => {
    const number = html("b", { className: tone }, value, half ? html("small", {}, ` ${half}`) : "");
    return html("div", { className: raised ? "tile raised" : "tile" }, html("span", { title }, title), number, html("small", { title: detail }, detail));
  }));
}

// Several runs: a row for each. `toggle` shows or hides the lines of a run.
function drawRunTable(container, rows, toggle) {
  container.className = "wide";
  const titles = rows[0].facts.map(({ title }) => title);
  const head = html("tr", {}, html("th", {}, "run"), ...titles.map((title) => html("th", {}, title.toLowerCase().replace("sr-", "SR-"))));
  const body = rows.map(({ name, colour, isShown, facts: list }, index) => {
    const button = html("button", { type: "button", className: "run", title: `Show or hide ${name}` }, swatch(colour), html("span", {}, name));
    button.setAttribute("aria-pressed", String(isShown));
    button.addEventListener("click", () => toggle(index));
    const cells = list.map(({ value, half = "", detail, tone = "", raised }) => html("td", { className: raised ? "raised" : "" }, html("b", { className: tone }, value), half ? ` ${half}` : "", html("small", {}, detail)));
    return html("tr", { className: isShown ? "" : "off" }, html("td", {}, button), ...cells);
  });
  container.replaceChildren(html("table", { className: "runs" }, html("thead", {}, head), html("tbody", {}, ...body)));
}
