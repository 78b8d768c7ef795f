"use strict";
// Helpers of every page: DOM and SVG elements, number formatting, axes, theme. Elements are built from nodes and text,
// never from markup, so that names and tokens cannot inject HTML.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG_NAMESPACE, tag);
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

const isUnknown = (value) => value == null || Number.isNaN(value);
const signed = (value, digits = 3) => isUnknown(value) ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const plain = (value, digits = 3) => isUnknown(value) ? "–" : Math.abs(value) < 1e-4 && value ? value.toExponential(0) : value.toFixed(digits);
const probability = (value) => isUnknown(value) ? "–" : value > 0 && value < 0.005 ? "<.01" : value.toFixed(2).replace(/^0/, "");
const percent = (value) => isUnknown(value) ? "–" : `${Math.round(100 * value)}%`.replace(/^-/, "−");
const formatCount = (value) => value.toLocaleString("en");
const counted = (value, name) => `${formatCount(value)} ${name}${value === 1 ? "" : "s"}`;
// A percentage that never claims certainty.
const chance = (value) => isUnknown(value) ? "–" : value < 0.005 ? "<1%" : value > 0.995 ? ">99%" : percent(value);
const clipped = (string, maxLength) => { const letters = [...string]; return letters.length > maxLength ? letters.slice(0, maxLength - 1).join("") + "…" : string; };

// The text of a token with whitespace and control characters replaced by visible symbols; never empty.
function visibleToken(token) {
  const replaced = token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "�");
  return replaced.replace(/^ /, "␣").trim() ? replaced.replace(/^ +| +$/g, (spaces) => "·".repeat(spaces.length)) : replaced.replace(/ /g, "·") || "∅";
}

// Round values in [low, high], about `maxCount` of them.
function ticks(low, high, maxCount = 5) {
  const minStep = (high - low) / maxCount, power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= minStep * 0.999);
  const values = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step; index += 1) values.push(+(index * step).toPrecision(12));
  return values;
}

const tickText = (value) => value === 0 ? "0" : (value < 0 ? "−" : "") + String(Math.abs(value));

// An empty SVG that fills the element `id`.
function chart(id, height, label) {
  const container = byId(id), width = Math.max(container.clientWidth, 240);
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": label });
  container.replaceChildren(drawing);
  return { drawing, width, height };
}

function showMessage(id, message) {
  byId(id).replaceChildren(html("p", { className: "quiet" }, message));
}

function text(x, y, content, attributes = {}) {
  return svg("text", { x, y, "dominant-baseline": "central", ...attributes }, content);
}

// The range of the known values and of `include`, with a margin. A difference that is rounding only is none: there would
// be no round numbers in between.
function extent(values, ...include) {
  const known = [...values.filter((value) => value != null && Number.isFinite(value)), ...include];
  if (!known.length) return [0, 1];
  // Too many values for the arguments of one call.
  const low = known.reduce((a, b) => Math.min(a, b)), high = known.reduce((a, b) => Math.max(a, b)), size = Math.max(Math.abs(low), Math.abs(high));
  const margin = (high - low > 1e-9 * size ? high - low : size || 1) * 0.06;
  return [low - margin, high + margin];
}

const scale = ([low, high], from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

function bottomAxis(drawing, x, domain, bottom, top, maxTicks) {
  for (const tick of ticks(...domain, maxTicks)) {
    drawing.append(svg("line", { x1: x(tick), x2: x(tick), y1: top, y2: bottom, class: tick === 0 ? "zero" : "axis" }));
    drawing.append(text(x(tick), bottom + 12, tickText(tick), { class: "soft", "text-anchor": "middle", "font-size": 11 }));
  }
}

// Makes an SVG element usable as a button, by mouse and keyboard.
function asButton(element, isPressed, label, onPress) {
  element.setAttribute("role", "button");
  element.setAttribute("tabindex", "0");
  element.setAttribute("aria-label", label);
  element.setAttribute("aria-pressed", isPressed);
  element.addEventListener("click", onPress);
  element.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); onPress(); }
  });
  return element;
}

const colourOfSign = (sign) => sign > 0 ? "var(--help)" : sign < 0 ? "var(--harm)" : "var(--open)";

function options(select, names, selectedIndex) {
  select.replaceChildren(...names.map((name, index) => html("option", { value: String(index) }, name)));
  select.value = String(Math.max(0, selectedIndex));
}

// Follows the system setting until the user presses the button. Canvases do not follow CSS: `repaint` redraws them.
function setUpTheme(repaint) {
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = (name) => {
    document.documentElement.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light" : "Dark";
    repaint();
  };
  byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  prefersDark.addEventListener("change", () => setTheme(prefersDark.matches ? "dark" : "light"));
  setTheme(prefersDark.matches ? "dark" : "light");
}

function onResize(redraw) {
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 120); });
}

// What is folded is printed too. Paper is light, and canvases do not follow CSS: `repaint` redraws them.
function setUpPrinting(repaint) {
  const { dataset } = document.documentElement;
  let opened = [], theme = dataset.theme;
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const element of opened) element.open = true;
    theme = dataset.theme;
    dataset.theme = "light";
    repaint();
  });
  addEventListener("afterprint", () => {
    for (const element of opened) element.open = false;
    dataset.theme = theme;
    repaint();
  });
}
