"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const shown = Object.fromEntries(Object.entries(figures).map(([key, figure]) => [key, Object.keys(figure.views)[0]]));

  const style = () => getComputedStyle(document.documentElement);

  // Colour names ($adapted) stand for the page's own custom properties (--adapted), light or dark.
  const painted = (value, colors) => {
    if (typeof value === "string" && value.startsWith("$")) return colors.getPropertyValue("--" + value.slice(1)).trim();
    if (Array.isArray(value)) return value.map((item) => painted(item, colors));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, colors)]));
    return value;
  };

  const axis = (given) => ({
    gridcolor: "$rule", linecolor: "$rule", zerolinecolor: "$rule", showline: false, ticks: "outside", tickcolor: "$rule",
    ticklen: 4, fixedrange: true, ...given,
    title: { font: { size: 13, color: "$muted" }, standoff: 10, ...(given?.title ?? {}) },
  });

  const framed = (layout, colors) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colors.getPropertyValue("--sans"), size: 13, color: "$ink" },
    margin: { l: 60, r: 12, t: 34, b: 48 },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", xanchor: "left", itemclick: false, itemdoubleclick: false },
    hoverlabel: { bgcolor: "$paper", bordercolor: "$rule", font: { color: "$ink" } },
    ...layout,
    ...Object.fromEntries(["xaxis", "yaxis", "yaxis2"].filter((key) => key in layout).map((key) => [key, axis(layout[key])])),
  });

  const draw = (key) => {
    const view = figures[key].views[shown[key]];
    const colors = style();
    Plotly.react(
      "plot-" + key, painted(view.data, colors), painted(framed(view.layout, colors), colors),
      { displayModeBar: false, responsive: true },
    );
  };
  const drawAll = () => Object.keys(figures).forEach(draw);

  for (const input of document.querySelectorAll("input[data-figure]"))
    input.addEventListener("change", () => { shown[input.dataset.figure] = input.value; draw(input.dataset.figure); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Paper is white whatever the screen is.
  addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); drawAll(); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); drawAll(); });
  drawAll();
})();
