// Values under the pointer, the same by arrow keys, and the threshold slider. Reads only what is
// written in the page; nothing is loaded, nothing is sent.
"use strict";
const short = (value) => (value === null ? "none" : Number(value.toPrecision(3)).toString());
for (const figure of document.querySelectorAll("figure.interactive")) {
  const chart = figure.querySelector("svg.chart");
  const said = figure.querySelector("output");
  const data = JSON.parse(figure.querySelector("script.data").textContent);
  const cross = chart.querySelector(".cross");
  const mark = chart.querySelector(".mark");
  const { left, top, width, height, x, y } = data.place;
  const line = data.lines[0];
  const across = (value) => left + ((value - x[0]) / (x[1] - x[0])) * width;
  const down = (value) => top + height - ((value - y[0]) / (y[1] - y[0])) * height;
  let at = Math.floor(line.x.length / 2);
  const show = (index) => {
    at = Math.max(0, Math.min(line.x.length - 1, index));
    cross.setAttribute("x1", across(line.x[at]));
    cross.setAttribute("x2", across(line.x[at]));
    cross.style.display = "";
    mark.setAttribute("cx", across(line.x[at]));
    mark.setAttribute("cy", down(line.y[at]));
    mark.style.display = "";
    const others = data.lines.slice(1).map((other) => {
      let near = 0;
      other.x.forEach((value, k) => {
        if (Math.abs(value - line.x[at]) < Math.abs(other.x[near] - line.x[at])) near = k;
      });
      return `, ${other.name} ${short(other.y[near])}`;
    });
    const values = `${line.name} ${short(line.y[at])}${others.join("")}`;
    said.textContent = `${data.x_label} ${short(line.x[at])}: ${values}`;
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    let near = 0;
    line.x.forEach((value, k) => {
      if (Math.abs(across(value) - wanted) < Math.abs(across(line.x[near]) - wanted)) near = k;
    });
    show(near);
  });
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (step === undefined && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    show(event.key === "Home" ? 0 : event.key === "End" ? line.x.length - 1 : at + step);
  });
  const slider = figure.querySelector("input[type=range]");
  if (!slider) continue;
  const { thresholds, found, accused, positives, negatives } = data.slider;
  const decide = () => {
    const k = Number(slider.value);
    mark.setAttribute("cx", across(accused[k]));
    mark.setAttribute("cy", down(found[k]));
    mark.style.display = "";
    cross.style.display = "none";
    const right = found[k] * positives;
    const all = right + accused[k] * negatives;
    const share = all > 0 ? `${Math.round((100 * right) / all)} %` : "no";
    const text =
      `Saying yes from ${short(thresholds[k])} on: finds ${Math.round(100 * found[k])} of 100 ` +
      `positives, and says yes wrongly to ${Math.round(100 * accused[k])} of 100 negatives; ` +
      `${share} of those it says yes to are positive.`;
    figure.querySelector(".slider output").textContent = text;
    slider.setAttribute("aria-valuetext", text);
  };
  slider.addEventListener("input", decide);
  decide();
}
