// What scripts add to the console's pages: times of the reader's own zone, charts, and parts that
// are fetched again while somebody looks. Without it everything is there, in UTC and as tables.
// - Of a part that is fetched again only what differs is changed: focus, what is scrolled and charts
//   stay, and a screen reader announces nothing twice.
// - What may be old says so, and since when: nobody may take it for what holds now.
"use strict";
(() => {
  const TICK_MS = 5000;
  const OLD_MS = 3 * TICK_MS;
  const charts = [];
  const opened = Date.now();
  const answered = new Map(); // ids of parts, and when they were answered last
  const silent = new Set(); // ids of parts that got no answer when they were asked for last
  let held = false; // whether the reader is why nothing was asked for
  const two = (n) => String(n).padStart(2, "0");

  function local(date, ms) {
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
    return `${day} ${clock}${ms ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : ""} ${zoneAt(date)}`;
  }

  // How far the zone is from UTC at that time: `+01:00`; of a few zones of before 1972 with seconds.
  function zoneAt(date) {
    const here = Date.UTC(date.getFullYear(), date.getMonth(), date.getDate(), date.getHours(),
      date.getMinutes(), date.getSeconds(), date.getMilliseconds());
    const away = Math.round((here - date) / 1000);
    const s = Math.abs(away);
    const rest = s % 60 ? `:${two(s % 60)}` : "";
    return `${away < 0 ? "-" : "+"}${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}${rest}`;
  }

  function showTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]")) {
      const text = element.getAttribute("datetime");
      const date = new Date(text);
      if (Number.isNaN(date.getTime())) continue;
      element.textContent = local(date, text.includes("."));
    }
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    if (zone === "UTC") return;
    for (const element of document.querySelectorAll(".zone")) {
      element.textContent = `${zone}; each has UTC as its title`;
    }
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function short(value) {
    if (value >= 1e9) return `${+(value / 1e9).toFixed(1)} G`;
    if (value >= 1e6) return `${+(value / 1e6).toFixed(1)} M`;
    return value >= 1e3 ? `${+(value / 1e3).toFixed(1)} k` : String(value);
  }

  function options(kind, data, box) {
    const axis = (more) => ({
      stroke: colour("--dim"), font: "12px system-ui, sans-serif",
      size: 30, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, ...more,
    });
    const due = "step" in data;
    const names = due ? null : [...data.bounds, "more"];
    const nth = Math.ceil((names || []).length / Math.max(1, Math.floor(box.clientWidth / 62)));
    return {
      width: box.clientWidth, height: box.clientHeight,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: due, range: (_, low, high) => due ? [low - data.step / 2, high + data.step / 2] : [-0.6, names.length - 0.4] },
        y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] },
      },
      axes: [
        axis(due
          ? { grid: { show: false }, space: 64, values: (_, at) => at.map((s) => {
            const date = new Date(s * 1000);
            return data.step < 86400
              ? `${two(date.getHours())}:${two(date.getMinutes())}`
              : `${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
          }) }
          : { grid: { show: false }, splits: () => names.map((_, n) => n).filter((n) => n % nth === 0),
            values: (_, at) => at.map((n) => names[n]) }),
        axis({ size: 56, space: 44, values: (_, at) => at.map((v) => Number.isInteger(v) ? short(v) : "") }),
      ],
      series: [{}, {
        fill: colour("--bar"), stroke: colour("--bar"), width: 0, points: { show: false },
        paths: uPlot.paths.bars({ size: [due ? 0.78 : 0.7, 60] }),
      }],
      hooks: { setCursor: [(plot) => caption(plot, kind, data, names)] },
    };
  }

  function caption(plot, kind, data, names) {
    const text = plot.root.closest("figure").querySelector("figcaption");
    text.dataset.plain ??= text.textContent;
    const n = plot.cursor.idx;
    if (n == null || plot.cursor.left < 0) {
      text.textContent = text.dataset.plain;
      return;
    }
    const count = `${data.count[n].toLocaleString("en")} messages`;
    const at = "step" in data
      ? `due in the ${kind.slice(0, -1)} of ${local(new Date(data.at[n] * 1000))}`
      : (n === data.bounds.length ? "later than all that" : `late by at most ${names[n]}`);
    text.textContent = `${count} ${at}`;
  }

  function draw(root) {
    for (const figure of root.querySelectorAll("figure[data-chart]")) {
      if (charts.some((chart) => chart.figure === figure)) continue;
      const box = figure.querySelector(".plot");
      const data = JSON.parse(figure.dataset.values);
      const kind = figure.dataset.chart;
      const x = data.at ?? data.count.map((_, n) => n);
      box.replaceChildren();
      charts.push({ figure, plot: new uPlot(options(kind, data, box), [x, data.count], box) });
    }
  }

  function drawAll() {
    for (const chart of charts.splice(0)) chart.plot.destroy();
    draw(document);
  }

  function begin(root) {
    for (let n = charts.length - 1; n >= 0; n -= 1) {
      if (!charts[n].figure.isConnected) charts.splice(n, 1)[0].plot.destroy();
    }
    showTimes(root);
    draw(root);
  }

  // A reader who is about to follow a link, or has marked text, is not disturbed.
  function busy() {
    const focused = document.activeElement;
    return document.hidden || !document.getSelection().isCollapsed
      || (focused !== null && focused.closest(".part a, .part input") !== null);
  }

  // Make `old` equal to `now`, with the nodes that it has.
  function morph(old, now) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    if (old.matches("figure[data-chart]")) {
      if (old.dataset.values !== now.dataset.values) old.replaceWith(now);
      return;
    }
    // A link is never made to lead elsewhere: rows move, and somebody may be pressing it.
    if (old.getAttribute("href") !== now.getAttribute("href")) {
      old.replaceWith(now);
      return;
    }
    for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    let at = old.firstChild;
    for (const wanted of [...now.childNodes]) {
      let same = at;
      if (wanted.id) while (same && same.id !== wanted.id) same = same.nextSibling;
      if (!same || same.nodeName !== wanted.nodeName || (same.id && !wanted.id)) {
        old.insertBefore(wanted, at);
        continue;
      }
      while (at !== same) at = removed(at);
      at = same.nextSibling;
      morph(same, wanted);
    }
    while (at) at = removed(at);
  }

  function removed(node) {
    const next = node.nextSibling;
    node.remove();
    return next;
  }

  function answer(event) {
    const { detail } = event;
    if (!detail.shouldSwap) return;
    const old = detail.target;
    const now = new DOMParser().parseFromString(detail.serverResponse, "text/html").body.firstElementChild;
    if (!now || now.id !== old.id) { // somebody else has answered, such as a proxy
      detail.shouldSwap = false;
      noAnswer(event);
      return;
    }
    const again = now.getAttribute("hx-trigger") === old.getAttribute("hx-trigger");
    if (again && busy()) { // since it was asked for
      detail.shouldSwap = false;
      return;
    }
    answered.set(old.id, Date.now());
    silent.delete(old.id);
    if (again) {
      detail.shouldSwap = false;
      showTimes(now);
      morph(old, now);
      begin(old);
    }
    sayHowOld();
  }

  function noAnswer(event) {
    const part = event.detail.elt;
    silent.add(part.id);
    const late = part.querySelector(".late");
    if (late) late.textContent = "There was no answer. It is asked for again every few seconds.";
    sayHowOld();
  }

  function sayHowOld() {
    const since = (part) => answered.get(part.id) ?? opened;
    const old = [...document.querySelectorAll(".part[hx-get]")].filter((part) => silent.has(part.id)
      || (!part.hasAttribute("aria-busy") && Date.now() - since(part) > OLD_MS));
    let text = "";
    if (old.length) {
      const clock = local(new Date(Math.min(...old.map(since)))).slice(11);
      text = held ? `Not asked for again since ${clock}: a link has the focus, or text is marked.`
        : `May be old: no answer since ${clock}.`;
    }
    const line = document.getElementById("old");
    if (line.textContent !== text) line.textContent = text;
  }

  function tick() {
    held = busy();
    if (!held) htmx.trigger(document.body, "tick");
    sayHowOld();
  }

  begin(document);
  document.body.addEventListener("htmx:load", (event) => {
    if (event.detail.elt !== document.body) begin(event.detail.elt);
  });
  document.body.addEventListener("htmx:beforeSwap", answer);
  for (const name of ["sendError", "responseError", "timeout"]) {
    document.body.addEventListener(`htmx:${name}`, noAnswer);
  }
  setInterval(tick, TICK_MS);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; drawAll(); }
  });
})();
