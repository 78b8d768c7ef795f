// The token view: the text of one path with its selected token, and the plot, card and tree that follow the selection.
// A path is decoded when it is opened; only the text near the visible part exists as elements.

const CHUNK_TOKENS = 320;

class TokenView {
  constructor(metadata) {
    Object.assign(this, { metadata, path: null, depth: -1, pair: 0, teacher: 0, colour: "alignment", chunks: [], branches: [], decoded: new Map(), rankings: new Map() });
    this.text = byId("text");
    this.card = byId("card");
    this.tip = byId("tip");
    this.plot = new PathPlot(this);
    this.observer = new IntersectionObserver((entries) => this.updateChunks(entries), { root: this.text, rootMargin: "900px 0px" });
    this.text.addEventListener("click", (event) => { const depth = this.depthOf(event.target); if (depth >= 0) this.select(depth); });
    this.text.addEventListener("mouseover", (event) => this.hover(event));
    this.text.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.text.addEventListener("scroll", () => { this.tip.hidden = true; this.plot.requestOverlay(); }, { passive: true });
  }

  // The packed path as text; a page that stores its packs elsewhere replaces this.
  packText(pack) { return byId(`pack-${pack}`).textContent; }

  drawPlot() { this.plot.draw(); }

  drawTree() { drawTokenTree(this); }

  async load(pack) {
    if (!this.decoded.has(pack)) this.decoded.set(pack, unpackColumns(this.packText(pack)).then((columns) => new PathData(columns)));
    return this.decoded.get(pack);
  }

  async open(question, index, depth = -1) {
    const { paths } = this.metadata.questions[question], request = (this.request = (this.request || 0) + 1);
    this.branches = [];
    if (!paths.length) return this.showNothing("This file contains no path of this question.", question, index);
    let path;
    try {
      path = await this.load(paths[index].pack);
    } catch {
      return this.showNothing("This browser cannot decompress the data; use a current Chrome, Firefox or Safari.", question, index);
    }
    if (request !== this.request) return;
    Object.assign(this, { path, question, index, depth: -1 });
    this.rankings.clear();
    this.layOut();
    this.drawPlot();
    // Start at the first decision with a verdict, or else at the first decision.
    const decided = path.depths.findIndex((_, node) => !path.isUndecided(this.pair, node));
    this.select(depth >= 0 ? depth : path.depths[Math.max(decided, 0)] ?? 0, { keepTooltip: true });
    this.text.dataset.ready = `${question}/${index}`;
    await this.findBranches(paths, index, request);
    if (request === this.request) this.drawTree();
  }

  // Where the other paths of the question leave this one, and with which token.
  async findBranches(paths, index, request) {
    const { path } = this;
    for (const [otherIndex, entry] of paths.entries()) {
      if (otherIndex === index) continue;
      const other = await this.load(entry.pack), length = Math.min(path.length, other.length);
      if (request !== this.request) return;
      let depth = 0;
      while (depth < length && path.tokenAt(depth) === other.tokenAt(depth)) depth += 1;
      if (depth < length) this.branches.push({ index: otherIndex, depth, token: other.tokenAt(depth) });
    }
  }

  showNothing(message, question, index) {
    this.path = null;
    this.text.replaceChildren(html("p", { className: "quiet" }, message));
    this.card.replaceChildren();
    this.drawPlot();
    showMessage("tree", "");
    this.text.dataset.ready = `${question}/${index}`;
  }

  // -- the text -----------------------------------------------------------------------------------------------

