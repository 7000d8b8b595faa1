// Shows a page in frames of several widths, and writes what a reader sees of it into the element `result`.
const WIDTHS = [390, 600, 820, 1280, 1920, 2560];

const channels = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
const isVisible = (colour) => colour !== "none" && channels(colour)[3] !== 0;

// Relative luminance, as WCAG 2 defines it.
function luminance(colour) {
  const [r, g, b] = channels(colour).map((channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(a, b) {
  const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}

function background(view, element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = view.getComputedStyle(at).backgroundColor;
    if (isVisible(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

function look(frame, width) {
  const [view, page] = [frame.contentWindow, frame.contentDocument];
  const texts = [...page.body.querySelectorAll("*")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim()));
  const contrasts = texts.map((element) => {
    const style = view.getComputedStyle(element);
    const colour = element.ownerSVGElement ? style.fill : style.color;
    return [contrast(colour, background(view, element)), element.textContent.trim().slice(0, 40)];
  });
  const heights = texts.map((element) => [element.getBoundingClientRect().height, element.textContent.trim().slice(0, 40)]);
  const least = (pairs) => pairs.reduce((a, b) => (b[0] < a[0] ? b : a));
  return {
    width,
    overflow: page.documentElement.scrollWidth - page.documentElement.clientWidth,
    is_dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    contrast: least(contrasts),
    height: least(heights),
    data: [...page.querySelectorAll("data")].map((data) => [
      data.dataset.pointer, data.value, data.innerText, data.getClientRects().length > 0,
    ]),
  };
}

addEventListener("load", async () => {
  const seen = [];
  for (const width of WIDTHS) {
    const frame = document.createElement("iframe");
    frame.style = `width:${width}px;height:1000px;border:0`;
    frame.srcdoc = document.getElementById("page").content.textContent;
    await new Promise((resolve) => { frame.onload = resolve; document.body.append(frame); });
    seen.push(look(frame, width));
    frame.remove();
  }
  document.getElementById("result").textContent = JSON.stringify(seen);
});
