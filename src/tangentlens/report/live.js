// Follows what the page shows: asks for its version, and when that has changed, changes in place what differs.
(() => {
  const EVERY = 2000, QUIET = 5 * 60, GONE_AFTER = 2;
  const main = document.querySelector("main");
  const [status, since, message] = ["live", "live-since", "message"].map((id) => document.getElementById(id));
  // When what is shown last changed, by the clock of this browser; and how often the server has not answered.
  let changed = null, failures = 0;

  const say = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const span = (seconds) =>
    seconds < 60 ? Math.round(seconds) + " s" : seconds < 3600 ? Math.floor(seconds / 60) + " min" : seconds < 86400 ? Math.floor(seconds / 3600) + " h" : Math.floor(seconds / 86400) + " d";
  // The part that counts seconds is none of the status: it would be read aloud every second.
  const tell = () => {
    if (failures >= GONE_AFTER) {
      say(status, "the server is gone; start `tangentlens view` again");
      say(since, "");
      return;
    }
    say(status, "live" + (main.dataset.step ? " · last step " + main.dataset.step : ""));
    const seconds = changed === null ? null : Math.max(0, (Date.now() - changed) / 1000);
    say(since, seconds === null ? "" : seconds < QUIET ? "· updated " + span(seconds) + " ago" : "· no change for " + span(seconds));
  };

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key || node.id : "") || "";
  // Each new child has the old one of its key or, if it has no key, the next old one of its kind.
  const partners = (old, fresh) => {
    const waiting = new Map();
    const kind = (node) => node.nodeName + " " + keyOf(node);
    for (const child of old.childNodes) waiting.set(kind(child), [...(waiting.get(kind(child)) || []), child]);
    return [...fresh.childNodes].map((child) => [child, (waiting.get(kind(child)) || []).shift()]);
  };
  const morph = (old, fresh) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // What is in a figure is drawn here, from its numbers.
    if (old.classList.contains("plot") || old.isEqualNode(fresh)) return;
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    // Whether a part is open is for the reader to say.
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    const pairs = partners(old, fresh);
    const staying = new Set(pairs.map(([, partner]) => partner));
    for (const child of [...old.childNodes]) if (!staying.has(child)) child.remove();
    let at = old.firstChild;
    for (const [child, partner] of pairs) {
      if (partner) morph(partner, child);
      if (partner && partner === at) at = at.nextSibling;
      else old.insertBefore(partner || child, at);
    }
  };

  const answer = async (address) => {
    const response = await fetch(address, { cache: "no-store" });
    if (!response.ok) throw new Error(response.status);
    return response;
  };
  const update = async () => {
    const page = new DOMParser().parseFromString(await (await answer(location.pathname)).text(), "text/html");
    const fresh = page.querySelector("main");
    // What was shown before stays under a message, which may be gone at the next step.
    const beside = fresh.dataset.message === "failed" && !("message" in main.dataset);
    say(message, beside ? fresh.querySelector(".message").textContent : "");
    message.hidden = !beside;
    if (beside) main.dataset.version = fresh.dataset.version;
    else {
      document.title = page.title;
      morph(main, fresh);
      document.dispatchEvent(new Event("fresh"));
    }
  };
  const poll = async () => {
    try {
      const state = await (await answer("version")).json();
      changed = state.seconds === null ? null : Date.now() - 1000 * state.seconds;
      if (state.version !== main.dataset.version) await update();
      failures = 0;
    } catch {
      failures += 1;
    }
    tell();
  };
  // One question at a time; none while nobody looks.
  const follow = async () => {
    if (!document.hidden) await poll();
    setTimeout(follow, EVERY);
  };
  document.addEventListener("visibilitychange", () => document.hidden || poll());
  setInterval(tell, 1000);
  follow();
})();
