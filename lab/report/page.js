"use strict";
function made(parent, tag, words = "", kind = "") {
  const element = parent.appendChild(document.createElement(tag));
  element.textContent = words;
  if (kind) element.className = kind;
  return element;
}

function button(parent, words, act, kind = "") {
  const element = made(parent, "button", words, kind);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
}

// Where an event is on an element that is drawn `width` by `height`.
function placeOn(element, event, width, height) {
  const box = element.getBoundingClientRect();
  return { x: (event.clientX - box.left) * width / box.width, y: (event.clientY - box.top) * height / box.height };
}

// Of 1, 2 and 5 times a power of ten the least step that gives no more than `wanted` marks.
function niceStep(span, wanted) {
  const power = 10 ** Math.floor(Math.log10(span / wanted));
  return [1, 2, 5, 10].map((f) => f * power).find((step) => step >= span / wanted);
}

// Sort a table by the header that was clicked, numbers by value, empty cells last either way.
function sortBy(button) {
  const header = button.closest("th");
  const body = header.closest("table").tBodies[0];
  const at = header.cellIndex;
  const numeric = header.classList.contains("num");
  const rising = header.getAttribute("aria-sort") !== "ascending";
  const key = (row) => (numeric ? parseFloat(row.cells[at].dataset.v) : row.cells[at].textContent);
  const order = (a, b) => {
    if (!numeric) return a.localeCompare(b, "en", { numeric: true });
    return a - b;
  };
  const keyed = Array.from(body.rows, (row) => [key(row), row]);
  keyed.sort(([a], [b]) => {
    if (numeric && (isNaN(a) || isNaN(b))) return isNaN(a) - isNaN(b);
    return rising ? order(a, b) : order(b, a);
  });
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", rising ? "ascending" : "descending");
  body.append(...keyed.map(([, row]) => row));
}

function filterRows(input) {
  const wanted = input.value.toLowerCase();
  for (const row of input.parentNode.querySelector("tbody").rows) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }
}

// A table that is wider than a narrow screen is shown row by row, each cell behind its heading.
const narrow = matchMedia("(max-width: 640px)");
function fit(table) {
  table.classList.remove("stacked");
  if (!narrow.matches || table.offsetWidth <= table.parentNode.clientWidth) return;
  const names = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    for (const cell of row.cells) cell.dataset.label = names[cell.cellIndex];
  }
  table.classList.add("stacked");
}
function fitAll() {
  document.querySelectorAll("table.data").forEach(fit);
}

const tip = document.getElementById("tip");
function showTip(event) {
  const mark = event.target.closest("[data-tip]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, room)) + "px";
  tip.style.top = event.clientY + 16 + "px";
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => sortBy(button));
}
for (const input of document.querySelectorAll("input.filter")) {
  input.addEventListener("input", () => filterRows(input));
}
for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", fitAll);
addEventListener("resize", fitAll);
fitAll();
document.addEventListener("pointermove", showTip);
