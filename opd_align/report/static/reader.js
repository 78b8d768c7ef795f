// The token view: one path as text, its plot, the card of a token and the tree around it. A path is decoded when it is
// opened; of its text only what is near the window exists as elements.

const CHUNK = 320;

async function unpacked(base64) {
  const binary = atob(base64), bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const head = new DataView(raw.buffer).getUint32(0, true);
  const index = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + head)));
  const columns = {};
  for (const [name, [kind, at, count]] of Object.entries(index)) columns[name] = column(kind, raw, 4 + head + at, count);
  return columns;
}

// The bytes of a column lie in planes: all lowest bytes first.
function column(kind, raw, from, count) {
  const [steps, zero] = { unit: [1000, 0], signed: [1000, 1000], unit2: [100, 0], signed2: [100, 100] }[kind] || [0, 0];
  if (kind === "u8") return raw.subarray(from, from + count);
  const size = kind === "u32" ? 4 : steps === 100 ? 1 : 2, bytes = new Uint8Array(count * size);
  for (let plane = 0; plane < size; plane += 1) for (let at = 0; at < count; at += 1) bytes[at * size + plane] = raw[from + plane * count + at];
  if (kind === "u32") return new Uint32Array(bytes.buffer);
  const words = size === 1 ? bytes : new Uint16Array(bytes.buffer), absent = size === 1 ? 255 : 65535;
  if (kind === "u16") return words;
  const values = new Float32Array(count);
  for (let at = 0; at < count; at += 1) {
    if (kind === "f16") values[at] = half(words[at]);
    else values[at] = words[at] === absent ? NaN : (words[at] - zero) / steps;
  }
  return values;
}