  layOut() {
    const { path, metadata: { token_texts: tokenTexts } } = this;
    this.observer.disconnect();
    this.chunks = [];
    for (let from = 0; from < path.length;) {
      let to = Math.min(from + CHUNK_TOKENS, path.length);
      // A chunk is a block element: end it at a newline if there is one nearby.
      for (let end = to; end < Math.min(to + CHUNK_TOKENS / 2, path.length); end += 1) {
        if (tokenTexts[path.tokenAt(end - 1)].endsWith("\n")) { to = end; break; }
      }
      this.chunks.push({ from, to, element: html("div", { className: "chunk" }), filled: false });
      from = to;
    }
    const lineWidth = Math.max(this.text.clientWidth - 44, 100), lines = (letters) => (letters * 7.9) / lineWidth;
    this.text.replaceChildren(...this.chunks.map((chunk) => {
      // An estimate of its height, so that the scroll bar is about right.
      let letters = 0, nLines = 1;
      for (let depth = chunk.from; depth < chunk.to; depth += 1) {
        const token = tokenTexts[path.tokenAt(depth)];
        letters += token.length;
        if (token.includes("\n")) { nLines += Math.ceil(lines(letters)); letters = 0; }
      }
      chunk.element.style.minHeight = `${31 * (nLines + Math.floor(lines(letters)))}px`;
      chunk.element.chunk = chunk;
      this.observer.observe(chunk.element);
      return chunk.element;
    }));
    this.text.scrollTop = 0;
  }

  contains(chunk, depth) { return depth >= chunk.from && depth < chunk.to; }

