"use strict";
// The list keeps itself up to date; hashes are checked when asked; tables sort by their heads; keys move about.

function sortBy(button) {
  const header = button.closest("th"), body = header.closest("table").tBodies[0], at = header.cellIndex;
  const rising = header.getAttribute("aria-sort") !== "ascending";
  const key = (row) => row.cells[at].dataset.v ?? row.cells[at].textContent;
  const keyed = Array.from(body.rows, (row) => [key(row), row]);
  const numeric = keyed.every(([text]) => text.trim() === "" || !isNaN(Number(text)));
  keyed.sort(([a], [b]) => (numeric ? Number(a) - Number(b) : a.localeCompare(b, "en", { numeric: true })) * (rising ? 1 : -1));
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", rising ? "ascending" : "descending");
  body.append(...keyed.map(([, row]) => row));
}

class List {
  constructor(holder) {
    this.holder = holder;
    this.form = document.querySelector("form.find");
    this.box = document.getElementById("q");
    this.tag = "";
    this.address = location.search;
    this.asked = 0;
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.wish(); });
    for (const select of this.form.querySelectorAll("select")) select.addEventListener("change", () => this.wish());
    this.box.addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.wish(), 120); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.look(); });
    setInterval(() => { if (!document.hidden) this.look(); }, 2000);
    document.addEventListener("keydown", (event) => this.press(event));
  }

  wish() {
    this.address = `?${new URLSearchParams(new FormData(this.form))}`;
    history.replaceState(null, "", `/${this.address}`);
    this.tag = "";
    this.look();
  }

  async look() {
    const number = ++this.asked;
    let answer;
    try {
      answer = await fetch(`/rows${this.address}`, this.tag ? { headers: { "If-None-Match": this.tag } } : {});
    } catch { this.note("lab serve does not answer: is it still running?"); return; }
    if (number !== this.asked) return;
    if (answer.status === 304) { this.note(""); return; }
    if (!answer.ok) { this.note(`lab serve answered ${answer.status}`); return; }
    const text = await answer.text();
    if (number !== this.asked) return;
    this.tag = answer.headers.get("etag") || "";
    this.swap(new DOMParser().parseFromString(text, "text/html").body);
  }

  // The new rows, with what was ticked, open and focused as it was.
  swap(body) {
    const ticked = new Set(Array.from(this.holder.querySelectorAll("input:checked"), (one) => one.value));
    const open = this.holder.querySelector("details")?.open;
    const focused = this.holder.contains(document.activeElement) ? document.activeElement.getAttribute("href") || document.activeElement.value : null;
    this.holder.replaceChildren(...body.childNodes);
    for (const box of this.holder.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
    if (open) this.holder.querySelector("details").open = true;
    if (focused) for (const one of this.holder.querySelectorAll("a, input")) if ((one.getAttribute("href") || one.value) === focused) { one.focus(); break; }
    this.holder.dataset.version = this.tag;
  }

  note(text) {
    let place = document.getElementById("note");
    if (!place && text) {
      place = document.createElement("p");
      Object.assign(place, { id: "note", className: "warning" });
      place.setAttribute("role", "alert");
      this.holder.before(place);
    }
    if (place) { place.textContent = text; place.hidden = !text; }
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape" && event.target === this.box) { this.box.blur(); return; }
    if (typing) return;
    const links = Array.from(this.holder.querySelectorAll(".runs td.name a")), at = links.indexOf(document.activeElement.closest("tr")?.querySelector("td.name a"));
    const keys = {
      "/": () => this.box.focus(),
      j: () => links[Math.min(at + 1, links.length - 1)]?.focus(),
      k: () => links[Math.max(at - 1, 0)]?.focus(),
      x: () => { const box = links[at]?.closest("tr").querySelector("input"); if (box) box.checked = !box.checked; },
      c: () => this.holder.querySelector("form").requestSubmit(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }
}

// The page of a run that goes on follows it: its state, output and steps, and once it has ended all of it.
async function follow() {
  let answer;
  try { answer = await fetch(location.pathname); } catch { return; }
  const page = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!page || !page.querySelector("[data-running]")) { location.reload(); return; }
  for (const fresh of page.querySelectorAll("[data-live]")) {
    const old = document.querySelector(`[data-live="${fresh.dataset.live}"]`);
    if (old && old.innerHTML !== fresh.innerHTML) old.replaceChildren(...fresh.childNodes);
  }
}

async function check(button, address) {
  const place = button.parentNode.querySelector(".hash");
  place.className = "hash";
  place.textContent = "reading …";
  try {
    const answer = await fetch(`${address}?file=${encodeURIComponent(button.dataset.file)}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const found = await answer.json();
    place.textContent = `${found.words}: ${found.sha256.slice(0, 16)}`;
    place.classList.add(found.ok ? "ok" : button.dataset.known ? "fail" : "unknown");
    return found.ok;
  } catch (error) {
    place.textContent = `could not be checked: ${error.message}`;
    place.classList.add("fail");
    return false;
  }
}

async function checkAll(button) {
  const known = Array.from(document.querySelectorAll("button.verify")).filter((one) => one.dataset.known);
  const gone = document.querySelectorAll("#file-rows td.bad").length, place = document.getElementById("verified");
  button.disabled = true;
  let good = 0, bad = 0;
  for (const one of known) {
    if (await check(one, button.dataset.verify)) good++; else bad++;
    place.textContent = `${good + bad} of ${known.length} checked`;
  }
  const others = document.querySelectorAll("button.verify").length - known.length;
  place.textContent = `${good} of ${known.length} files are as the manifest records them` + (bad ? `, ${bad} NOT` : "") + (gone ? `; ${gone} missing or of another size` : "") + (others ? `; ${others} are not in the manifest and cannot be checked` : "");
  button.disabled = false;
}

function ask() {
  const box = document.getElementById("sql"), choice = document.getElementById("saved"), key = "lab-questions";
  const mine = () => { try { return JSON.parse(localStorage.getItem(key)) || []; } catch { return []; } };
  const add = (text) => choice.append(new Option(`mine: ${text.replace(/\s+/g, " ").slice(0, 60)}`, text));
  mine().filter((one) => typeof one === "string").forEach(add);
  choice.addEventListener("change", () => { if (choice.value) { box.value = choice.value; box.focus(); } });
  document.getElementById("keep").addEventListener("click", () => {
    const text = box.value.trim();
    if (!text || mine().includes(text)) return;
    localStorage.setItem(key, JSON.stringify([...mine(), text].slice(-50)));
    add(text);
  });
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) box.form.requestSubmit(); });
}

for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button));
for (const input of document.querySelectorAll("[data-filter]")) {
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of document.getElementById(input.dataset.filter).rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
for (const button of document.querySelectorAll("[data-toggle]")) {
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    for (const row of document.querySelectorAll(`.${button.dataset.toggle}`)) row.hidden = !on;
  });
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => {
    const range = document.createRange();
    range.selectNodeContents(document.getElementById(button.dataset.copy));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    navigator.clipboard?.writeText(range.toString()).then(() => { button.textContent = "copied"; }, () => { button.textContent = "selected: Ctrl-C copies"; });
  });
}
const all = document.getElementById("verify-all");
if (all) {
  all.addEventListener("click", () => checkAll(all));
  for (const button of document.querySelectorAll("button.verify")) button.addEventListener("click", () => check(button, all.dataset.verify));
}
if (document.querySelector("[data-running]")) setInterval(() => { if (!document.hidden) follow(); }, 2000);
const rows = document.getElementById("rows");
if (rows) new List(rows);
if (document.getElementById("sql")) ask();
