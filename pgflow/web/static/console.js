// Live pages. The server sends a page again when it has changed, at the address of the page; here
// only what differs is put in place, so that what somebody has unfolded or written stays. Without
// this script a page is as it was loaded. Nothing of it is needed to read a page or to send a form.
"use strict";
(() => {
  const page = document.getElementById("page");
  const state = document.getElementById("live");
  const skew = page && page.dataset.now ? Date.now() - Date.parse(page.dataset.now) : 0;
  const FIELDS = ["INPUT", "SELECT", "TEXTAREA"];
  let seen = page ? page.dataset.live : "";
  let source = null;
  let waiting = null;

  function renew(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (FIELDS.includes(old.nodeName) || old.isEqualNode(fresh)) return;
    const stays = (name) => old.nodeName === "DETAILS" && name === "open";
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !stays(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !stays(name)) old.setAttribute(name, value);
    }
    renewChildren(old, fresh);
  }

  // A child with an id is found again wherever it stands; others by their place.
  function renewChildren(old, fresh) {
    let at = old.firstChild;
    const drop = () => {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    };
    for (const next of [...fresh.childNodes]) {
      let found = next.id ? at : null;
      while (found && found.id !== next.id) found = found.nextSibling;
      while (found && at !== found) drop();
      if (at && at.nodeName === next.nodeName && (at.id || "") === (next.id || "")) {
        renew(at, next);
        at = at.nextSibling;
      } else {
        old.insertBefore(document.importNode(next, true), at);
      }
    }
    while (at) drop();
  }

  function show(html) {
    if (!document.getSelection().isCollapsed) {
      waiting = html; // somebody marks a text, perhaps to copy it
      return;
    }
    waiting = null;
    const sent = new DOMParser().parseFromString(`<main>${html}</main>`, "text/html");
    for (const part of [page, sent.querySelector("main")]) {
      for (const node of [...part.childNodes]) {
        if (node.nodeType === Node.COMMENT_NODE) node.remove();
      }
      part.normalize();
    }
    renewChildren(page, sent.querySelector("main"));
    tellAges();
  }

  function duration(seconds) {
    if (seconds < 0.0995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    for (const [size, unit, limit] of [[1, "s", 100], [60, "m", 100], [3600, "h", 48]]) {
      if (seconds / size < limit - 0.5) return `${Math.round(seconds / size)} ${unit}`;
    }
    return `${Math.round(seconds / 86400)} d`;
  }

  function tellAges() {
    for (const time of page.querySelectorAll("time[data-age]")) {
      const seconds = (Date.now() - skew - Date.parse(time.dateTime)) / 1000;
      const text = seconds >= 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
      if (time.textContent !== text) time.textContent = text;
    }
  }

  function say(words) {
    if (state) state.textContent = words + " · ";
  }

  function listen() {
    if (source || document.hidden) return;
    const address = new URL(location.href);
    address.hash = "";
    address.searchParams.set("seen", seen);
    source = new EventSource(address);
    source.addEventListener("open", () => say("Live"));
    source.addEventListener("page", (event) => {
      seen = event.lastEventId;
      show(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) say("Not live: load the page anew");
    });
  }

  // A browser opens few streams to one server: a page that nobody sees leaves its own.
  function look() {
    if (document.hidden && source) {
      source.close();
      source = null;
    }
    listen();
  }

  if (!seen || !window.EventSource) return;
  document.addEventListener("visibilitychange", look);
  document.addEventListener("selectionchange", () => {
    if (waiting !== null && document.getSelection().isCollapsed) show(waiting);
  });
  setInterval(tellAges, 5000);
  listen();
})();
