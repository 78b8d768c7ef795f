"use strict";
// Small drawings: everything is built from elements and text nodes, never from markup.

const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function html(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const signed = (value, digits = 3) => value == null || Number.isNaN(value) ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const plain = (value, digits = 3) => value == null || Number.isNaN(value) ? "–" : Math.abs(value) < 1e-4 && value ? value.toExponential(0) : value.toFixed(digits);
const chance = (value) => value == null || Number.isNaN(value) ? "–" : value > 0 && value < 0.005 ? "<.01" : value.toFixed(2).replace(/^0/, "");
const percent = (value) => value == null || Number.isNaN(value) ? "–" : `${Math.round(100 * value)} %`;
const clipped = (text, most) => { const letters = [...text]; return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : text; };

// Invisible letters are made visible, so that every token has something to point at.
function visible(word) {
  const shown = word.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "�");
  return shown.replace(/^ /, "␣").trim() ? shown.replace(/^ +| +$/g, (gap) => "·".repeat(gap.length)) : shown.replace(/ /g, "·") || "∅";
}

function ticks(low, high, most = 5) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + 1e-9 * step; at += 1) found.push(+(at * step).toPrecision(12));
  return found;
}

const tickText = (value) => value === 0 ? "0" : (value < 0 ? "−" : "") + String(Math.abs(value));

function chart(id, height, label) {
  const place = document.getElementById(id), width = Math.max(place.clientWidth, 240);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  place.replaceChildren(drawing);
  return { drawing, width, height };
}

function nothing(id, why) {
  document.getElementById(id).replaceChildren(html("p", { className: "quiet" }, why));
}

function text(x, y, content, attributes = {}) {
  return svg("text", { x, y, "dominant-baseline": "central", ...attributes }, content);
}

function extent(values, ...always) {
  const known = [...values.filter((value) => value != null && Number.isFinite(value)), ...always];
  const low = Math.min(...known), high = Math.max(...known), room = (high - low || 1) * 0.06;
  return [low - room, high + room];
}

const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

function bottomAxis(drawing, at, domain, y, top, most) {
  for (const tick of ticks(...domain, most)) {
    drawing.append(svg("line", { x1: at(tick), x2: at(tick), y1: top, y2: y, class: tick === 0 ? "zero" : "axis" }));
    drawing.append(text(at(tick), y + 12, tickText(tick), { class: "soft", "text-anchor": "middle", "font-size": 11 }));
  }
}

function pressable(row, pressed, label, act) {
  row.setAttribute("role", "button");
  row.setAttribute("tabindex", "0");
  row.setAttribute("aria-label", label);
  row.setAttribute("aria-pressed", pressed);
  row.addEventListener("click", act);
  row.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
  });
  return row;
}

const colourOf = (direction) => direction > 0 ? "var(--help)" : direction < 0 ? "var(--harm)" : "var(--open)";

function options(select, names, chosen) {
  select.replaceChildren(...names.map((name, index) => html("option", { value: String(index) }, name)));
  select.value = String(Math.max(0, chosen));
}

// As the system says, until somebody presses the switch; what is painted rather than styled is painted anew.
function lightOrDark(repaint) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const turn = (name) => {
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    repaint();
  };
  byId("theme").addEventListener("click", () => turn(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => turn(dark.matches ? "dark" : "light"));
  turn(dark.matches ? "dark" : "light");
}

function whenResized(redraw) {
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 120); });
}
