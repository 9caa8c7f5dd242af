"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const shown = Object.fromEntries(Object.entries(figures).map(([key, figure]) => [key, Object.keys(figure.views)[0]]));

  const style = () => getComputedStyle(document.documentElement);

  // Colour names ($adapted) stand for the page's own custom properties (--adapted), light or dark.
  const painted = (value, colors) => {
    if (typeof value === "string" && value.startsWith("$"))
      return colors.getPropertyValue("--" + value.slice(1)).trim() || value;
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
    ...Object.fromEntries(Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key)).map((key) => [key, axis(layout[key])])),
  });

  const ready = (key) => {
    const view = figures[key].views[shown[key]];
    const colors = style();
    return { data: painted(view.data, colors), layout: painted(framed(view.layout, colors), colors) };
  };
  const draw = (key, width) => {
    const { data, layout } = ready(key);
    const size = width ? { width } : { autosize: true };
    Plotly.newPlot("plot-" + key, data, { ...layout, ...size }, { displayModeBar: false, responsive: true });
  };
  const drawAll = (width) => Object.keys(figures).forEach((key) => draw(key, width));

  for (const input of document.querySelectorAll("input[data-figure]"))
    input.addEventListener("change", () => { shown[input.dataset.figure] = input.value; draw(input.dataset.figure); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());

  // Paper is white whatever the screen is, and so is what goes into a paper; A4 and Letter hold 640 pixels.
  const onPaper = (work) => {
    const root = document.documentElement.classList;
    const was = root.contains("print");
    root.add("print");
    const done = work();
    root.toggle("print", was);
    return done;
  };
  addEventListener("beforeprint", () => { document.documentElement.classList.add("print"); drawAll(640); });
  addEventListener("afterprint", () => { document.documentElement.classList.remove("print"); drawAll(); });

  const fileName = (key) => {
    const view = Object.keys(figures[key].views).length > 1 ? shown[key] : "";
    return [document.documentElement.dataset.name, key, view].filter(Boolean).join("-").replace(/[^\p{L}\p{N}_.-]+/gu, "_");
  };
  const save = (url, name) => {
    const link = Object.assign(document.createElement("a"), { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  };
  const saveCsv = (key) => {
    const url = URL.createObjectURL(new Blob(["\ufeff", figures[key].csv[shown[key]]], { type: "text/csv" }));
    save(url, fileName(key) + ".csv");
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };
  const saveImage = async (key, format) => {
    const picture = onPaper(() => ready(key));
    picture.layout.paper_bgcolor = "#fff";
    const size = { width: 960, height: figures[key].height, scale: format === "png" ? 2 : 1 };
    save(await Plotly.toImage(picture, { format, ...size }), fileName(key) + "." + format);
  };
  for (const group of document.querySelectorAll(".downloads")) group.hidden = false;
  for (const button of document.querySelectorAll("button[data-download]"))
    button.addEventListener("click", () => {
      const { of: key, download: format } = button.dataset;
      if (format === "csv") saveCsv(key);
      else saveImage(key, format);
    });
  drawAll();
})();
