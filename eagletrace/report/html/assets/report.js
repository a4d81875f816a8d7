"use strict";
(() => {
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const RANKS = Array.from({ length: 9 }, (_, n) => `var(--r${n})`);
  const percent = (share) => `${Math.round(100 * share)} %`;

  const above = (points) => 1 + 1.06 * Math.max(1, ...points.map((d) => (d.high ?? d.length) - 1));

  // One function per kind of chart: the figure's data and the width in pixels give Observable Plot's options.
  const kinds = {
    depth: ({ depths }) => ({
      x: { type: "band", label: "depth", tickFormat: String },
      y: { domain: [0, 1], tickFormat: percent, label: "accepted", grid: true, ticks: 5 },
      height: 240,
      marks: [
        Plot.barY(depths, { x: "depth", y: "rate", fill: "var(--bar)", insetLeft: 8, insetRight: 8 }),
        Plot.ruleX(depths, { x: "depth", y1: "low", y2: "high", strokeWidth: 2 }),
        Plot.dot(depths, { x: "depth", y: "all", fill: "var(--dot)", stroke: "var(--bg)", r: 5 }),
        Plot.tip(depths, Plot.pointerX({ x: "depth", y: "rate", title: "tip" })),
      ],
    }),
    pairs: ({ pairs }) => ({
      fx: { label: "depth", tickFormat: String },
      x: { type: "band", domain: ["A", "B"], label: null },
      y: { domain: [0, 1], tickFormat: percent, label: "accepted", grid: true, ticks: 5 },
      color: { type: "ordinal", domain: ["A", "B"], range: ["var(--bar)", "var(--dot)"] },
      height: 260,
      marks: [
        Plot.barY(pairs, { fx: "depth", x: "run", y: "rate", fill: "run" }),
        Plot.ruleX(pairs, { fx: "depth", x: "run", y1: "low", y2: "high", strokeWidth: 2 }),
        Plot.tip(pairs, Plot.pointerX({ fx: "depth", x: "run", y: "rate", title: "tip" })),
      ],
    }),
    histogram: ({ bins }) => ({
      x: { type: "band", label: "correct drafts", tickFormat: String },
      y: { domain: [0, Math.max(...bins.map((b) => b.share), 0.01)], tickFormat: percent, label: "rounds", grid: true, ticks: 5 },
      height: 240,
      marks: [
        Plot.barY(bins, { x: "correct", y: "share", fill: "var(--bar)", insetLeft: 8, insetRight: 8 }),
        Plot.tip(bins, Plot.pointerX({ x: "correct", y: "share", title: "tip" })),
      ],
    }),
    timeline: ({ steps, marks }) => {
      const at = (d) => new Date(d.t);
      const top = above(steps);
      const banded = steps.filter((d) => d.low !== null);
      return {
        x: { type: "utc", label: null },
        y: { domain: [1, top], label: "accept length", grid: true, ticks: 5 },
        height: 280,
        marginTop: 56,
        marks: [
          Plot.ruleX(banded, { x: at, y1: "low", y2: "high", stroke: "var(--bar)", strokeOpacity: 0.35, strokeWidth: 3 }),
          Plot.ruleX(marks, { x: at, stroke: "var(--dot)", strokeDasharray: "4 3" }),
          Plot.lineY(steps, { x: at, y: "length", z: "part", stroke: "var(--bar)" }),
          Plot.dot(steps, { x: at, y: "length", fill: "var(--bar)", r: 2.5 }),
          ...[0, 1, 2].map((level) =>
            Plot.text(marks.filter((d) => d.level === level), {
              x: at, text: "n", frameAnchor: "top", lineAnchor: "bottom", dy: -4 - 13 * level, fill: "var(--dot)", fontWeight: 600,
            })),
          Plot.tip(steps, Plot.pointerX({ x: at, y: "length", title: "tip", maxRadius: 20 })),
          Plot.tip(marks, Plot.pointerX({ x: at, frameAnchor: "top", title: "tip", maxRadius: 6 })),
        ],
      };
    },
    ranks: ({ parts }) => ({
      x: { domain: [0, 1], tickFormat: percent, label: "positions", grid: true, ticks: 5 },
      y: { type: "band", label: "depth", tickFormat: String },
      color: { type: "ordinal", domain: [...RANKS.keys()], range: RANKS },
      height: 76 + 34 * new Set(parts.map((d) => d.depth)).size,
      marks: [
        Plot.barX(parts, { x: "share", y: "depth", fill: "kind", order: "kind", insetTop: 3, insetBottom: 3 }),
        Plot.tip(parts, Plot.pointer(Plot.stackX({ x: "share", y: "depth", order: "kind", title: "tip" }))),
      ],
    }),
    split: ({ values, axis, overall }) => {
      const top = above(values);
      const wide = values.length > 10 || values.some((d) => d.value.length > 5);
      return {
        x: { type: "band", domain: values.map((d) => d.value), label: axis, tickRotate: wide ? -40 : 0 },
        y: { domain: [1, top], label: "accept length", grid: true, ticks: 5 },
        height: 240,
        marginBottom: wide ? 76 : 44,
        marks: [
          overall === null ? null : Plot.ruleY([overall], { strokeDasharray: "4 3", stroke: "var(--quiet)" }),
          Plot.ruleX(values.filter((d) => d.low !== null), { x: "value", y1: "low", y2: "high", stroke: "var(--bar)", strokeWidth: 2 }),
          Plot.dot(values, { x: "value", y: "length", fill: "var(--bar)", r: 4.5 }),
          Plot.tip(values, Plot.pointerX({ x: "value", y: "length", title: "tip" })),
        ],
      };
    },
  };

  function draw(box) {
    const figure = figures[box.dataset.figure];
    const width = Math.max(240, Math.floor(box.clientWidth));
    if (!figure || box.dataset.width === String(width) || !box.clientWidth) return;
    box.dataset.width = String(width);
    const chart = Plot.plot({ width, marginLeft: 56, marginBottom: 44, ...kinds[figure.kind](figure.data) });
    chart.setAttribute("aria-hidden", "true"); // the box has the label, the table the numbers
    box.replaceChildren(chart);
  }

  function charts() {
    const sizes = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target)));
    document.querySelectorAll(".chart").forEach((box) => {
      draw(box);
      sizes.observe(box);
    });
  }

  function remembered(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // some browsers keep nothing for files
    }
  }

  function remember(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {
      // as above
    }
  }

  function themes() {
    const button = document.getElementById("theme");
    const order = ["auto", "light", "dark"];
    const set = (theme) => {
      if (theme === "auto") delete root.dataset.theme;
      else root.dataset.theme = theme;
      button.textContent = `Theme: ${theme}`;
      remember("eagletrace-theme", theme);
    };
    const before = remembered("eagletrace-theme");
    set(order.includes(before) ? before : "auto");
    button.addEventListener("click", () => set(order[(order.indexOf(root.dataset.theme ?? "auto") + 1) % order.length]));
  }

  function tokens() {
    const button = document.getElementById("tokens");
    button?.addEventListener("click", () => {
      const ids = root.dataset.tokens !== "ids";
      root.dataset.tokens = ids ? "ids" : "text";
      button.setAttribute("aria-pressed", String(ids));
    });
  }

  // A box above each long table that hides the rows without the words typed.
  function filters() {
    document.querySelectorAll("table.filtered").forEach((table) => {
      const rows = [...table.tBodies[0].rows];
      if (rows.length < 8) return;
      const label = document.createElement("label");
      label.className = "filter";
      const input = document.createElement("input");
      input.type = "search";
      const count = document.createElement("span");
      count.className = "note";
      count.setAttribute("role", "status");
      label.append(`Filter ${table.dataset.rows}: `, input, " ", count);
      input.addEventListener("input", () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        rows.forEach((row) => {
          const text = row.textContent.toLowerCase();
          row.hidden = !words.every((word) => text.includes(word));
        });
        count.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
      });
      table.parentElement.before(label);
    });
  }

  // Paper shows what is folded, except long values.
  function folds() {
    let folded = [];
    addEventListener("beforeprint", () => {
      folded = [...document.querySelectorAll("details:not([open], .value)")];
      folded.forEach((part) => (part.open = true));
    });
    addEventListener("afterprint", () => folded.forEach((part) => (part.open = false)));
  }

  document.querySelector(".controls").hidden = false;
  document.getElementById("no-scripts").hidden = true;
  themes();
  tokens();
  filters();
  folds();
  charts();
})();