function half(word) {
  const sign = word & 0x8000 ? -1 : 1, exponent = (word >> 10) & 31, fraction = word & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

class OpenPath {
  constructor(columns) {
    const { count, flags, token } = columns, length = count.length;
    Object.assign(this, { columns, length, offsets: new Uint32Array(length + 1), chosenBefore: new Uint32Array(flags.length + 1) });
    for (let depth = 0; depth < length; depth += 1) this.offsets[depth + 1] = this.offsets[depth] + count[depth];
    for (let child = 0; child < flags.length; child += 1) this.chosenBefore[child + 1] = this.chosenBefore[child] + (flags[child] >> 1);
    this.own = new Uint32Array(length);
    for (let depth = 0; depth < length; depth += 1) {
      for (let child = this.offsets[depth]; child < this.offsets[depth + 1]; child += 1) if (flags[child] & 1) this.own[depth] = child;
    }
    this.word = (depth) => token[this.own[depth]];
    this.depths = columns["node.depth"];
    this.nodeAt = new Int32Array(length).fill(-1);
    this.depths.forEach((depth, node) => { this.nodeAt[depth] = node; });
  }

  of(name, index, at) {
    const values = this.columns[`${name}.${index}`];
    return values === undefined ? NaN : values[at];
  }

  // Children by the student's probability, the taken one among them.
  children(depth, pair, teacher) {
    const { columns } = this, found = [];
    for (let child = this.offsets[depth]; child < this.offsets[depth + 1]; child += 1) {
      const chosen = columns.flags[child] & 2, place = this.chosenBefore[child];
      found.push({
        word: columns.token[child], own: !!(columns.flags[child] & 1), known: !!chosen, p: columns.p[child], t: this.of("t", teacher, child),
        q: columns.q[child], low: columns.q_low[child], high: columns.q_high[child], visits: columns.visits[child],
        ideal: chosen ? columns.ideal[place] : NaN, update: chosen ? this.of("update", pair, place) : NaN,
      });
    }
    return found.sort((a, b) => b.p - a.p);
  }
}

class Reader {
  constructor(overview) {
    Object.assign(this, { overview, path: null, depth: -1, pair: 0, teacher: 0, colour: "alignment", chunks: [], opened: new Map(), ranked: new Map() });
    this.text = document.getElementById("text");
    this.card = document.getElementById("card");
    this.plot = document.getElementById("plot");
    this.tip = document.getElementById("tip");
    this.watch = new IntersectionObserver((entries) => this.materialise(entries), { root: this.text, rootMargin: "900px 0px" });
    this.text.addEventListener("click", (event) => { const depth = this.depthOf(event.target); if (depth >= 0) this.select(depth); });
    this.text.addEventListener("mouseover", (event) => this.hover(event));
    this.text.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.text.addEventListener("scroll", () => { this.tip.hidden = true; this.frame(); }, { passive: true });
    this.plot.addEventListener("click", (event) => this.plotted(event));
  }

  packed(pack) { return document.getElementById(`pack-${pack}`).textContent; }

  async load(pack) {
    if (!this.opened.has(pack)) this.opened.set(pack, unpacked(this.packed(pack)).then((columns) => new OpenPath(columns)));
    return this.opened.get(pack);
  }

  async open(question, index, depth = -1) {
    const paths = this.overview.questions[question].paths, ticket = (this.ticket = (this.ticket || 0) + 1);
    this.siblings = [];
    if (!paths.length) return this.empty("No path of this question is in this file.", question, index);
    let path;
    try {
      path = await this.load(paths[index].pack);
    } catch {
      return this.empty("This browser cannot open compressed data; a current Chrome, Firefox or Safari can.", question, index);
    }
    if (ticket !== this.ticket) return;
    Object.assign(this, { path, question, index, depth: -1 });
    this.ranked.clear();
    this.layOut();
    this.drawPlot();
    // Reading begins at the top: at the first decision that is decided, or the first at all.
    const decided = path.depths.findIndex((_, node) => path.of("verdict", this.pair, node) < 2);
    this.select(depth >= 0 ? depth : path.depths[Math.max(decided, 0)] ?? 0, { quiet: true });
    this.text.dataset.ready = `${question}/${index}`;
    for (const [at, other] of paths.entries()) {
      if (at === index) continue;
      const opened = await this.load(other.pack);
      if (ticket !== this.ticket) return;
      let shared = 0;
      while (shared < Math.min(path.length, opened.length) && path.word(shared) === opened.word(shared)) shared += 1;
      if (shared < Math.min(path.length, opened.length)) this.siblings.push({ at, shared, word: opened.word(shared) });
    }
    this.drawTree();
  }

  empty(why, question, index) {
    this.path = null;
    this.text.replaceChildren(html("p", { className: "quiet" }, why));
    this.card.replaceChildren();
    this.drawPlot();
    nothing("tree", "");
    this.text.dataset.ready = `${question}/${index}`;
  }

  layOut() {
    const { path } = this, words = this.overview.words;
    this.watch.disconnect();
    this.chunks = [];
    for (let from = 0; from < path.length;) {
      let to = Math.min(from + CHUNK, path.length);
      // Lines break anyway after a newline; elsewhere prefer the start of a word.
      for (let look = to; look < Math.min(to + CHUNK / 2, path.length); look += 1) {
        if (words[path.word(look - 1)].endsWith("\n")) { to = look; break; }
      }
      this.chunks.push({ from, to, element: html("div", { className: "chunk" }), filled: false });
      from = to;
    }
    const wide = Math.max(this.text.clientWidth - 44, 100);
    this.text.replaceChildren(...this.chunks.map((chunk) => {
      let letters = 0, lines = 1;
      for (let depth = chunk.from; depth < chunk.to; depth += 1) {
        const word = words[path.word(depth)];
        letters += word.length;
        if (word.includes("\n")) { lines += Math.ceil((letters * 7.9) / wide); letters = 0; }
      }
      chunk.element.style.minHeight = `${31 * (lines + Math.floor((letters * 7.9) / wide))}px`;
      chunk.element.chunk = chunk;
      this.watch.observe(chunk.element);
      return chunk.element;
    }));
    this.text.scrollTop = 0;
  }

  materialise(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.fill(target.chunk);
      else if (target.chunk.filled && !(this.depth >= target.chunk.from && this.depth < target.chunk.to)) {
        target.style.minHeight = `${target.offsetHeight}px`;
        target.replaceChildren();
        target.chunk.filled = false;
      }
    }
  }

  fill(chunk) {
    if (chunk.filled) return;
    const words = this.overview.words, spans = [];
    for (let depth = chunk.from; depth < chunk.to; depth += 1) {
      const span = document.createElement("span"), word = words[this.path.word(depth)];
      if (word.includes("\n")) span.append(word.slice(0, word.indexOf("\n")), html("span", { className: "nl" }, "↵"), word.slice(word.indexOf("\n")));
      else span.textContent = word === "" ? "∅" : word;
      span.className = this.classOf(depth);
      spans.push(span);
    }
    chunk.element.replaceChildren(...spans);
    chunk.element.style.minHeight = "";
    chunk.filled = true;
    if (this.depth >= chunk.from && this.depth < chunk.to) this.mark(this.depth);
  }

  classOf(depth) {
    const node = this.path.nodeAt[depth];
    if (node < 0) return "";
    const alignment = this.path.of("alignment", this.pair, node);
    if (Number.isNaN(alignment)) return "d z0";
    // Signals are small numbers: their colour saturates at a stake of one half.
    const tone = this.colour === "signal" ? Math.sqrt(Math.min(1, 2 * Math.abs(alignment) * this.path.columns["node.sr_range"][node])) * Math.sign(alignment) : alignment;
    const step = Math.min(4, Math.ceil(Math.abs(tone) * 4)), open = this.path.of("verdict", this.pair, node) === 2 ? " u" : "";
    return step ? `d ${tone > 0 ? "p" : "n"}${step}${open}` : "d z0";
  }

  recolour() {
    if (!this.path) return;
    this.ranked.clear();
    for (const chunk of this.chunks) {
      if (chunk.filled) [...chunk.element.children].forEach((span, at) => { span.className = this.classOf(chunk.from + at); });
    }
    if (this.depth >= 0) this.mark(this.depth);
    this.drawPlot();
    this.drawCard();
    this.drawTree();
  }

  chunkOf(depth) { return this.chunks.find((chunk) => depth >= chunk.from && depth < chunk.to); }

  spanOf(depth) { const chunk = this.chunkOf(depth); return chunk && chunk.filled ? chunk.element.children[depth - chunk.from] : null; }

  depthOf(target) {
    const span = target.closest && target.closest(".chunk > span");
    return span ? span.parentElement.chunk.from + [...span.parentElement.children].indexOf(span) : -1;
  }

  mark(depth) {
    for (const old of this.text.querySelectorAll("span.on")) { old.classList.remove("on"); old.removeAttribute("tabindex"); old.removeAttribute("role"); old.removeAttribute("aria-label"); }
    const span = this.spanOf(depth);
    if (!span) return null;
    span.classList.add("on");
    span.tabIndex = 0;
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", this.summary(depth).join(", "));
    return span;
  }

  select(depth, { focus = false, quiet = false } = {}) {
    if (!this.path) return;
    this.depth = Math.max(0, Math.min(depth, this.path.length - 1));
    const here = this.chunks.indexOf(this.chunkOf(this.depth));
    for (const chunk of this.chunks.slice(Math.max(0, here - 1), here + 2)) this.fill(chunk);
    const span = this.mark(this.depth);
    this.settle(6);
    if (focus) span.focus({ preventScroll: true });
    if (!quiet) this.tip.hidden = true;
    this.frame();
    this.drawCard();
    this.drawTree();
  }

  // Text above the window may still find its true height, so look again until the token stays in sight.
  settle(tries) {
    const span = this.spanOf(this.depth);
    if (!span) return;
    const box = this.text.getBoundingClientRect(), at = span.getBoundingClientRect();
    if (at.top < box.top + 20 || at.bottom > box.bottom - 20) this.text.scrollTop += at.top - box.top - box.height / 2;
    if (tries > 0) requestAnimationFrame(() => this.settle(tries - 1));
  }

  // Decisions from the most helpful (or harmful) down: decided ones first, then by how much success changes if the
  // teacher chooses (the advantage), or by the signal where there is no teacher. An order, not a statistic.
  order(direction) {
    const key = `${direction}/${this.pair}`;
    if (!this.ranked.has(key)) {
      const { path } = this, verdict = direction > 0 ? 0 : 1, signal = (node) => path.of("alignment", this.pair, node) * path.columns["node.sr_range"][node];
      const nodes = [...path.depths.keys()].filter((node) => direction * path.of("alignment", this.pair, node) > 0);
      const open = (node) => path.of("verdict", this.pair, node) === verdict ? 0 : 1;
      const weight = (node) => { const advantage = path.of("advantage", this.teacher, node); return direction * (Number.isNaN(advantage) ? signal(node) : advantage); };
      nodes.sort((a, b) => open(a) - open(b) || weight(b) - weight(a));
      this.ranked.set(key, nodes.map((node) => path.depths[node]));
    }
    return this.ranked.get(key);
  }

  jump(direction, back = false) {
    if (!this.path) return;
    const order = this.order(direction), at = order.indexOf(this.depth);
    if (order.length) this.select(order[at < 0 ? 0 : (at + (back ? order.length - 1 : 1)) % order.length], { focus: true });
  }

  walk(step) {
    if (!this.path) return;
    const { depths } = this.path;
    let at = step > 0 ? depths.findIndex((depth) => depth > this.depth) : depths.findLastIndex((depth) => depth < this.depth);
    if (at < 0) return;
    this.select(depths[at], { focus: true });
  }

  summary(depth) {
    const { path, pair } = this, word = visible(this.overview.words[path.word(depth)]), node = path.nodeAt[depth];
    if (node < 0) return [word, "not a decision"];
    const alignment = path.of("alignment", pair, node), sr = path.columns["node.sr_range"][node];
    if (Number.isNaN(alignment)) return [word, "nothing at stake", `SR range ${plain(sr)}`];
    return [word, this.overview.verdicts[path.of("verdict", pair, node)], `alignment ${signed(alignment, 2)}`, `SR range ${plain(sr)}`];
  }

  hover(event) {
    const depth = this.depthOf(event.target);
    if (depth < 0) { this.tip.hidden = true; return; }
    const [word, ...rest] = this.summary(depth), rows = this.path.children(depth, this.pair, this.teacher).slice(0, 4);
    const cells = (tag, values) => values.map((value) => html(tag, {}, value));
    this.tip.replaceChildren(
      html("div", {}, html("b", {}, word), ` · ${rest.join(" · ")}`),
      html("table", {}, html("tr", {}, ...cells("th", ["next", "p", "t", "Q"])), ...rows.map((child) => html("tr", { className: child.own ? "own" : "" },
        ...cells("td", [clipped(visible(this.overview.words[child.word]), 16), chance(child.p), chance(child.t), chance(child.q)])))),
    );
    this.tip.hidden = false;
    const at = event.target.getBoundingClientRect(), size = this.tip.getBoundingClientRect();
    const edge = Math.min(innerWidth, this.text.getBoundingClientRect().right);
    this.tip.style.left = `${Math.max(8, Math.min(at.left, edge - size.width - 12))}px`;
    this.tip.style.top = `${at.bottom + size.height + 14 > innerHeight ? at.top - size.height - 8 : at.bottom + 8}px`;
  }

  drawCard() {
    const { path, depth, pair } = this;
    if (!path || depth < 0) return;
    const words = this.overview.words, node = path.nodeAt[depth], [word] = this.summary(depth);
    const number = node < 0 ? "" : ` · decision ${node + 1} of ${path.depths.length}`;
    const parts = [html("h4", {}, clipped(word, 80)), html("div", { className: "where" }, `token ${depth + 1} of ${path.length.toLocaleString("en")}${number}`)];
    const said = html("p", { className: "said" });
    const at = (name) => path.of(name, pair, node), alignment = node < 0 ? NaN : at("alignment");
    if (node < 0) said.append("Not a decision: fewer than two continuations are known well enough.");
    else if (Number.isNaN(alignment)) said.append(html("span", { className: "chip undecided" }, "no stakes"), "Whatever is chosen here, success is the same.");
    else {
      const verdict = this.overview.verdicts[at("verdict")];
      said.append(html("span", { className: `chip ${verdict}` }, verdict), `alignment ${signed(alignment, 2)}, 90 % in [${signed(at("low"), 2)}, ${signed(at("high"), 2)}], positive with probability ${percent(at("positive"))}`);
    }
    parts.push(said, this.drawChildren(path.children(depth, pair, this.teacher), words));
    if (node >= 0) {
      const own = (name) => path.of(name, this.teacher, node), shared = (name) => path.columns[`node.${name}`][node], list = html("dl");
      const facts = [["SR range", plain(shared("sr_range"))], ["advantage", signed(own("advantage"))], ["KL", plain(own("kl"))], ["JS", plain(own("js"))], ["L2", plain(own("l2"))], ["cosine p·t", plain(own("cosine"))],
        ["entropy student", plain(shared("student_entropy"), 2)], ["entropy teacher", plain(own("teacher_entropy"), 2)], ["natural visits", shared("visits").toLocaleString("en")], ["unseen mass", plain(shared("tail_mass"))]];
      for (const [name, value] of facts) list.append(html("dt", {}, name), html("dd", {}, value));
      parts.push(list);
    }
    this.card.replaceChildren(...parts);
  }

  // One line a child: probabilities as bars, success as a dot in its interval, both updates as bars from a middle.
  drawChildren(children, words) {
    const rows = children.filter((child, index) => child.known || child.own || index < 6), step = 40, width = 392, top = 22, drawing = svg("svg", { viewBox: `0 0 ${width} ${top + step * rows.length}`, role: "img", "aria-label": rows.map((child) => `${visible(words[child.word])}: p ${plain(child.p, 2)}, t ${plain(child.t, 2)}, Q ${plain(child.q, 2)}`).join("; ") });
    const bar = 58, p0 = 100, q0 = 212, u0 = 350, uReach = 40;
    const norm = (name) => Math.max(1e-12, ...rows.map((child) => Math.abs(child[name]) || 0));
    const most = { ideal: norm("ideal"), update: norm("update") };
    for (const [x, label, anchor] of [[0, "next token", "start"], [p0, "student, teacher", "start"], [q0, "success Q", "start"], [u0, "update", "middle"]]) drawing.append(text(x, 8, label, { class: "soft", "text-anchor": anchor }));
    rows.forEach((child, index) => {
      const y = top + step * (index + 0.5), dim = child.known ? 1 : 0.5, group = svg("g", { opacity: dim });
      group.append(svg("title", {}, `${visible(words[child.word])}: p ${plain(child.p)}, t ${plain(child.t)}, Q ${plain(child.q)} [${plain(child.low)}, ${plain(child.high)}], ${child.visits} visits; ideal update ${signed(child.ideal)}, objective ${signed(child.update)}`));
      group.append(text(0, y, (child.own ? "▸ " : "") + clipped(visible(words[child.word]), child.own ? 11 : 13), { "font-family": "var(--mono)", "font-weight": child.own ? 600 : 400 }));
      [["p", child.p, "var(--ink)", -7], ["t", child.t, "var(--help)", 7]].forEach(([name, value, colour, shift]) => {
        if (Number.isNaN(value)) return;
        group.append(svg("rect", { x: p0, y: y + shift - 3.5, width: bar, height: 7, rx: 2, fill: "var(--faint)" }), svg("rect", { x: p0, y: y + shift - 3.5, width: Math.max(value * bar, 0.8), height: 7, rx: 2, fill: name === "p" ? "var(--ink)" : "var(--open)" }), text(p0 + bar + 5, y + shift, `${name} ${chance(value)}`, { class: "soft" }));
      });
      const wide = 70, q = (value) => q0 + value * wide;
      group.append(svg("line", { x1: q0, x2: q0 + wide, y1: y, y2: y, stroke: "var(--line)", "stroke-width": 1.5 }));
      if (!Number.isNaN(child.q)) group.append(svg("line", { x1: q(child.low), x2: q(child.high), y1: y, y2: y, stroke: "var(--ink)", "stroke-width": 3, opacity: 0.3, "stroke-linecap": "round" }), svg("circle", { cx: q(child.q), cy: y, r: 4, fill: "var(--ink)" }), text(q0 + wide + 7, y, chance(child.q), { class: "soft" }));
      group.append(svg("line", { x1: u0, x2: u0, y1: y - 14, y2: y + 14, stroke: "var(--line)" }));
      [["ideal", "var(--open)", -6], ["update", null, 6]].forEach(([name, colour, shift]) => {
        if (Number.isNaN(child[name])) return;
        const long = (child[name] / most[name]) * uReach, agrees = child.update * child.ideal > 0 ? "var(--help)" : "var(--harm)";
        group.append(svg("rect", { x: Math.min(u0, u0 + long), y: y + shift - 4, width: Math.max(Math.abs(long), 0.8), height: 8, rx: 2, fill: colour || agrees }));
      });
      drawing.append(group);
    });
    const box = html("div", {}, drawing), more = children.length - rows.length;
    box.append(html("div", { className: "where" }, `update: grey is ideal, coloured the objective's (blue with it, orange against it), each to its own scale${more > 0 ? ` · ${more} more tokens` : ""}`));
    return box;
  }

  // The trunk is the path; at each of its tokens hang the continuations that were not taken.
  drawTree() {
    const { path, depth } = this;
    if (!path || depth < 0) return;
    const words = this.overview.words, place = document.getElementById("tree"), width = Math.max(place.clientWidth, 320);
    const columns = Math.max(3, Math.min(7, Math.floor(width / 165))), each = width / columns, most = 4, rowStep = 42;
    const from = Math.max(0, Math.min(depth - Math.floor(columns / 3), path.length - columns)), trunk = 34;
    const shown = [];
    for (let at = from; at < Math.min(from + columns, path.length); at += 1) shown.push([at, path.children(at, this.pair, this.teacher)]);
    const deepest = Math.max(1, ...shown.map(([, children]) => Math.min(children.length - 1, most) + (children.length - 1 > most ? 1 : 0)));
    const { drawing } = chart("tree", trunk + 30 + rowStep * deepest, "The tree around the chosen token");
    const pad = 16;
    const label = (child, x, y, bold) => [
      text(x, y, clipped(visible(words[child.word]), Math.floor((each - 30) / 7.8)), { class: "word", "font-weight": bold ? 600 : 400 }),
      text(x, y + 16, `p ${chance(child.p)}\u2002t ${chance(child.t)}\u2002Q ${chance(child.q)}`, { class: "soft", "font-size": 11 }),
    ];
    shown.forEach(([at, children], index) => {
      const x0 = index * each, own = children.find((child) => child.own), others = children.filter((child) => !child.own);
      const x = x0 + pad + 8, here = at === depth;
      if (here) drawing.append(svg("rect", { x: x0 + 1, y: 2, width: each - 2, height: trunk + 26 + rowStep * deepest, rx: 9, fill: "var(--faint)" }));
      const go = svg("g", { class: "go" }, svg("rect", { x: x0 + 4, y: 6, width: each - 8, height: 48, rx: 7, fill: "transparent" }));
      drawing.append(svg("line", { x1: x0 + 2, x2: x0 + each - 2, y1: 13, y2: 13, stroke: "var(--ink)", "stroke-width": 1 + 4 * own.p, opacity: 0.25 }));
      const node = path.nodeAt[at], kind = node < 0 ? 0 : path.of("alignment", this.pair, node);
      drawing.append(svg("circle", { cx: x0 + pad - 4, cy: 13, r: here ? 6 : 4.5, fill: node < 0 || Number.isNaN(kind) ? "var(--open)" : path.of("verdict", this.pair, node) === 2 ? "var(--panel)" : colourOf(kind), stroke: node < 0 || Number.isNaN(kind) ? "var(--open)" : colourOf(kind), "stroke-width": 2 }));
      go.append(...label(own, x, trunk, true));
      drawing.append(pressable(go, here, `${visible(words[own.word])}, token ${at + 1}`, () => this.select(at)));
      others.slice(0, most).forEach((child, row) => {
        const y = trunk + rowStep * (row + 1), sibling = this.siblings.find((other) => other.shared === at && other.word === child.word);
        drawing.append(svg("path", { d: `M${x0 + pad - 4} 13V${y - 8}Q${x0 + pad - 4} ${y} ${x - 3} ${y}`, fill: "none", stroke: "var(--ink)", "stroke-width": Math.max(0.7, 5 * child.p), opacity: 0.22 }));
        const branch = svg("g", sibling ? { class: "go" } : { opacity: child.known ? 1 : 0.55 }, svg("rect", { x: x - 5, y: y - 10, width: each - pad - 12, height: 36, rx: 7, fill: "transparent" }));
        branch.append(...label(child, x, y, false));
        if (sibling) { branch.append(text(x0 + each - 14, y, "↗", { class: "soft", "text-anchor": "end" })); pressable(branch, false, `go to path ${sibling.at + 1}, which takes this token`, () => this.turn(sibling.at, at)); }
        drawing.append(branch);
      });
      if (others.length > most) drawing.append(text(x, trunk + rowStep * (most + 1) - 4, `${others.length - most} more`, { class: "soft", "font-size": 11 }));
    });
  }

  // -- the plot ----------------------------------------------------------------------------------------------

  frame() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.overlay(); });
  }

  visibleRange() {
    const top = this.text.scrollTop, bottom = top + this.text.clientHeight;
    let from = this.path.length, to = 0;
    for (const { element, from: first, to: last } of this.chunks) {
      const y = element.offsetTop, high = element.offsetHeight || 1;
      if (y + high < top || y > bottom) continue;
      from = Math.min(from, first + (last - first) * Math.max(0, (top - y) / high));
      to = Math.max(to, first + (last - first) * Math.min(1, (bottom - y) / high));
    }
    return [from, to];
  }

  drawPlot() {
    const ratio = devicePixelRatio || 1, width = this.plot.clientWidth, height = this.plot.clientHeight;
    const still = (this.still = document.createElement("canvas"));
    still.width = this.plot.width = Math.round(width * ratio);
    still.height = this.plot.height = Math.round(height * ratio);
    const { path } = this, pen = still.getContext("2d"), style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
    pen.scale(ratio, ratio);
    if (!path) return this.overlay();
    const left = 74, x = (this.plotX = (depth) => left + ((depth + 0.5) / path.length) * (width - left - 4)), { columns } = path;
    const value = (v) => 6 + (1 - v) * 54, middle = 100, reach = 30;
    pen.font = `11px ${ink("--sans")}`;
    pen.fillStyle = ink("--quiet");
    pen.textBaseline = "middle";
    pen.fillText("success Q", 0, 33);
    pen.fillText("alignment", 0, middle);
    pen.textAlign = "right";
    for (const [label, y] of [["1", value(1)], ["0", value(0)], ["+1", middle - reach + 3], ["−1", middle + reach - 3]]) pen.fillText(label, left - 6, y);
    pen.strokeStyle = ink("--line");
    for (const y of [value(0), value(1), middle]) { pen.beginPath(); pen.moveTo(left, y); pen.lineTo(width - 4, y); pen.stroke(); }
    // Where several tokens share a pixel, it shows the range of their values.
    const each = Math.max(1, Math.floor(path.length / (width - left))), spans = [];
    for (let depth = 0; depth < path.length; depth += each) {
      const span = { at: x(Math.min(depth + (each - 1) / 2, path.length - 1)), low: 1, high: 0, least: 1, most: 0 };
      for (let next = depth; next < Math.min(depth + each, path.length); next += 1) {
        const child = path.own[next], q = columns.q[child];
        if (Number.isNaN(q)) continue;
        span.low = Math.min(span.low, columns.q_low[child]);
        span.high = Math.max(span.high, columns.q_high[child]);
        span.least = Math.min(span.least, q);
        span.most = Math.max(span.most, q);
      }
      if (span.least <= span.most) spans.push(span);
    }
    pen.fillStyle = ink("--open");
    pen.globalAlpha = 0.28;
    pen.beginPath();
    for (const { at, high } of spans) pen.lineTo(at, value(high));
    for (const { at, low } of [...spans].reverse()) pen.lineTo(at, value(low));
    pen.fill();
    pen.globalAlpha = 1;
    if (each === 1) {
      pen.strokeStyle = ink("--ink");
      pen.lineWidth = 1.3;
      pen.beginPath();
      for (const { at, least } of spans) pen.lineTo(at, value(least));
      pen.stroke();
    } else {
      pen.fillStyle = ink("--ink");
      for (const { at, least, most } of spans) pen.fillRect(at - 0.5, value(most) - 0.6, 1, value(least) - value(most) + 1.2);
    }
    const wide = Math.max(1, Math.min(5, ((width - left) / path.length) * 0.75)), crowd = Math.min(1, (2 * (width - left)) / Math.max(path.depths.length, 1));
    const colours = { 1: ink("--help"), [-1]: ink("--harm") };
    path.depths.forEach((depth, node) => {
      const alignment = path.of("alignment", this.pair, node);
      if (!alignment) return;
      pen.globalAlpha = (path.of("verdict", this.pair, node) === 2 ? 0.28 : 0.95) * Math.max(crowd, 0.25);
      pen.fillStyle = colours[Math.sign(alignment)];
      pen.fillRect(x(depth) - wide / 2, Math.min(middle, middle - alignment * reach), wide, Math.max(Math.abs(alignment) * reach, 1));
    });
    this.overlay();
  }

  overlay() {
    const pen = this.plot.getContext("2d"), ratio = devicePixelRatio || 1, height = this.plot.clientHeight;
    if (!this.still || !this.still.width) return;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.plot.width, this.plot.height);
    const style = getComputedStyle(document.documentElement);
    if (this.path && this.plotX) {
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      const [from, to] = this.visibleRange();
      pen.fillStyle = style.getPropertyValue("--faint");
      if (to - from < 0.98 * this.path.length) pen.fillRect(this.plotX(from), 0, Math.max(this.plotX(to) - this.plotX(from), 2), height);
      pen.setTransform(1, 0, 0, 1, 0, 0);
    }
    pen.drawImage(this.still, 0, 0);
    if (this.path && this.depth >= 0 && this.plotX) {
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.fillStyle = style.getPropertyValue("--ink");
      pen.fillRect(this.plotX(this.depth) - 0.5, 0, 1, height);
      pen.beginPath();
      pen.arc(this.plotX(this.depth), 66, 3.5, 0, 7);
      pen.fill();
    }
  }

  plotted(event) {
    if (!this.path) return;
    const wanted = ((event.offsetX - 74) / (this.plot.clientWidth - 78)) * this.path.length;
    let best = Math.max(0, Math.min(Math.round(wanted - 0.5), this.path.length - 1)), near = Math.max(2, this.path.length / 150);
    for (const depth of this.path.depths) if (Math.abs(depth - wanted) < near) { near = Math.abs(depth - wanted); best = depth; }
    this.select(best);
  }
}