  updateChunks(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) this.fill(target.chunk);
      else if (target.chunk.filled && !this.contains(target.chunk, this.depth)) {
        target.style.minHeight = `${target.offsetHeight}px`;
        target.replaceChildren();
        target.chunk.filled = false;
      }
    }
  }

  fill(chunk) {
    if (chunk.filled) return;
    const spans = [];
    for (let depth = chunk.from; depth < chunk.to; depth += 1) {
      const span = document.createElement("span"), token = this.metadata.token_texts[this.path.tokenAt(depth)], newline = token.indexOf("\n");
      if (newline >= 0) span.append(token.slice(0, newline), html("span", { className: "nl" }, "↵"), token.slice(newline));
      else span.textContent = token === "" ? "∅" : token;
      span.className = this.classOf(depth);
      spans.push(span);
    }
    chunk.element.replaceChildren(...spans);
    chunk.element.style.minHeight = "";
    chunk.filled = true;
    if (this.contains(chunk, this.depth)) this.mark(this.depth);
  }

  classOf(depth) {
    const { path, pair } = this, node = path.nodeAt[depth];
    if (node < 0) return "";
    const alignment = path.value("alignment", pair, node);
    if (Number.isNaN(alignment)) return "d z0";
    // Signals are small numbers: their colour saturates at |signal| = 0.5.
    const strength = this.colour === "signal" ? Math.sqrt(Math.min(1, 2 * Math.abs(alignment) * path.columns["node.sr_range"][node])) : Math.abs(alignment);
    const level = Math.min(4, Math.ceil(strength * 4)), undecided = path.isUndecided(pair, node) ? " u" : "";
    return level ? `d ${alignment > 0 ? "p" : "n"}${level}${undecided}` : "d z0";
  }

  recolour() {
    if (!this.path) return;
    this.rankings.clear();
    for (const chunk of this.chunks) {
      if (chunk.filled) [...chunk.element.children].forEach((span, index) => { span.className = this.classOf(chunk.from + index); });
    }
    if (this.depth >= 0) this.mark(this.depth);
    this.drawPlot();
    drawTokenCard(this);
    this.drawTree();
  }

  chunkOf(depth) { return this.chunks.find((chunk) => this.contains(chunk, depth)); }

  spanOf(depth) { const chunk = this.chunkOf(depth); return chunk && chunk.filled ? chunk.element.children[depth - chunk.from] : null; }

  depthOf(target) {
    const span = target.closest && target.closest(".chunk > span");
    return span ? span.parentElement.chunk.from + [...span.parentElement.children].indexOf(span) : -1;
  }

  // The tokens [from, to] in the visible part of the text.
  visibleRange() {
    const top = this.text.scrollTop, bottom = top + this.text.clientHeight;
    let from = this.path.length, to = 0;
    for (const { element, from: first, to: last } of this.chunks) {
      const y = element.offsetTop, height = element.offsetHeight || 1;
      if (y + height < top || y > bottom) continue;
      from = Math.min(from, first + (last - first) * Math.max(0, (top - y) / height));
      to = Math.max(to, first + (last - first) * Math.min(1, (bottom - y) / height));
    }
    return [from, to];
  }

  hover(event) {
    const depth = this.depthOf(event.target);
    if (depth < 0) this.tip.hidden = true;
    else showTokenTooltip(this, depth, event.target);
  }

  // -- the selection ------------------------------------------------------------------------------------------

  mark(depth) {
    for (const span of this.text.querySelectorAll("span.on")) {
      span.classList.remove("on");
      for (const name of ["tabindex", "role", "aria-label"]) span.removeAttribute(name);
    }
    const span = this.spanOf(depth);
    if (!span) return null;
    span.classList.add("on");
    span.tabIndex = 0;
    span.setAttribute("role", "button");
    span.setAttribute("aria-label", tokenSummary(this, depth).join(", "));
    return span;
  }

  select(depth, { focus = false, keepTooltip = false } = {}) {
    if (!this.path) return;
    this.depth = Math.max(0, Math.min(depth, this.path.length - 1));
    const index = this.chunks.indexOf(this.chunkOf(this.depth));
    for (const chunk of this.chunks.slice(Math.max(0, index - 1), index + 2)) this.fill(chunk);
    const span = this.mark(this.depth);
    this.scrollToSelection(6);
    if (focus) span.focus({ preventScroll: true });
    if (!keepTooltip) this.tip.hidden = true;
    this.plot.requestOverlay();
    drawTokenCard(this);
    this.drawTree();
    if (this.onSelect) this.onSelect();
  }

  // The height of the text above may still change while it is filled in, so check again in the next frames.
  scrollToSelection(retries) {
    const span = this.spanOf(this.depth);
    if (!span) return;
    const box = this.text.getBoundingClientRect(), target = span.getBoundingClientRect();
    if (target.top < box.top + 20 || target.bottom > box.bottom - 20) this.text.scrollTop += target.top - box.top - box.height / 2;
    if (retries > 0) requestAnimationFrame(() => this.scrollToSelection(retries - 1));
  }

  // Decisions from the most helpful (or harmful) down: those with that verdict first, then by teacher advantage, or by
  // signal where there is no teacher. Only an order for navigation, not a statistic.
  ranking(direction) {
    const key = `${direction}/${this.pair}`;
    if (!this.rankings.has(key)) {
      const { path, pair, teacher } = this, verdict = direction > 0 ? 0 : 1;
      const nodes = [...path.depths.keys()].filter((node) => direction * path.value("alignment", pair, node) > 0);
      const isOther = (node) => path.value("verdict", pair, node) === verdict ? 0 : 1;
      const weight = (node) => {
        const advantage = path.value("advantage", teacher, node), signal = path.value("alignment", pair, node) * path.columns["node.sr_range"][node];
        return direction * (Number.isNaN(advantage) ? signal : advantage);
      };
      nodes.sort((a, b) => isOther(a) - isOther(b) || weight(b) - weight(a));
      this.rankings.set(key, nodes.map((node) => path.depths[node]));
    }
    return this.rankings.get(key);
  }

  // To the next (or previous) of the most helpful (1) or most harmful (-1) decisions.
  jump(direction, backwards = false) {
    if (!this.path) return;
    const depths = this.ranking(direction), rank = depths.indexOf(this.depth);
    if (depths.length) this.select(depths[rank < 0 ? 0 : (rank + (backwards ? depths.length - 1 : 1)) % depths.length], { focus: true });
  }

  // To the next (1) or previous (-1) decision in the text.
  step(direction) {
    if (!this.path) return;
    const { depths } = this.path;
    const node = direction > 0 ? depths.findIndex((depth) => depth > this.depth) : depths.findLastIndex((depth) => depth < this.depth);
    if (node >= 0) this.select(depths[node], { focus: true });
  }
}
