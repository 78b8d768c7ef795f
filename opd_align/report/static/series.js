// Series over training steps, before they are drawn. A point is [step, value, low, high, half-width]; what is unknown is
// null. `low` and `high` are the ends of an interval, or the smallest and the largest row of a bin of the trainer's log.

const isKnown = (point) => point[1] != null;

// One metric of the evaluations; the interval ends where the range of values ends.
function evaluationPoints(evaluations, curves, { key, half_width: halfWidth, ends }, [least, most]) {
  const values = curves[key], halves = halfWidth ? curves[halfWidth] : null;
  if (!values) return [];
  return evaluations.map(({ step }, at) => {
    const value = values[at] ?? null, half = halves?.[at] ?? null;
    if (ends && value != null) return [step, value, ...ends.map((end) => curves[end]?.[at] ?? null), null];
    if (value == null || half == null) return [step, value, null, null, null];
    return [step, value, Math.max(value - half, least ?? -Infinity), Math.min(value + half, most ?? Infinity), half];
  });
}

function logPoints({ steps, values, low, high }) {
  return steps.map((step, at) => [step, values[at], low ? low[at] : null, high ? high[at] : null, null]);
}

// Exponential moving average as in TensorBoard: without the pull of the start toward zero.
function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0, total = 0;
  return points.map((point) => {
    if (!isKnown(point)) return point;
    sum = weight * sum + (1 - weight) * point[1];
    total = weight * total + (1 - weight);
    return [point[0], sum / total, ...point.slice(2)];
  });
}

// Index of the first point at or after a step.
function firstAt(points, step) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1; else high = middle;
  }
  return low;
}

// The known point that is nearest to a step.
function nearestPoint(points, step) {
  const at = firstAt(points, step);
  let before = at - 1, after = at;
  while (before >= 0 && !isKnown(points[before])) before -= 1;
  while (after < points.length && !isKnown(points[after])) after += 1;
  const [left, right] = [points[before], points[after]];
  return !left ? right : !right ? left : step - left[0] <= right[0] - step ? left : right;
}

// The points inside a range of steps, and one to either side, where a line enters and leaves it.
const within = (points, [low, high]) => points.slice(Math.max(firstAt(points, low) - 1, 0), firstAt(points, high + 1) + 1);

// No more points than can be seen: of each column of pixels, the lowest, the highest, and whether something is unknown.
const COLUMN_PX = 2;
function thinned(points, x, widthPx) {
  if (points.length <= widthPx) return points;
  const kept = [];
  let start = 0;
  while (start < points.length) {
    const column = Math.floor(x(points[start][0]) / COLUMN_PX);
    let end = start, low = -1, high = -1, unknown = -1;
    for (; end < points.length && Math.floor(x(points[end][0]) / COLUMN_PX) === column; end += 1) {
      if (!isKnown(points[end])) { unknown = end; continue; }
      if (low < 0 || points[end][1] < points[low][1]) low = end;
      if (high < 0 || points[end][1] > points[high][1]) high = end;
    }
    for (const at of [...new Set([low, high, low < 0 ? unknown : -1])].filter((at) => at >= 0).sort((a, b) => a - b)) kept.push(points[at]);
    start = end;
  }
  return kept;
}

// Runs of known points.
function segmentsOf(points) {
  const segments = [];
  let current = null;
  for (const point of points) {
    if (!isKnown(point)) { current = null; continue; }
    if (!current) segments.push((current = []));
    current.push(point);
  }
  return segments;
}

// +1 or −1 if the newest interval lies on one side of the value that means no effect; 0 if not, or if there is none.
function significance(points, neutral) {
  const newest = points.findLast(isKnown);
  if (neutral == null || !newest || newest[2] == null) return 0;
  return newest[2] > neutral ? 1 : newest[3] < neutral ? -1 : 0;
}
