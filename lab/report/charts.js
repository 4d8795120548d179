// Charts: points on two axes. Drag to zoom, double click to see all, legend to hide a series.
const SVG = "http://www.w3.org/2000/svg";
const SIZE = { height: 360, left: 74, right: 14, top: 12, bottom: 58 };
const UP = SIZE.height - SIZE.top - SIZE.bottom;

function node(name, attributes, parent, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function ticks(low, high, wanted) {
  const step = niceStep(high - low, wanted);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

function around(values, share) {
  const low = Math.min(...values), high = Math.max(...values);
  const room = (high - low || Math.abs(high) || 1) * share;
  return [low - room, high + room];
}

class Chart {
  constructor(holder) {
    this.holder = holder;
    this.spec = JSON.parse(holder.dataset.chart);
    this.hidden = new Set();
    this.zoomed = null;
    this.tools = made(holder, "div", "", "tools");
    this.svg = node("svg", { role: "img", "aria-label": holder.dataset.name }, holder);
    this.makeTools();
    this.listen();
    this.draw();
    new ResizeObserver(() => requestAnimationFrame(() => this.fit())).observe(holder);
  }

  button(text, act, kind = "") {
    const control = button(this.tools, text, () => { act(control); this.draw(); }, kind);
    return control;
  }

  makeTools() {
    this.spec.series.forEach((series, at) => {
      const hide = (control) => {
        if (!this.hidden.delete(at)) this.hidden.add(at);
        control.setAttribute("aria-pressed", !this.hidden.has(at));
      };
      const control = this.button(series.name, hide, "series");
      control.style.setProperty("--tone", `var(--${series.role})`);
      control.setAttribute("aria-pressed", true);
    });
    this.whole = this.button("show all", () => { this.zoomed = null; });
  }

  points() {
    return this.spec.series.flatMap((series, at) => this.hidden.has(at) ? [] :
      series.points.map(([x, y, tip]) => ({ x, y, tip, series })));
  }

  domain(points) {
    if (this.zoomed) return this.zoomed;
    if (!points.length) return { x: [0, 1], y: [0, 1] };
    return { x: around(points.map((p) => p.x), 0.04), y: around(points.map((p) => p.y), 0.06) };
  }

  fit() {
    if (this.room() !== this.width) this.draw();
  }

  room() { return Math.max(320, Math.min(1084, this.holder.clientWidth)); }

  draw() {
    this.width = this.room();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${SIZE.height}`);
    const points = this.points();
    this.shown = this.domain(points);
    this.whole.disabled = !this.zoomed;
    this.svg.replaceChildren();
    const clip = `clip-${this.holder.dataset.name}`;
    const area = { x: SIZE.left, y: SIZE.top, width: this.across, height: UP };
    node("rect", area, node("clipPath", { id: clip }, this.svg));
    this.axes();
    const inside = node("g", { "clip-path": `url(#${clip})` }, this.svg);
    if (this.spec.diagonal) this.diagonal(inside);
    for (const point of points) this.point(point, inside);
    this.frame = node("rect", { class: "frame", visibility: "hidden" }, this.svg);
  }

  get across() { return this.width - SIZE.left - SIZE.right; }

  px(x) { const [a, b] = this.shown.x; return SIZE.left + (x - a) / (b - a) * this.across; }
  py(y) { const [a, b] = this.shown.y; return SIZE.height - SIZE.bottom - (y - a) / (b - a) * UP; }

  axes() {
    const bottom = SIZE.height - SIZE.bottom;
    for (const y of ticks(...this.shown.y, 6)) {
      node("line", { class: "grid", x1: SIZE.left, x2: this.width - SIZE.right, y1: this.py(y), y2: this.py(y) }, this.svg);
      node("text", { x: SIZE.left - 8, y: this.py(y) + 4, "text-anchor": "end" }, this.svg, y);
    }
    for (const x of ticks(...this.shown.x, this.width / 110)) {
      node("text", { x: this.px(x), y: bottom + 20, "text-anchor": "middle" }, this.svg, x);
    }
    const middle = SIZE.left + this.across / 2;
    node("text", { class: "label", x: middle, y: SIZE.height - 10, "text-anchor": "middle" }, this.svg, this.spec.x);
    const y = (SIZE.top + bottom) / 2;
    node("text", { class: "label", x: 16, y, "text-anchor": "middle", transform: `rotate(-90 16 ${y})` }, this.svg, this.spec.y);
  }

  diagonal(parent) {
    const low = Math.min(this.shown.x[0], this.shown.y[0]), high = Math.max(this.shown.x[1], this.shown.y[1]);
    node("line", { class: "diagonal", x1: this.px(low), y1: this.py(low), x2: this.px(high), y2: this.py(high) }, parent);
  }

  point({ x, y, tip, series }, parent) {
    const group = node("g", { class: "point", "data-tip": tip }, parent);
    group.style.setProperty("--tone", `var(--${series.role})`);
    node("circle", { cx: this.px(x), cy: this.py(y), r: 3.2 }, group);
  }

  place(event) { return placeOn(this.svg, event, this.width, SIZE.height); }

  listen() {
    let start = null;
    this.svg.addEventListener("pointerdown", (event) => { start = this.place(event); });
    this.svg.addEventListener("pointermove", (event) => {
      if (!start) return;
      const now = this.place(event);
      const box = { x: Math.min(start.x, now.x), y: Math.min(start.y, now.y), width: Math.abs(now.x - start.x), height: Math.abs(now.y - start.y), visibility: "visible" };
      for (const [key, value] of Object.entries(box)) this.frame.setAttribute(key, value);
    });
    window.addEventListener("pointerup", (event) => {
      if (!start) return;
      const from = start, now = this.place(event);
      start = null;
      if (Math.abs(now.x - from.x) > 8 && Math.abs(now.y - from.y) > 8) this.zoom(from, now);
      this.draw();
    });
    this.svg.addEventListener("dblclick", () => { this.zoomed = null; this.draw(); });
  }

  zoom(from, to) {
    const x = (p) => this.shown.x[0] + (p - SIZE.left) / this.across * (this.shown.x[1] - this.shown.x[0]);
    const y = (p) => this.shown.y[0] + (SIZE.height - SIZE.bottom - p) / UP * (this.shown.y[1] - this.shown.y[0]);
    this.zoomed = { x: [x(Math.min(from.x, to.x)), x(Math.max(from.x, to.x))], y: [y(Math.max(from.y, to.y)), y(Math.min(from.y, to.y))] };
  }
}

for (const holder of document.querySelectorAll("[data-chart]")) new Chart(holder);
