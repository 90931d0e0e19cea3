// Exchanges the main part of the page for a newer one at an interval, unless somebody uses it.
"use strict";
{
  const { every, whole } = document.currentScript.dataset;
  const live = document.querySelector(".live");
  const words = live.textContent;
  const style = (page) => page.querySelector("link[rel=stylesheet]")?.getAttribute("href");
  const main = () => document.querySelector("main");
  const all = (within, what) => [...within.querySelectorAll(what)];
  const boxes = (within) => all(within, ".scroll, .log, .graph, pre, .description");
  const focusable = (within) => all(within, "a, [tabindex]");
  let last = new Date();

  const isInUse = () =>
    document.hidden ||
    !getSelection().isCollapsed ||
    document.activeElement?.matches("main :is(input, textarea, select, button, summary)") ||
    all(main(), "input, textarea").some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked) ||
    // Logs are shown from their end; somebody reads further up.
    all(main(), ".log").some((log) => Math.abs(log.scrollTop) > 1);

  const exchange = (page) => {
    const [old, fresh] = [main(), page.querySelector("main")];
    const places = boxes(old).map((box) => [box.scrollLeft, box.scrollTop]);
    const opened = all(old, "details").map((one) => one.open);
    const place = focusable(old).indexOf(document.activeElement);
    const href = document.activeElement?.getAttribute("href");
    old.replaceWith(fresh);
    document.querySelector(".clock").replaceWith(page.querySelector(".clock"));
    document.title = page.title;
    boxes(fresh).forEach((box, n) => box.scrollTo(...(places[n] ?? [0, 0])));
    all(fresh, "details").forEach((one, n) => (one.open = opened[n] ?? one.open));
    if (place >= 0) {
      const links = focusable(fresh);
      const same = links.find((one) => href && one.getAttribute("href") === href);
      (same ?? links[place])?.focus({ preventScroll: true });
    }
  };

  const load = async () => {
    if (isInUse()) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.status === 429 || answer.status >= 500) throw new Error(answer.statusText);
      // The page of an error, or another page now.
      if (whole || !answer.ok) return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (style(page) !== style(document)) return location.reload();
      if (!isInUse()) exchange(page);
      last = new Date();
      live.textContent = words;
    } catch {
      live.textContent = `no answer since ${last.toLocaleTimeString()}`;
    }
    live.classList.toggle("off", live.textContent !== words);
  };

  const wait = () => setTimeout(() => load().finally(wait), every * 1000);
  document.addEventListener("visibilitychange", load);
  wait();
}
