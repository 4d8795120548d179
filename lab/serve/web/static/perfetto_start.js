"use strict";
// Starts Perfetto's page in a sandbox. It has no origin there: what it keeps lasts as long as the page, and a
// worker, whose script must be of the same origin, is a blob with the file's text.
{
  const base = new URL("./", document.currentScript.src).href;

  const store = () => {
    const kept = new Map();
    return {
      getItem: (key) => kept.get(String(key)) ?? null,
      setItem: (key, value) => { kept.set(String(key), String(value)); },
      removeItem: (key) => { kept.delete(String(key)); },
      clear: () => { kept.clear(); },
      key: (at) => [...kept.keys()][at] ?? null,
      get length() { return kept.size; },
    };
  };
  for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { value: store() });
  for (const name of ["caches", "indexedDB"]) Object.defineProperty(window, name, { value: undefined });

  delete Navigator.prototype.serviceWorker;

  // Its own content policy knows no blobs, and it asks a host outside for a script: the policy of this page's
  // header holds instead, which allows neither.
  const { appendChild, append } = document.head;
  const isPolicy = (node) => node.httpEquiv === "Content-Security-Policy";
  const isOutside = (node) => node.src && !node.src.startsWith(base);
  document.head.appendChild = (node) => (isPolicy(node) ? node : appendChild.call(document.head, node));
  document.head.append = (node) => { if (isOutside(node)) queueMicrotask(() => node.onerror?.()); else append.call(document.head, node); };

  // A blob has no folder: what a worker asks for by its bare name is a file of the bundle.
  const before = `{
  const file = (what) => typeof what === "string" && !what.includes(":") ? ${JSON.stringify(base)} + what : what;
  const { fetch } = self, { open } = XMLHttpRequest.prototype;
  self.fetch = (what, how) => fetch(file(what), { ...how, credentials: "omit" });
  XMLHttpRequest.prototype.open = function (method, what, ...more) { return open.call(this, method, file(what), ...more); };
}`;
  const text = (address) => {
    const asked = new XMLHttpRequest();
    asked.open("GET", address, false); // a worker is made at once or not at all
    asked.send();
    return asked.responseText;
  };
  const Plain = window.Worker;
  window.Worker = class extends Plain {
    constructor(address, options) {
      super(URL.createObjectURL(new Blob([before, "\n", text(new URL(address, base))], { type: "text/javascript" })), options);
    }
  };

  const script = document.createElement("script");
  script.src = `${base}frontend_bundle.js`;
  script.onerror = () => { document.body.textContent = "Perfetto's page did not load."; };
  document.head.append(script);
}
