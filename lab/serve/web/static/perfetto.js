"use strict";
// Hands a recording to Perfetto as its documentation says: PING until PONG, then the bytes by postMessage.
const EVERY_MS = 50, PATIENCE_MS = 60_000;

class Handover {
  constructor(holder) {
    this.holder = holder;
    this.said = document.getElementById("said");
    const frame = document.querySelector("iframe.perfetto");
    if (frame) this.give(() => frame.contentWindow);
    const button = document.getElementById("elsewhere");
    // The window must be opened by the click itself, or it counts as a popup.
    if (button) button.addEventListener("click", () => { const other = window.open(button.dataset.address); if (other) this.give(() => other); else this.said.textContent = "The browser did not let a window open."; });
  }

  async give(target) {
    try {
      const [bytes] = await Promise.all([this.fetched(), this.answered(target)]);
      this.said.textContent = "handing it over …";
      target().postMessage({ perfetto: { buffer: bytes, title: this.holder.dataset.title, fileName: this.holder.dataset.file } }, "*", [bytes]);
      this.said.textContent = `${(this.size / 1e6).toFixed(1)} MB given to Perfetto`;
      this.holder.dataset.given = "true";
    } catch (error) {
      this.said.textContent = error.message;
      this.said.className = "warning";
    }
  }

  async fetched() {
    this.said.textContent = "reading the recording …";
    const answer = await fetch(this.holder.dataset.perfetto);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const bytes = await answer.arrayBuffer();
    this.size = bytes.byteLength;
    return bytes;
  }

  answered(target) {
    return new Promise((done, failed) => {
      const began = performance.now();
      const heard = (event) => {
        if (event.source !== target() || event.data !== "PONG") return;
        stop();
        done();
      };
      const asking = setInterval(() => {
        if (performance.now() - began > PATIENCE_MS) { stop(); failed(new Error("Perfetto's page does not answer: download the file and open it there.")); }
        else target()?.postMessage("PING", "*");
      }, EVERY_MS);
      const stop = () => { clearInterval(asking); removeEventListener("message", heard); };
      addEventListener("message", heard);
    });
  }
}

for (const holder of document.querySelectorAll("[data-perfetto]")) new Handover(holder);
