"use strict";
// Hands a recording to Perfetto as its documentation says: PING until PONG, then the bytes by postMessage.
const PERFETTO = "https://ui.perfetto.dev", EVERY_MS = 50, PATIENCE_MS = 60_000;

async function handOver(target, button, status) {
  try {
    const [bytes] = await Promise.all([fetchBytes(button.dataset.src), untilReady(target)]);
    const size = (bytes.byteLength / 1e6).toFixed(1);
    // To Perfetto's origin alone: the window may have gone to another page since.
    target.postMessage({ perfetto: { buffer: bytes, title: button.dataset.title, fileName: button.dataset.file } }, PERFETTO, [bytes]);
    status.textContent = `${size} MB given to Perfetto`;
  } catch (error) {
    status.textContent = error.message;
    status.className = "warning";
  }
}

async function fetchBytes(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.arrayBuffer();
}

function untilReady(target) {
  return new Promise((resolve, reject) => {
    const start = performance.now();
    const listener = (event) => { if (event.source === target && event.data === "PONG") { stop(); resolve(); } };
    const timer = setInterval(() => {
      if (performance.now() - start > PATIENCE_MS) { stop(); reject(new Error("Perfetto's page does not answer: download the file and open it there.")); }
      else target.postMessage("PING", PERFETTO);
    }, EVERY_MS);
    const stop = () => { clearInterval(timer); removeEventListener("message", listener); };
    addEventListener("message", listener);
  });
}

const perfetto = document.getElementById("perfetto");
perfetto.addEventListener("click", () => {
  const status = document.getElementById("handover");
  // The window must be opened by the click itself, or it counts as a popup.
  const target = window.open(PERFETTO);
  if (!target) { status.textContent = "The browser did not let a window open."; return; }
  status.textContent = "reading the recording …";
  handOver(target, perfetto, status);
});
