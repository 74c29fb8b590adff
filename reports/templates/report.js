// Draws the figures, follows the colour scheme, copies overrides. Makes no request.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const scheme = window.matchMedia("(prefers-color-scheme: dark)");
  const settings = { displayModeBar: false, displaylogo: false, responsive: true };

  function readColours() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    return { text: read("--text"), grid: read("--line"), surface: read("--surface") };
  }

  function colourLayout(layout) {
    const colours = readColours();
    return {
      ...layout,
      font: { ...layout.font, color: colours.text, family: getComputedStyle(document.body).fontFamily },
      xaxis: { ...layout.xaxis, gridcolor: colours.grid, linecolor: colours.grid },
      yaxis: { ...layout.yaxis, gridcolor: colours.grid, linecolor: colours.grid },
      hoverlabel: { ...layout.hoverlabel, bgcolor: colours.surface, bordercolor: colours.grid, font: { color: colours.text } },
    };
  }

  function drawFigures() {
    for (const [name, figure] of Object.entries(figures)) {
      const place = document.getElementById(`figure-${name}`);
      if (place && window.Plotly) Plotly.react(place, figure.data, colourLayout(figure.layout), settings);
    }
  }

  async function copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages opened from disk may have no clipboard: select and copy as a person would.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await copyText(document.getElementById(button.dataset.copy).textContent + "\n");
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  // Paper cannot unfold anything: print all of it, and fold back what was folded.
  let unfolded = [];
  window.addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details:not([open])")];
    for (const fold of unfolded) fold.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const fold of unfolded) fold.open = false;
  });

  // Printed pages are light whatever the screen is.
  window.matchMedia("print").addEventListener("change", drawFigures);
  scheme.addEventListener("change", drawFigures);
  drawFigures();
})();
