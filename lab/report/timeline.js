// Timelines: bars on rows. Wheel zooms at the pointer, drag moves, double click shows all, the list goes to a forward.
const LANE = { height: 26, bar: 18, top: 30, bottom: 30, right: 10 };

function numbers(text, Kind) {
  const raw = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  return new Kind(raw.buffer);
}

function niceStep(span, wanted) {
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= span / wanted);
}

function duration(us) {
  return us >= 1e6 ? `${(us / 1e6).toPrecision(4)} s` : us >= 1000 ? `${(us / 1000).toPrecision(4)} ms` : `${us.toPrecision(4)} µs`;
}

class Timeline {
  constructor(holder) {
    const spec = JSON.parse(holder.dataset.timeline);
    delete holder.dataset.timeline;
    Object.assign(this, { holder, spec, tick: spec.tickUs });
    this.start = numbers(spec.start, Uint32Array);
    this.dur = numbers(spec.dur, Uint32Array);
    this.row = numbers(spec.row, Uint16Array);
    this.family = numbers(spec.family, Uint8Array);
    this.name = numbers(spec.name, Uint32Array);
    this.left = 16;
    this.split();
    this.end = Math.max(1, this.reach.reduce((most, rows) => Math.max(most, rows[rows.length - 1] || 0), 0)) * this.tick;
    this.whole = [-0.01 * this.end, 1.01 * this.end];
    this.shown = [...this.whole];
    this.tools = holder.appendChild(document.createElement("div"));
    this.tools.className = "tools";
    this.canvas = holder.appendChild(document.createElement("canvas"));
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", holder.dataset.name);
    this.makeTools();
    this.listen();
    new ResizeObserver(() => this.later()).observe(holder);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later());
    this.later();
  }

  // Bars come by row, then start; reach is the furthest end up to each bar of its row, for the search.
  split() {
    this.first = new Array(this.spec.rows.length + 1).fill(this.row.length);
    for (let at = this.row.length - 1; at >= 0; at--) this.first[this.row[at]] = at;
    for (let row = this.spec.rows.length - 1; row >= 0; row--) this.first[row] = Math.min(this.first[row], this.first[row + 1]);
    this.reach = this.spec.rows.map((_, row) => {
      const ends = new Float64Array(this.first[row + 1] - this.first[row]);
      let most = 0;
      for (let at = 0; at < ends.length; at++) {
        most = Math.max(most, this.start[this.first[row] + at] + this.dur[this.first[row] + at]);
        ends[at] = most;
      }
      return ends;
    });
  }

  makeTools() {
    const all = this.tools.appendChild(document.createElement("button"));
    all.type = "button";
    all.textContent = "show all";
    all.addEventListener("click", () => this.show(...this.whole));
    if (this.spec.marks.length) this.makeChoice();
    const used = new Set(this.family);
    this.spec.families.forEach((family, at) => {
      if (!used.has(at)) return;
      const key = this.tools.appendChild(document.createElement("span"));
      key.className = "key";
      key.style.setProperty("--tone", `var(--${family.role})`);
      key.append(document.createElement("i"), family.name);
    });
  }

  makeChoice() {
    const choice = this.tools.appendChild(document.createElement("select"));
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

  show(from, to) {
    const least = 20 * this.tick;
    if (to - from < least) [from, to] = [(from + to - least) / 2, (from + to + least) / 2];
    this.shown = [Math.max(from, this.whole[0]), Math.min(to, this.whole[1])];
    this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  tone(role) { return getComputedStyle(this.holder).getPropertyValue(`--${role}`); }
  px(us) { return this.left + (us - this.shown[0]) / (this.shown[1] - this.shown[0]) * (this.width - this.left - LANE.right); }
  us(px) { return this.shown[0] + (px - this.left) / (this.width - this.left - LANE.right) * (this.shown[1] - this.shown[0]); }
  top(row) { return LANE.top + row * LANE.height + (LANE.height - LANE.bar) / 2; }

  draw() {
    const scale = window.devicePixelRatio || 1;
    this.width = Math.max(480, this.holder.clientWidth);
    this.height = LANE.top + LANE.bottom + this.spec.rows.length * LANE.height;
    this.canvas.width = this.width * scale;
    this.canvas.height = this.height * scale;
    this.canvas.style.height = `${this.height}px`;
    const pen = this.pen = this.canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    this.left = 16 + Math.max(...this.spec.rows.map((label) => pen.measureText(label).width));
    pen.save();
    pen.beginPath();
    pen.rect(this.left, 0, this.width - this.left - LANE.right, this.height);
    pen.clip();
    this.bands();
    this.shades();
    this.spec.rows.forEach((_, row) => this.bars(row));
    pen.restore();
    this.axes();
  }

  bands() {
    const bottom = this.height - LANE.bottom;
    this.spec.marks.forEach(([name, from, to], at) => {
      const left = Math.max(this.px(from), this.left), right = Math.min(this.px(to), this.width - LANE.right);
      if (right < this.left || left > this.width) return;
      this.pen.globalAlpha = at % 2 ? 0.2 : 0.5;
      this.pen.fillStyle = this.tone("rule");
      this.pen.fillRect(left, LANE.top - 4, Math.max(right - left, 0.5), bottom - LANE.top + 4);
      this.pen.globalAlpha = 1;
      this.pen.fillStyle = this.tone("muted");
      if (this.pen.measureText(name).width < right - left) {
        this.pen.textAlign = "center";
        this.pen.fillText(name, (left + right) / 2, LANE.top - 10);
      }
    });
  }

  shades() {
    this.pen.globalAlpha = 0.16;
    this.pen.fillStyle = this.tone("fail");
    for (const [row, from, to] of this.spec.shades) {
      if (to < this.shown[0] || from > this.shown[1]) continue;
      this.pen.fillRect(this.px(from), LANE.top + row * LANE.height, Math.max(this.px(to) - this.px(from), 0.5), LANE.height);
    }
    this.pen.globalAlpha = 1;
  }

  // The first bar of a row that ends after `us`: ends that only grow can be searched.
  firstAfter(row, us) {
    const ends = this.reach[row];
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] * this.tick < us) low = middle + 1; else high = middle;
    }
    return this.first[row] + low;
  }

  // A bar that a pixel can show is drawn as it is; shorter ones add up in their pixel, which is as strong as it is busy.
  bars(row) {
    const tones = this.spec.families.map((family) => this.tone(family.role)), count = tones.length;
    const across = Math.ceil(this.width), filled = new Float64Array(across * count), top = this.top(row);
    for (let at = this.firstAfter(row, this.shown[0]); at < this.first[row + 1]; at++) {
      const from = this.start[at] * this.tick;
      if (from > this.shown[1]) break;
      const left = this.px(from), right = this.px(from + this.dur[at] * this.tick);
      if (right - left < 1.5) {
        const pixel = Math.floor((left + right) / 2);
        if (pixel >= 0 && pixel < across) filled[pixel * count + this.family[at]] += Math.max(right - left, 0.01);
        continue;
      }
      this.pen.fillStyle = tones[this.family[at]];
      this.pen.fillRect(left, top, right - left, LANE.bar);
    }
    this.pixels(filled, tones, top);
  }

  pixels(filled, tones, top) {
    for (let pixel = 0; pixel * tones.length < filled.length; pixel++) {
      let most = 0, whole = 0;
      for (let family = 0; family < tones.length; family++) {
        const here = filled[pixel * tones.length + family];
        whole += here;
        if (here > filled[pixel * tones.length + most]) most = family;
      }
      if (!whole) continue;
      this.pen.globalAlpha = 0.2 + 0.8 * Math.min(1, whole);
      this.pen.fillStyle = tones[most];
      this.pen.fillRect(pixel, top, 1, LANE.bar);
    }
    this.pen.globalAlpha = 1;
  }

  axes() {
    const { pen } = this, bottom = this.height - LANE.bottom;
    pen.fillStyle = this.tone("ink");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    this.spec.rows.forEach((label, row) => pen.fillText(label, this.left - 8, this.top(row) + LANE.bar / 2));
    pen.textBaseline = "alphabetic";
    pen.fillStyle = this.tone("muted");
    pen.textAlign = "center";
    const step = niceStep(this.shown[1] - this.shown[0], (this.width - this.left) / 110);
    const digits = Math.max(0, 3 - Math.floor(Math.log10(step)));
    for (let k = Math.ceil(this.shown[0] / step); k * step <= this.shown[1]; k++) {
      pen.fillRect(this.px(k * step), bottom, 1, 4);
      pen.fillText((k * step / 1000).toFixed(Math.min(digits, 4)), this.px(k * step), bottom + 17);
    }
    pen.textAlign = "right";
    pen.fillText("ms", this.left - 8, bottom + 17);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: (event.clientX - box.left) * this.width / box.width, y: (event.clientY - box.top) * this.height / box.height };
  }

  // The bar under the pointer; of several that touch the pixel, the longest.
  under({ x, y }) {
    const row = Math.floor((y - LANE.top) / LANE.height);
    if (row < 0 || row >= this.spec.rows.length || x < this.left) return -1;
    const low = this.us(x - 1), high = this.us(x + 1);
    let found = -1;
    for (let at = this.firstAfter(row, low); at < this.first[row + 1] && this.start[at] * this.tick <= high; at++) {
      const ends = (this.start[at] + this.dur[at]) * this.tick;
      if (ends >= low && (found < 0 || this.dur[at] > this.dur[found])) found = at;
    }
    return found;
  }

  tell(place) {
    const bar = this.under(place);
    if (bar < 0) { delete this.canvas.dataset.tip; return; }
    const family = this.spec.families[this.family[bar]].name;
    this.canvas.dataset.tip = `${this.spec.names[this.name[bar]]} · ${duration(this.dur[bar] * this.tick)} at ${(this.start[bar] * this.tick / 1000).toFixed(4)} ms · ${family}`;
  }

  listen() {
    let held = null;
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const centre = this.us(this.at(event).x), factor = event.deltaY > 0 ? 1.3 : 1 / 1.3;
      this.show(centre - (centre - this.shown[0]) * factor, centre + (this.shown[1] - centre) * factor);
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (event) => { held = { x: this.at(event).x, shown: [...this.shown] }; });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!held) { this.tell(this.at(event)); return; }
      const moved = (held.x - this.at(event).x) / (this.width - this.left - LANE.right) * (held.shown[1] - held.shown[0]);
      const room = Math.min(Math.max(moved, this.whole[0] - held.shown[0]), this.whole[1] - held.shown[1]);
      this.show(held.shown[0] + room, held.shown[1] + room);
    });
    window.addEventListener("pointerup", () => { held = null; });
    this.canvas.addEventListener("dblclick", () => this.show(...this.whole));
  }
}

for (const holder of document.querySelectorAll("[data-timeline]")) new Timeline(holder);
