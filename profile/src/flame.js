"use strict";
(() => {
  const svg = document.documentElement;
  const frames = [...svg.querySelectorAll("g.f")];
  const details = svg.getElementById("details");
  const width = 1200;
  const number = (rect, name) => parseFloat(rect.getAttribute(name));
  const place = frames.map((g) => {
    const rect = g.querySelector("rect");
    return { g, rect, text: g.querySelector("text"), name: g.querySelector("title").textContent,
             x: number(rect, "x"), y: number(rect, "y"), w: number(rect, "width") };
  });
  const label = (name, w) => {
    const short = name.replace(/ \([^(]*\)$/, "");
    const fit = Math.floor((w - 6) / 6.6);
    return fit < 3 ? "" : short.length <= fit ? short : short.slice(0, fit - 1) + "…";
  };
  const zoom = (to) => {
    for (const f of place) {
      const above = f.y > to.y;
      const covers = above && f.x <= to.x + 0.001 && f.x + f.w >= to.x + to.w - 0.001;
      const within = f.x >= to.x - 0.001 && f.x + f.w <= to.x + to.w + 0.001 && !above;
      f.g.style.display = covers || within ? "" : "none";
      f.g.style.opacity = covers ? 0.5 : 1;
      if (!covers && !within) continue;
      const x = covers ? 0 : ((f.x - to.x) / to.w) * width;
      const w = covers ? width : (f.w / to.w) * width;
      f.rect.setAttribute("x", x);
      f.rect.setAttribute("width", w);
      f.text.setAttribute("x", x + 3);
      f.text.textContent = label(f.name, w);
    }
  };
  const root = place[0];
  for (const f of place) {
    f.g.addEventListener("click", () => zoom(f));
    f.g.addEventListener("mouseover", () => { details.textContent = f.name; });
  }
  svg.getElementById("reset").addEventListener("click", () => zoom(root));
  if (root) zoom(root);
})();
