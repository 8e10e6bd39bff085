// Wiring: a change of state, and everything that follows it.

// Apply a change to the state, then let the page and its address follow. `say` gives
// what a screen reader is to say of it.
function show(change, say = spokenStep) {
  change();
  refresh();
  announce(say());
}

// Have a screen reader say something.
function announce(text) {
  document.getElementById("live").textContent = text;
}

function refresh() {
  const { language, theme } = state;
  document.documentElement.lang = language;
  document.documentElement.dataset.theme = theme;
  skip.textContent = label("skip");
  for (const part of SECTIONS) {
    const element = document.getElementById(part.id);
    const key = JSON.stringify([language, ...part.key()]);
    if (part.last !== key) rebuild(element, part.build);
    part.last = key;
    part.update(element);
  }
  if (refresh.theme !== theme) repaint();
  refresh.theme = theme;
  writeAddress();
}

// Give an element new content; if the focus was inside it, keep it at the same place.
function rebuild(element, build) {
  const stops = () => [...element.querySelectorAll("button, select, summary")];
  const focused = stops().indexOf(document.activeElement);
  element.replaceChildren(...build().filter(Boolean));
  if (focused >= 0) stops()[focused]?.focus({ preventScroll: true });
}

function repaint() {
  document.querySelectorAll("canvas").forEach((canvas) => canvas.redraw());
}

// Printing is always light.
function printing(on) {
  document.documentElement.toggleAttribute("data-printing", on);
  repaint();
}

document.addEventListener("keydown", (event) => {
  const inForm = event.target.closest("select, input, summary, .scroll[tabindex]");
  if (inForm || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey)
    return;
  const last = entry().reads.length - 1;
  const inStrip = event.target.closest(".strip");
  if (event.key === "ArrowLeft") moveStep(-1);
  else if (event.key === "ArrowRight") moveStep(1);
  else if (inStrip && event.key === "Home") moveStep(-last);
  else if (inStrip && event.key === "End") moveStep(last);
  else return;
  event.preventDefault();
  if (inStrip) document.querySelector(".strip [aria-current=step]").focus();
});

const skip = document.getElementById("skip");
skip.addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
});

window.addEventListener("hashchange", () => show(readAddress));
window.addEventListener("beforeprint", () => printing(true));
window.addEventListener("afterprint", () => printing(false));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

state.language = firstLanguage();
readAddress();
refresh();
