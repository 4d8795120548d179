// Timelines: bars on rows. Wheel zooms at the pointer, drag moves, a click tells all that is known of a bar.
const LANE = { height: 26, bar: 18, top: 30, bottom: 30, right: 10, most: 640, label: 280 };
const BRANCH = 4, LEVELS = 6; // a node stands for 16 nodes of the level below: far fewer to visit than bars
const INKS = ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#8c6bb1", "#8a6d3b", "#c0504d", "#4f9d9d"];
// What became of an operation, by the first word: red is slower, as in the waterfall.
const CHANGES = { as: "computation", slower: "fail", faster: "ok", another: "communication", only: "memcpy" };
const WORDS = { name: "kernel", family: "class", op: "op", shapes: "shapes", module: "module", phase: "phase", source: "source", change: "change" };
const NONE = 0xffffffff;

async function numbers(text, Kind) {
  const packed = atob(text), raw = new Uint8Array(packed.length);
  for (let at = 0; at < raw.length; at++) raw[at] = packed.charCodeAt(at);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

function duration(us) {
  return us >= 1e6 ? `${(us / 1e6).toPrecision(4)} s` : us >= 1000 ? `${(us / 1000).toPrecision(4)} ms` : `${us.toPrecision(4)} µs`;
}

class Timeline {
  constructor(holder) {
    Object.assign(this, { holder, left: 16, chosen: -1, hits: null, by: "family", cursors: [] });
    holder.timeline = this;
    this.tools = made(holder, "div", "", "tools");
    this.said = made(holder, "p", "", "said");
    this.said.setAttribute("role", "status");
    this.plot = made(holder, "div", "", "plot");
    this.canvas = made(this.plot, "canvas");
    this.spacer = made(this.plot, "div");
    this.told = made(holder, "div", "", "told");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `${holder.dataset.name}: arrows move, plus and minus zoom, n and p go to the next and previous launch, f follows a launch, m sets the cursors, 0 shows all, escape forgets the choice`);
    this.load().catch((error) => { this.said.textContent = `This browser cannot draw the chart (${error.message}).`; });
  }

  async load() {
    await (this.holder.dataset.src ? this.fetchColumns() : this.unpackColumns());
    Object.assign(this, { tick: this.spec.tickUs, kinds: this.spec.kinds });
    this.split();
    this.end = Math.max(1, ...this.last) * this.tick;
    this.whole = [-0.01 * this.end, 1.01 * this.end];
    this.shown = [...this.whole];
    this.rank();
    this.makeTools();
    this.colour(this.kinds[this.spec.by] ? this.spec.by : "family");
    this.listen();
    const linked = this.holder.dataset.src && /^#bar=(\d{1,9})$/.exec(location.hash);
    if (linked && Number(linked[1]) < this.kind.length) this.choose(Number(linked[1]), true);
    new ResizeObserver(() => this.later()).observe(this.holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
    this.holder.dataset.ready = "true";
  }

  // Columns inside the page, in base64 of deflate; starts are differences.
  async unpackColumns() {
    const spec = this.spec = JSON.parse(this.holder.dataset.timeline);
    delete this.holder.dataset.timeline;
    [this.start, this.dur, this.row, this.kind] = await Promise.all([
      numbers(spec.start, Int32Array), numbers(spec.dur, Uint32Array), numbers(spec.row, Uint32Array), numbers(spec.kind, Uint32Array),
    ]);
    let sum = 0;
    const starts = new Uint32Array(this.start.length);
    for (let at = 0; at < starts.length; at++) starts[at] = sum += this.start[at];
    this.start = starts;
  }

  // Columns from a server: 8 bytes of magic, the header's length, the header, then arrays as they lie in memory.
  async fetchColumns() {
    this.said.textContent = "reading the recording …";
    const answer = await fetch(this.holder.dataset.src);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const raw = await answer.arrayBuffer(), size = Number(new DataView(raw).getBigUint64(8, true));
    this.spec = JSON.parse(new TextDecoder().decode(new Uint8Array(raw, 16, size)));
    const columns = [["start", Uint32Array], ["dur", Uint32Array], ["row", Uint32Array], ["kind", Uint32Array], ["flow", Int32Array]];
    columns.forEach(([name, Kind], at) => { this[name] = new Kind(raw, 16 + size + at * 4 * this.spec.count, this.spec.count); });
    this.said.textContent = "";
    for (const note of this.spec.notes) made(this.holder, "p", note, "note");
  }

  // Bars come by row, then start; reach is the furthest end up to each bar of its row, for the search.
  split() {
    const rows = this.spec.rows.length, count = this.row.length;
    this.first = new Array(rows + 1).fill(count);
    for (let at = count - 1; at >= 0; at--) this.first[this.row[at]] = at;
    for (let row = rows - 1; row >= 0; row--) this.first[row] = Math.min(this.first[row], this.first[row + 1]);
    this.reach = new Float64Array(count);
    this.last = new Array(rows).fill(0);
    for (let row = 0; row < rows; row++) {
      let most = 0;
      for (let at = this.first[row]; at < this.first[row + 1]; at++) this.reach[at] = most = Math.max(most, this.start[at] + this.dur[at]);
      this.last[row] = most;
    }
    this.levels = [];
    for (let level = 1, size = BRANCH; level <= LEVELS; level++, size *= BRANCH) {
      const offset = [0];
      for (let row = 0; row < rows; row++) offset.push(offset[row] + Math.floor((this.first[row + 1] - this.first[row]) / size));
      this.levels.push({ size, offset, tone: new Uint8Array(offset[rows]), fill: new Float32Array(offset[rows]) });
    }
  }

  // Time of each kind, so that the costliest texts get a colour of their own.
  rank() {
    this.spent = new Float64Array(this.kinds.name.length);
    this.times = new Uint32Array(this.kinds.name.length);
    for (let at = 0; at < this.kind.length; at++) { this.spent[this.kind[at]] += this.dur[at]; this.times[this.kind[at]]++; }
  }

  text(kind, column) {
    if (column === "family") return this.spec.families[this.kinds.family[kind]].name;
    const at = this.kinds[column] ? this.kinds[column][kind] : -1;
    return at >= 0 ? this.spec.texts[at] : "";
  }

  // The colours by class, change, op, module or phase: keys, and for each kind the index of its key.
  colour(by) {
    this.by = by;
    const total = new Map();
    for (let kind = 0; kind < this.spent.length; kind++) {
      const key = this.kinds[by][kind];
      total.set(key, (total.get(key) || 0) + this.spent[kind]);
    }
    const order = [...total.keys()].filter((key) => key >= 0).sort((a, b) => total.get(b) - total.get(a));
    if (by === "family") {
      this.keys = this.spec.families.map((family, at) => ({ name: family.name, role: family.role, key: at, used: total.has(at) }));
    } else {
      this.keys = order.slice(0, INKS.length).map((key, at) => {
        const name = this.spec.texts[key], role = by === "change" && CHANGES[name.split(" ")[0]];
        return { name, key, used: true, ...(role ? { role } : { ink: INKS[at] }) };
      });
      this.keys.push({ name: order.length > INKS.length ? `${order.length - INKS.length} others` : "other", role: "unknown", key: null, used: order.length > INKS.length });
      this.keys.push({ name: `no ${WORDS[by]} recorded`, role: "idle", key: -1, used: total.has(-1) });
    }
    const index = new Map(this.keys.map((one, at) => [one.key, at]));
    const rest = this.keys.findIndex((one) => one.key === null);
    this.keyOf = this.kinds[by].map((key) => (index.has(key) ? index.get(key) : rest));
    this.legend();
    this.paint();
  }

  // Tones of kinds: the colour's key, or the last one, which is dim, where a search does not fit.
  paint() {
    this.dim = this.keys.length;
    this.toneOf = Uint8Array.from(this.keyOf, (key, kind) => (this.hits && !this.hits[kind] ? this.dim : key));
    const sums = new Float64Array(this.dim + 1);
    this.levels.forEach((level, depth) => {
      const below = this.levels[depth - 1];
      for (let row = 0; row < this.spec.rows.length; row++) {
        for (let node = level.offset[row]; node < level.offset[row + 1]; node++) {
          const from = (node - level.offset[row]) * BRANCH;
          for (let child = from; child < from + BRANCH; child++) {
            if (below) sums[below.tone[below.offset[row] + child]] += below.fill[below.offset[row] + child];
            else { const at = this.first[row] + child; sums[this.toneOf[this.kind[at]]] += this.dur[at] + 0.01; }
          }
          const [most, whole] = this.strongest(sums, 0, sums.length);
          level.tone[node] = Math.max(most, 0);
          level.fill[node] = whole;
          sums.fill(0);
        }
      }
    });
    this.later();
  }

  makeTools() {
    button(this.tools, "show all", () => this.show(...this.whole));
    if (this.spec.marks.length) this.makeChoice();
    const ways = ["family", "change", "op", "module", "phase"].filter((by) => this.kinds[by]);
    if (ways.length > 1) {
      const label = made(this.tools, "label", "colour by ");
      const choice = made(label, "select", "", "by");
      for (const by of ways) choice.append(new Option(WORDS[by], by));
      if (ways.includes(this.spec.by)) choice.value = this.spec.by;
      choice.addEventListener("change", () => this.colour(choice.value));
    }
    this.makeSearch();
    this.key = made(this.tools, "div", "", "keys");
  }

  makeChoice() {
    const choice = made(this.tools, "select", "", "marks");
    choice.setAttribute("aria-label", "zoom to a forward or step");
    choice.append(new Option("go to …", ""));
    this.spec.marks.forEach(([name], at) => choice.append(new Option(name, at)));
    choice.addEventListener("change", () => {
      if (choice.value === "") return;
      const [, from, to] = this.spec.marks[Number(choice.value)];
      const edge = 0.03 * (to - from);
      this.show(from - edge, to + edge);
    });
  }

  makeSearch() {
    this.box = made(this.tools, "input", "", "search");
    Object.assign(this.box, { type: "search", placeholder: "find a kernel, op, module, shape …" });
    this.box.setAttribute("aria-label", "find launches by text");
    const label = made(this.tools, "label", "", "regex");
    this.regex = made(label, "input");
    this.regex.type = "checkbox";
    label.append(" regex");
    button(this.tools, "previous", () => this.step(-1));
    button(this.tools, "next", () => this.step(1));
    this.box.addEventListener("input", () => this.find());
    this.box.addEventListener("keydown", (event) => { if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1); });
    this.regex.addEventListener("change", () => this.find());
  }

  legend() {
    this.key.textContent = "";
    this.keys.forEach((one, at) => {
      if (!one.used) return;
      const words = one.name.length > 44 ? `${one.name.slice(0, 30)}…${one.name.slice(-12)}` : one.name;
      const entry = button(this.key, words, () => {
        const on = entry.getAttribute("aria-pressed") !== "true";
        for (const other of this.key.children) other.setAttribute("aria-pressed", "false");
        entry.setAttribute("aria-pressed", String(on));
        this.light(on ? (kind) => this.keyOf[kind] === at : null, one.name);
      });
      entry.title = one.name;
      entry.setAttribute("aria-pressed", "false");
      entry.style.setProperty("--tone", one.role ? `var(--${one.role})` : one.ink);
    });
  }

  find() {
    const wanted = this.box.value;
    if (!wanted) return this.light(null);
    let fits = (text) => text.toLowerCase().includes(wanted.toLowerCase());
    if (this.regex.checked) {
      try {
        const pattern = new RegExp(wanted, "i");
        fits = (text) => pattern.test(text);
      } catch (error) {
        this.said.textContent = `not a valid regular expression: ${error.message}`;
        return undefined;
      }
    }
    const hit = this.spec.texts.map(fits), columns = Object.keys(WORDS).filter((column) => column !== "family" && this.kinds[column]);
    return this.light((kind) => columns.some((name) => hit[this.kinds[name][kind]]), wanted);
  }

  // Show the kinds that fit in their colours and all others dim; null: everything as it is.
  light(fits, words = "") {
    this.hits = fits && Uint8Array.from(this.spent, (_, kind) => (fits(kind) ? 1 : 0));
    if (!fits) this.said.textContent = "";
    else {
      let launches = 0, ticks = 0;
      for (let kind = 0; kind < this.spent.length; kind++) if (this.hits[kind]) { launches += this.times[kind]; ticks += this.spent[kind]; }
      this.said.textContent = `${launches} of ${this.kind.length} ${this.holder.dataset.src ? "bars" : "launches"}, ${duration(ticks * this.tick)}: ${words}`;
    }
    this.paint();
  }

  step(way) {
    const count = this.kind.length;
    if (!count || (this.hits && !this.hits.includes(1))) return;
    let at = this.chosen;
    do { at = at < 0 ? (way > 0 ? 0 : count - 1) : (at + way + count) % count; } while (this.hits && !this.hits[this.kind[at]]);
    this.choose(at, true);
  }

  follow() { if (this.flow && this.chosen >= 0 && this.flow[this.chosen] >= 0) this.choose(this.flow[this.chosen], true); }

  choose(bar, go = false) {
    this.chosen = bar;
    if (this.holder.dataset.src) history.replaceState(null, "", bar >= 0 ? `#bar=${bar}` : "#");
    this.told.textContent = "";
    if (bar >= 0) this.tellAll(bar);
    if (bar >= 0 && go) this.reveal(bar);
    this.later();
  }

  // Move, and where a bar would be too small to see, zoom, until the bar is in view.
  reveal(bar) {
    const from = this.from(bar), to = from + this.lasts(bar);
    let { span } = this;
    if ((to - from) / span < 0.005) span = Math.max((to - from) * 40, 200 * this.tick);
    if (span !== this.span || from < this.shown[0] || to > this.shown[1]) this.show((from + to - span) / 2, (from + to + span) / 2);
    const top = this.row[bar] * LANE.height, height = this.bottom - LANE.top;
    if (top < this.plot.scrollTop || top + LANE.height > this.plot.scrollTop + height) this.plot.scrollTop = top - height / 2;
  }

  tellAll(bar) {
    const kind = this.kind[bar], list = made(this.told, "dl");
    const columns = Object.keys(WORDS).filter((column) => column !== "change" || this.kinds.change);
    const rows = [
      ...columns.map((column) => [WORDS[column], this.text(kind, column)]), ["row", this.spec.rows[this.row[bar]]],
      ["start", `${(this.from(bar) / 1000).toFixed(6)} ms`], ["duration", duration(this.lasts(bar))],
      ["launches like it", `${this.times[kind]}, ${duration(this.spent[kind] * this.tick)} in all`],
      ["all of this name", this.siblings(bar)],
    ];
    for (const [words, value] of rows) { made(list, "dt", words); made(list, "dd", value || "not recorded"); }
    if (this.flow && this.flow[bar] >= 0) {
      const isCall = this.spec.families[this.kinds.family[kind]].name === "host calls";
      button(this.told, isCall ? "go to what it launched" : "go to the call that launched it", () => this.follow());
    }
    for (const column of ["name", "op", "module"]) {
      if (!this.text(kind, column)) continue;
      const isSame = (other) => this.kinds[column][other] === this.kinds[column][kind];
      button(this.told, `highlight this ${column === "name" ? "kernel" : column}`, () => this.light(isSame, this.text(kind, column)));
    }
  }

  // Every bar of the same name: how many, how long, and where this one stands among them.
  siblings(bar) {
    const name = this.kinds.name[this.kind[bar]], own = Uint8Array.from(this.kinds.name, (one) => (one === name ? 1 : 0)), found = [];
    for (let at = 0; at < this.kind.length; at++) if (own[this.kind[at]]) found.push(this.dur[at]);
    const sorted = Uint32Array.from(found).sort(), at = (share) => duration(sorted[Math.floor(share * (sorted.length - 1))] * this.tick);
    let longer = 0;
    for (const one of sorted) if (one > this.dur[bar]) longer++;
    return `${sorted.length}, shortest ${at(0)}, median ${at(0.5)}, 95 % below ${at(0.95)}, longest ${at(1)}; ${longer} take longer than this one`;
  }

  show(from, to) {
    const least = 20 * this.tick;
    if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
    this.shown = [Math.max(from, this.whole[0]), Math.min(to, this.whole[1])];
    if (this.span < least) this.shown = [...this.whole];
    this.later();
  }

  zoom(centre, factor) { this.show(centre - (centre - this.shown[0]) * factor, centre + (this.shown[1] - centre) * factor); }

  pan(us) {
    const room = Math.min(Math.max(us, this.whole[0] - this.shown[0]), this.whole[1] - this.shown[1]);
    this.show(this.shown[0] + room, this.shown[1] + room);
  }

  later() {
    if (this.waiting || !this.keyOf) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  get span() { return this.shown[1] - this.shown[0]; }
  get across() { return this.width - this.left - LANE.right; }
  get bottom() { return this.height - LANE.bottom; }
  px(us) { return this.left + (us - this.shown[0]) / this.span * this.across; }
  us(px) { return this.shown[0] + (px - this.left) / this.across * this.span; }
  top(row) { return LANE.top + row * LANE.height - this.plot.scrollTop + (LANE.height - LANE.bar) / 2; }

  draw() {
    const began = performance.now(), scale = window.devicePixelRatio || 1, rows = this.spec.rows.length;
    const style = getComputedStyle(this.holder), tone = (role) => style.getPropertyValue(`--${role}`);
    this.inks = Object.fromEntries(["ink", "muted", "rule", "paper", "fail", "idle"].map((role) => [role, tone(role)]));
    this.tones = [...this.keys.map((one) => (one.role ? tone(one.role) : one.ink)), this.inks.idle];
    this.width = Math.max(320, this.plot.clientWidth);
    const full = LANE.top + LANE.bottom + rows * LANE.height;
    this.height = Math.min(full, LANE.most);
    this.canvas.width = this.width * scale;
    this.canvas.height = this.height * scale;
    this.canvas.style.height = `${this.height}px`;
    this.plot.style.height = `${this.height}px`;
    this.spacer.style.height = `${full - this.height}px`;
    const pen = this.pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    if (!this.labelWidth) this.labelWidth = Math.min(LANE.label, this.spec.rows.reduce((most, label) => Math.max(most, pen.measureText(label).width), 0));
    this.left = 16 + Math.min(this.labelWidth, 0.36 * this.width);
    const from = Math.floor(this.plot.scrollTop / LANE.height);
    this.visible = [from, Math.min(rows, Math.ceil((this.plot.scrollTop + this.bottom - LANE.top) / LANE.height))];
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.across, this.bottom + 2);
    pen.clip();
    this.bands();
    pen.beginPath();
    pen.rect(this.left, LANE.top - 4, this.across, this.bottom - LANE.top + 6);
    pen.clip();
    this.shades();
    for (let row = this.visible[0]; row < this.visible[1]; row++) this.bars(row);
    this.arrow();
    this.outline();
    this.rulers();
    pen.restore();
    this.axes();
    this.holder.dataset.drawMs = (performance.now() - began).toFixed(2);
  }

  bands() {
    const { pen, bottom } = this;
    this.spec.marks.forEach(([name, from, to], at) => {
      const left = Math.max(this.px(from), this.left), right = Math.min(this.px(to), this.width - LANE.right);
      if (right < this.left || left > this.width) return;
      pen.globalAlpha = at % 2 ? 0.2 : 0.5;
      pen.fillStyle = this.inks.rule;
      pen.fillRect(left, LANE.top - 4, Math.max(right - left, 0.5), bottom - LANE.top + 4);
      pen.globalAlpha = 1;
      pen.fillStyle = this.inks.muted;
      if (pen.measureText(name).width < right - left) {
        pen.textAlign = "center";
        pen.fillText(name, (left + right) / 2, LANE.top - 10);
      }
    });
  }

  shades() {
    const { pen } = this;
    pen.globalAlpha = 0.16;
    pen.fillStyle = this.inks.fail;
    for (const [row, from, to] of this.spec.shades) {
      if (to < this.shown[0] || from > this.shown[1] || row < this.visible[0] || row >= this.visible[1]) continue;
      pen.fillRect(this.px(from), this.top(row) - (LANE.height - LANE.bar) / 2, Math.max(this.px(to) - this.px(from), 0.5), LANE.height);
    }
    pen.globalAlpha = 1;
  }

  // The first bar of a row at or past which `isBefore` no longer holds: ends that only grow can be searched.
  search(row, isBefore) {
    let low = this.first[row], high = this.first[row + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (isBefore(middle)) low = middle + 1; else high = middle;
    }
    return low;
  }

  from(bar) { return this.start[bar] * this.tick; }
  lasts(bar) { return this.dur[bar] * this.tick; }
  firstAfter(row, us) { return this.search(row, (bar) => this.reach[bar] * this.tick < us); }
  firstBeyond(row, us) { return this.search(row, (bar) => this.from(bar) <= us); }

  // A bar that a pixel can show is drawn as it is; shorter ones add up in their pixel, which is as strong as it
  // is busy, and a node of the tree stands for all bars of its pixel.
  bars(row) {
    const { pen, tones, start, dur, kind, toneOf, tick } = this, count = tones.length, top = this.top(row);
    const across = Math.ceil(this.width), begin = this.first[row], stop = this.firstBeyond(row, this.shown[1]);
    if (!this.filled || this.filled.length < across * count) this.filled = new Float32Array(across * count);
    const filled = this.filled.fill(0), perUs = this.across / this.span;
    const zero = this.left - this.shown[0] * perUs, scale = tick * perUs, pixel = 1 / scale;
    const add = (at, tone, ticks) => {
      if (at >= 0 && at < across) filled[at * count + tone] += Math.max(ticks * scale, 0.01);
    };
    let at = this.firstAfter(row, this.shown[0]), words = 0;
    walk: while (at < stop) {
      for (let depth = LEVELS - 1; depth >= 0; depth--) {
        const { size, offset, tone, fill } = this.levels[depth];
        if ((at - begin) % size || at + size > stop) continue;
        if (start[at + size - 1] + dur[at + size - 1] - start[at] >= pixel) continue;
        const node = offset[row] + (at - begin) / size;
        add(Math.floor(zero + start[at] * scale), tone[node], fill[node]);
        at += size;
        continue walk;
      }
      const left = zero + start[at] * scale, wide = dur[at] * scale, tone = toneOf[kind[at]];
      if (wide < 1.5) add(Math.floor(left + wide / 2), tone, dur[at]);
      else {
        pen.fillStyle = tones[tone];
        if (tone === this.dim) pen.globalAlpha = 0.35;
        pen.fillRect(left, top, wide, LANE.bar);
        pen.globalAlpha = 1;
        if (wide > 48 && words < 400) { this.word(at, left, wide, top); words++; }
      }
      at++;
    }
    this.pixels(filled, count, top, across);
  }

  word(bar, left, wide, top) {
    const { pen } = this, from = Math.max(left, this.left) + 4, room = Math.min(left + wide, this.width - LANE.right) - from - 4;
    const name = this.spec.short[this.kinds.name[this.kind[bar]]], fits = Math.floor(room / 6.6);
    if (fits < 4) return;
    pen.fillStyle = this.inks.paper;
    pen.textAlign = "left";
    pen.fillText(name.length > fits ? `${name.slice(0, fits - 1)}…` : name, from, top + LANE.bar - 5);
  }

  // The tone with most time of those from an offset on, -1 without any, and the time of all; dim comes last.
  strongest(times, offset, count) {
    let most = -1, whole = 0;
    for (let tone = 0; tone < count; tone++) {
      const time = times[offset + tone];
      if (!time) continue;
      whole += time;
      if (most < 0 || most === this.dim || (tone !== this.dim && time > times[offset + most])) most = tone;
    }
    return [most, whole];
  }

  pixels(filled, count, top, across) {
    const { pen } = this;
    for (let pixel = 0; pixel < across; pixel++) {
      const [most, whole] = this.strongest(filled, pixel * count, count);
      if (most < 0) continue;
      const strong = 0.2 + 0.8 * Math.min(1, whole);
      pen.globalAlpha = most === this.dim ? 0.35 * strong : this.hits ? Math.max(0.7, strong) : strong;
      pen.fillStyle = this.tones[most];
      pen.fillRect(pixel, top, 1, LANE.bar);
    }
    pen.globalAlpha = 1;
  }

  outline() {
    if (this.chosen < 0) return;
    const { pen } = this, left = this.px(this.from(this.chosen)), wide = this.lasts(this.chosen) * (this.px(1) - this.px(0));
    pen.strokeStyle = this.inks.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left - 1, this.top(this.row[this.chosen]) - 1, Math.max(wide, 2) + 2, LANE.bar + 2);
  }

  // From a host call to the first operation that it launched.
  arrow() {
    const other = this.chosen >= 0 && this.flow ? this.flow[this.chosen] : -1;
    if (other < 0) return;
    const { pen } = this, [call, op] = this.start[this.chosen] <= this.start[other] ? [this.chosen, other] : [other, this.chosen];
    const x1 = this.px(this.from(call)), y1 = this.top(this.row[call]) + LANE.bar / 2;
    const x2 = this.px(this.from(op)), y2 = this.top(this.row[op]) + LANE.bar / 2, bend = Math.max(24, Math.abs(x2 - x1) / 2);
    pen.strokeStyle = pen.fillStyle = this.inks.fail;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.bezierCurveTo(x1 + bend, y1, x2 - bend, y2, x2, y2);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(x2, y2);
    pen.lineTo(x2 - 7, y2 - 4);
    pen.lineTo(x2 - 7, y2 + 4);
    pen.fill();
  }

  // The two cursors and what lies between them.
  rulers() {
    const { pen } = this;
    pen.fillStyle = this.inks.ink;
    for (const us of this.cursors) pen.fillRect(this.px(us) - 0.5, LANE.top - 4, 1, this.bottom - LANE.top + 6);
    if (this.cursors.length < 2) return;
    pen.globalAlpha = 0.08;
    pen.fillRect(this.px(Math.min(...this.cursors)), LANE.top - 4, Math.abs(this.px(this.cursors[1]) - this.px(this.cursors[0])), this.bottom - LANE.top + 6);
    pen.globalAlpha = 1;
  }

  // Without a pointer: the chosen bar's start, then its end.
  edge(other) {
    if (this.chosen < 0) return other;
    const from = this.from(this.chosen);
    return this.cursors.length === 1 && this.cursors[0] === from ? from + this.lasts(this.chosen) : from;
  }

  // A first and a second cursor, then a first again.
  mark(us) {
    this.cursors = this.cursors.length === 1 ? [this.cursors[0], us] : [us];
    if (this.cursors.length === 1) this.said.textContent = `cursor at ${(us / 1000).toFixed(6)} ms; m at another place measures`;
    else {
      const [from, to] = [Math.min(...this.cursors), Math.max(...this.cursors)];
      let count = 0, busy = 0;
      for (let row = 0; row < this.spec.rows.length; row++) {
        for (let at = this.firstAfter(row, from), stop = this.firstBeyond(row, to); at < stop; at++) {
          const begins = this.from(at), part = Math.min(to, begins + this.lasts(at)) - Math.max(from, begins);
          if (part > 0) { count++; busy += part; }
        }
      }
      this.said.textContent = `${duration(to - from)} between the cursors; ${count} ${count === 1 ? "bar reaches" : "bars reach"} into it, ${duration(busy)} summed over all rows`;
    }
    this.later();
  }

  axes() {
    const { pen, bottom } = this;
    pen.save();
    pen.beginPath();
    pen.rect(0, LANE.top - 4, this.left, bottom - LANE.top + 6);
    pen.clip();
    pen.fillStyle = this.inks.ink;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let row = this.visible[0]; row < this.visible[1]; row++) pen.fillText(this.spec.rows[row], this.left - 8, this.top(row) + LANE.bar / 2, this.left - 12);
    pen.restore();
    pen.textBaseline = "alphabetic";
    pen.fillStyle = this.inks.muted;
    pen.textAlign = "center";
    const step = niceStep(this.span, (this.width - this.left) / 110);
    const digits = Math.max(0, 3 - Math.floor(Math.log10(step)));
    for (let k = Math.ceil(this.shown[0] / step); k * step <= this.shown[1]; k++) {
      pen.fillRect(this.px(k * step), bottom, 1, 4);
      pen.fillText((k * step / 1000).toFixed(Math.min(digits, 6)), this.px(k * step), bottom + 17);
    }
    pen.textAlign = "right";
    pen.fillText("ms", this.left - 8, bottom + 17);
  }

  at(event) { return placeOn(this.canvas, event, this.width, this.height); }

  // The bar under the pointer; of several that touch the pixel, the longest that a search fits.
  under({ x, y }) {
    const row = Math.floor((y - LANE.top + this.plot.scrollTop) / LANE.height);
    if (row < 0 || row >= this.spec.rows.length || x < this.left || y < LANE.top || y > this.bottom) return -1;
    const low = this.us(x - 1), high = this.us(x + 1), stop = this.firstBeyond(row, high);
    const rating = (at) => this.dur[at] + (this.hits && this.hits[this.kind[at]] ? NONE : 0);
    let found = -1;
    for (let at = Math.max(this.firstAfter(row, low), stop - 4096); at < stop; at++) {
      const ends = (this.start[at] + this.dur[at]) * this.tick;
      if (ends >= low && (found < 0 || rating(at) > rating(found))) found = at;
    }
    return found;
  }

  tell(place) {
    const bar = this.under(place);
    if (bar < 0) { delete this.canvas.dataset.tip; return; }
    const kind = this.kind[bar], op = this.text(kind, "op");
    this.canvas.dataset.tip = `${this.spec.short[this.kinds.name[kind]]} · ${duration(this.lasts(bar))} at ${(this.from(bar) / 1000).toFixed(4)} ms · ${this.text(kind, "family")}${op ? ` · ${op}` : ""}`;
  }

  listen() {
    const { canvas } = this;
    let held = null;
    this.pointer = null;
    canvas.addEventListener("pointerleave", () => { this.pointer = null; });
    canvas.addEventListener("wheel", (event) => {
      if (event.shiftKey) return;
      event.preventDefault();
      this.zoom(this.us(this.at(event).x), event.deltaY > 0 ? 1.3 : 1 / 1.3);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => { held = { ...this.at(event), shown: [...this.shown] }; });
    canvas.addEventListener("pointermove", (event) => {
      const place = this.at(event);
      this.pointer = this.us(place.x);
      if (!held) { this.tell(place); return; }
      const moved = (held.x - place.x) / this.across * (held.shown[1] - held.shown[0]);
      this.pan(held.shown[0] + moved - this.shown[0]);
    });
    window.addEventListener("pointerup", (event) => {
      if (held && event.target === canvas && Math.abs(this.at(event).x - held.x) < 3) this.choose(this.under(this.at(event)));
      held = null;
    });
    canvas.addEventListener("dblclick", () => this.show(...this.whole));
    this.plot.addEventListener("scroll", () => this.later());
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { span } = this, middle = (this.shown[0] + this.shown[1]) / 2;
    const keys = {
      ArrowLeft: () => this.pan(-span / 10), ArrowRight: () => this.pan(span / 10),
      ArrowUp: () => { this.plot.scrollTop -= LANE.height; }, ArrowDown: () => { this.plot.scrollTop += LANE.height; },
      "+": () => this.zoom(middle, 1 / 1.5), "=": () => this.zoom(middle, 1 / 1.5), "-": () => this.zoom(middle, 1.5),
      0: () => this.show(...this.whole), Home: () => this.show(...this.whole), n: () => this.step(1), p: () => this.step(-1),
      Escape: () => { this.cursors = []; this.choose(-1); }, "/": () => this.box.focus(), f: () => this.follow(),
      w: () => this.zoom(middle, 1 / 1.5), s: () => this.zoom(middle, 1.5), a: () => this.pan(-span / 10), d: () => this.pan(span / 10),
      m: () => this.mark(this.pointer ?? this.edge(middle)),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

for (const holder of document.querySelectorAll(".timeline")) new Timeline(holder);
