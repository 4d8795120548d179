"use strict";
// The list and the page of a live run keep themselves up to date; hashes are checked when asked.
const EVERY_MS = 2000;

class List {
  constructor(holder) {
    this.holder = holder;
    this.form = document.querySelector("form.find");
    this.tag = "";
    this.address = location.search;
    this.requests = 0;
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.search(); });
    for (const select of this.form.querySelectorAll("select")) select.addEventListener("change", () => this.search());
    document.getElementById("q").addEventListener("input", () => { clearTimeout(this.typing); this.typing = setTimeout(() => this.search(), 120); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.refresh(); });
    setInterval(() => { if (!document.hidden) this.refresh(); }, EVERY_MS);
  }

  search() {
    this.address = `?${new URLSearchParams(new FormData(this.form))}`;
    history.replaceState(null, "", `/${this.address}`);
    this.tag = "";
    this.refresh();
  }

  async refresh() {
    const number = ++this.requests;
    let answer;
    try {
      answer = await fetch(`/rows${this.address}`, this.tag ? { headers: { "If-None-Match": this.tag } } : {});
    } catch { this.warn("lab serve does not answer: is it still running?"); return; }
    if (number !== this.requests) return; // a later request is under way
    if (answer.status === 304) { this.warn(""); return; }
    if (!answer.ok) { this.warn(`lab serve answered ${answer.status}`); return; }
    const text = await answer.text();
    if (number !== this.requests) return;
    this.tag = answer.headers.get("etag") || "";
    this.replace(new DOMParser().parseFromString(text, "text/html").body);
  }

  // Show new rows; what was ticked, open and focused stays so.
  replace(body) {
    const ticked = new Set(Array.from(this.holder.querySelectorAll("input:checked"), (box) => box.value));
    const open = this.holder.querySelector("details")?.open;
    const nameOf = (element) => element.getAttribute("href") || element.value;
    const focused = this.holder.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    this.holder.replaceChildren(...body.childNodes);
    for (const box of this.holder.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
    if (open) this.holder.querySelector("details").open = true;
    if (focused) Array.from(this.holder.querySelectorAll("a, input")).find((element) => nameOf(element) === focused)?.focus();
    this.holder.dataset.version = this.tag;
  }

  warn(text) {
    let note = document.getElementById("note");
    if (!note && text) {
      note = document.createElement("p");
      Object.assign(note, { id: "note", className: "warning" });
      note.setAttribute("role", "alert");
      this.holder.before(note);
    }
    if (note) { note.textContent = text; note.hidden = !text; }
  }
}

// Follow a live run: its state, output and steps; load the page anew once the run has ended.
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

async function checkHash(status, address) {
  status.className = "hash";
  status.textContent = "reading …";
  try {
    const answer = await fetch(`${address}?file=${encodeURIComponent(status.dataset.file)}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const { words, sha256, ok } = await answer.json();
    status.textContent = `${words}: ${sha256.slice(0, 16)}`;
    status.classList.add(ok ? "ok" : "fail");
    return ok;
  } catch (error) {
    status.textContent = `could not be checked: ${error.message}`;
    status.classList.add("fail");
    return false;
  }
}

async function checkAllHashes(button) {
  const files = Array.from(document.querySelectorAll(".hash")), recorded = files.filter((file) => file.dataset.recorded);
  const missing = document.querySelectorAll("td.bad").length, status = document.getElementById("verified");
  button.disabled = true;
  let good = 0, bad = 0;
  for (const file of recorded) {
    if (await checkHash(file, button.dataset.verify)) good++; else bad++;
    status.textContent = `${good + bad} of ${recorded.length} checked`;
  }
  const unrecorded = files.length - recorded.length;
  status.textContent = `${good} of ${recorded.length} files are as the manifest records them` + (bad ? `, ${bad} NOT` : "") + (missing ? `; ${missing} missing or of another size` : "") + (unrecorded ? `; ${unrecorded} are not in the manifest and cannot be checked` : "");
  button.disabled = false;
}

function toggle(button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(on));
  for (const row of document.querySelectorAll(`.${button.dataset.toggle}`)) row.hidden = !on;
}

for (const button of document.querySelectorAll("[data-toggle]")) button.addEventListener("click", () => toggle(button));
const verifyAll = document.getElementById("verify-all");
if (verifyAll) verifyAll.addEventListener("click", () => checkAllHashes(verifyAll));
if (document.querySelector("[data-running]")) setInterval(() => { if (!document.hidden) follow(); }, EVERY_MS);
const rows = document.getElementById("rows");
if (rows) new List(rows);
const question = document.getElementById("sql");
if (question) {
  const saved = document.getElementById("saved");
  saved.addEventListener("change", () => { if (saved.value) { question.value = saved.value; question.focus(); } });
  question.addEventListener("keydown", (event) => { if (event.key === "Enter" && event.ctrlKey) question.form.requestSubmit(); });
}
