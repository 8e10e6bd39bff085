// Drawings of one map: as a matrix, as lines from token to token, as a thumbnail.

// Make an element. Text only ever enters as text nodes and attribute values.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return dress(element, attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return dress(element, attributes, children);
}

function dress(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-")) element.setAttribute(name, value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat().filter((child) => child !== null && child !== undefined),
  );
  return element;
}

// ---------------------------------------------------------------------------- tokens

const languageOf = (side) => entry().languages[side === "source" ? 0 : 1];

// What a tooltip says of a token: its raw form, and which piece of a character it is.
function tooltip(token) {
  if (token.of) return `${token.of} ${token.text}: ${token.raw}`;
  return token.raw === token.text ? token.text : `${token.text}: ${token.raw}`;
}

// What a screen reader says of a token.
const spoken = (token) => (token.of ? `${token.of} ${token.text}` : token.text);

function tokenElement(token, side) {
  const kind = token.mark ? " mark" : token.of ? " rest" : "";
  const joined = token.joined && languageOf(side) === "en" ? " joined" : "";
  const made = {
    class: `token${kind}${joined}`,
    lang: languageOf(side),
    title: tooltip(token),
  };
  return make("bdi", made, token.text);
}

// A target row: what it reads, and what it predicts.
function rowElement(row) {
  return [
    tokenElement(entry().reads[row], "target"),
    make("span", { class: "to", "aria-hidden": true }, "→"),
    tokenElement(entry().predicts[row], "target"),
  ];
}

function rowSpoken(side, row) {
  if (side === "source") return spoken(entry().source[row]);
  const [reads, predicts] = [entry().reads[row], entry().predicts[row]].map(spoken);
  return label("readsPredicts", { reads, predicts });
}

// ---------------------------------------------------------------------------- matrix

const MOST_CELLS = 2500; // above this a matrix is one drawing, not a table of cells

// Draw a matrix. `map` has: name; rows and columns, {element, spoken} of each; weight(r,
// c); masked(r, c); gold(r, c) and linked(r, c), optional; describe(r, c), the sentence
// for a cell; note(r), optional, at a row's end; choose(r, c), r or c -1 on a label.
// Its mark(row, column, cell) shows which row, which column and which cell of the row are
// chosen; -1 is none.
function matrix(map) {
  const size = map.rows.length * map.columns.length;
  const body = size > MOST_CELLS ? drawnMatrix(map) : tableMatrix(map);
  const readout = make("p", { class: "readout" }, "\u00a0");
  body.peek = (r, c) => {
    readout.textContent = map.describe(r, c);
  };
  const frame = make("div", { class: "scroll" }, body.element);
  const element = make("div", { class: "figure" }, frame, readout);
  let chosen = [0, -1];
  const follow = () => {
    if (chosen[1] >= 0) reveal(frame, ...chosen);
  };
  const say = () => {
    readout.textContent = chosen[1] >= 0 ? map.describe(...chosen) : "\u00a0";
  };
  body.element.addEventListener("pointerleave", say);
  fitCells(frame, body.element, map.columns.length, follow);
  return {
    element,
    mark(row, column, cell) {
      body.mark(row, column, cell);
      chosen = [row, cell];
      say();
      requestAnimationFrame(follow);
    },
  };
}

// Scroll a frame, and nothing else, so that a cell of its matrix is in view.
function reveal(frame, row, column) {
  const table = frame.firstChild;
  const cells = table.querySelector("tbody td, .plate");
  const gap = Number.parseFloat(getComputedStyle(table).getPropertyValue("--gap")) || 0;
  const cell = Number.parseFloat(table.style.getPropertyValue("--cell")) + gap;
  const follow = (axis, size, start, index) => {
    const visible = frame[size] - start;
    const at = index * cell - frame[axis];
    if (visible > 0 && (at < 0 || at + cell > visible))
      frame[axis] = index * cell - visible / 2;
  };
  follow("scrollLeft", "clientWidth", cells.offsetLeft, column);
  follow("scrollTop", "clientHeight", cells.offsetTop, row);
}

// Give cells the size at which the columns fill the frame, within reason.
function fitCells(frame, table, columns, then) {
  const size = () => {
    const labels = table.querySelector("tbody th, .sides").offsetWidth + 12;
    const room = (frame.clientWidth - labels) / columns - 2;
    return Math.max(14, Math.min(46, Math.floor(room)));
  };
  const fit = () => {
    // Small labels leave the cells more room. Whether they are to be small is asked of
    // the large ones, or each answer would bring about the other.
    table.classList.remove("small");
    table.classList.toggle("small", size() < 22);
    const cell = size();
    table.style.setProperty("--cell", `${cell}px`);
    table.classList.toggle("numbers", cell >= 30);
    then();
  };
  new ResizeObserver(fit).observe(frame);
}

function tableMatrix(map) {
  const body = { element: null, mark, peek: null };
  const cells = map.rows.map((_, r) =>
    map.columns.map((_, c) => matrixCell(map, r, c)),
  );
  const heads = map.columns.map((column) =>
    make(
      "th",
      { scope: "col", tabindex: -1, "aria-label": column.spoken },
      make("span", { class: "upright" }, column.element),
    ),
  );
  const sides = map.rows.map((row) =>
    make(
      "th",
      { scope: "row", tabindex: -1, "aria-label": row.spoken },
      make("span", { class: "row" }, row.element),
    ),
  );
  const notes = map.note !== undefined;
  const top = make(
    "tr",
    {},
    make("td", { class: "corner" }),
    heads,
    notes ? make("td") : null,
  );
  const lines = cells.map((row, r) =>
    make(
      "tr",
      {},
      sides[r],
      row,
      notes ? make("td", { class: "note" }, map.note(r)) : null,
    ),
  );
  // Labels and cells by place, so that arrow keys walk over both.
  const places = [
    [top.firstChild, ...heads],
    ...cells.map((row, r) => [sides[r], ...row]),
  ];
  body.element = make(
    "table",
    { class: "matrix", role: "grid", "aria-label": map.name },
    make("thead", {}, top),
    make("tbody", {}, lines),
  );
  walkable(body, places, map);

  function mark(row, column, chosen) {
    lines.forEach((line, r) => line.classList.toggle("chosen", r === row));
    [heads, ...cells].forEach((list) =>
      list.forEach((cell, c) => cell.classList.toggle("chosen-column", c === column)),
    );
    cells.forEach((list, r) =>
      list.forEach((cell, c) =>
        cell.setAttribute("aria-selected", r === row && c === chosen),
      ),
    );
    body.rest(Math.max(row, 0) + 1, Math.max(chosen, 0) + 1);
  }
  return body;
}

// The signs that a cell may bear, which are its classes, and the labels that name them.
const SIGNS = {
  gold: "goldSure",
  "gold maybe": "goldPossible",
  linked: "goldLinked",
};

const signName = (sign) => label(SIGNS[sign]);

const signsOf = (map, r, c) =>
  [map.gold?.(r, c), map.linked?.(r, c) && "linked"].filter(Boolean);

function matrixCell(map, r, c) {
  if (map.masked(r, c))
    return make("td", { class: "masked", tabindex: -1, "aria-label": label("masked") });
  const weight = map.weight(r, c);
  const signs = signsOf(map, r, c);
  // Where there is no room for the number it is hidden, from screen readers as well.
  const name = [fixed(weight, 3), ...signs.map(signName)].join(", ");
  const cell = make(
    "td",
    { class: signs.join(" "), tabindex: -1, "aria-label": name },
    make("span", {}, fixed(weight, 2)),
  );
  cell.style.setProperty("--weight", weight.toFixed(4));
  cell.classList.toggle("half", weight > 0.48);
  cell.classList.toggle("strong", weight > 0.68);
  return cell;
}

// Let pointer and keyboard walk over a matrix: one stop for Tab, arrows inside.
function walkable(body, places, map) {
  let stop = null;
  const placeOf = (target) => {
    const cell = target.closest("td, th");
    for (let r = 0; r < places.length; r++) {
      const c = places[r].indexOf(cell);
      if (c >= 0) return [r, c];
    }
    return null;
  };
  body.rest = (r, c) => {
    if (stop) stop.tabIndex = -1;
    stop = places[Math.max(r, 0)]?.[Math.max(c, 0)];
    if (stop) stop.tabIndex = 0;
  };
  const peek = (place) => {
    if (place && place[0] > 0 && place[1] > 0) body.peek(place[0] - 1, place[1] - 1);
  };
  const choose = (place) => {
    if (place && (place[0] > 0 || place[1] > 0)) map.choose(place[0] - 1, place[1] - 1);
  };
  const go = (r, c) => {
    if (!places[r]?.[c] || (r === 0 && c === 0)) return;
    body.rest(r, c);
    stop.focus();
    // A cell under the labels, which stay in view, is no visible one.
    if (r > 0 && c > 0) reveal(body.element.parentElement, r - 1, c - 1);
  };
  body.element.addEventListener("pointerover", (event) => peek(placeOf(event.target)));
  body.element.addEventListener("focusin", (event) => peek(placeOf(event.target)));
  body.element.addEventListener("click", (event) => choose(placeOf(event.target)));
  body.element.addEventListener("keydown", (event) => {
    const place = placeOf(event.target);
    const by = MOVES[event.key];
    if (!place || !(by || event.key === "Enter" || event.key === " ")) return;
    if (by) go(place[0] + by[0], place[1] + by[1]);
    else choose(place);
    event.preventDefault();
    event.stopPropagation();
  });
}

const MOVES = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};

// A matrix of many cells: one canvas, with a cursor that the arrow keys move.
function drawnMatrix(map) {
  const body = { element: null, mark, peek: null };
  const bands = ["across", "down", "cursor"].map((name) =>
    make("div", { class: `band ${name}` }),
  );
  const [across, down, cursor] = bands;
  const heads = map.columns.map((column) =>
    make("div", { class: "upright" }, column.element),
  );
  const sides = map.rows.map((row) => make("div", { class: "row" }, row.element));
  const plate = make(
    "div",
    { class: "plate", tabindex: 0, role: "application", "aria-label": map.name },
    thumbnail(map, 6),
    drawnSigns(map),
    bands,
  );
  const notes = drawnNotes(map);
  body.element = make(
    "div",
    { class: notes ? "drawn noted" : "drawn" },
    make("div", { class: "corner" }),
    make("div", { class: "heads" }, heads),
    notes && make("div", { class: "corner right" }),
    make("div", { class: "sides" }, sides),
    plate,
    notes,
  );
  body.element.style.setProperty("--rows", map.rows.length);
  body.element.style.setProperty("--columns", map.columns.length);
  heads.forEach((head, c) => head.addEventListener("click", () => map.choose(-1, c)));
  sides.forEach((side, r) => side.addEventListener("click", () => map.choose(r, -1)));
  const point = pointable(plate, map, (r, c) => {
    put(cursor, r, c);
    body.peek(r, c);
  });
  let chosen = [0, 0];
  plate.addEventListener("pointerleave", () => {
    point.at = chosen;
    put(cursor, ...chosen);
  });

  function mark(row, column, cell) {
    put(across, row, 0);
    put(down, 0, column);
    across.hidden = row < 0;
    down.hidden = column < 0;
    sides.forEach((side, r) => side.classList.toggle("chosen", r === row));
    heads.forEach((head, c) => head.classList.toggle("chosen-column", c === column));
    chosen = [Math.max(row, 0), Math.max(cell, 0)];
    point.at = chosen;
    put(cursor, ...chosen);
  }
  return body;
}

// The signs of cells, each a frame that lies over the drawing.
function drawnSigns(map) {
  const signs = map.rows.flatMap((_, r) =>
    map.columns.map((_, c) => {
      const classes = signsOf(map, r, c);
      if (!classes.length) return null;
      const sign = make("div", { class: ["sign", ...classes].join(" ") });
      put(sign, r, c);
      return sign;
    }),
  );
  return signs.filter(Boolean);
}

function drawnNotes(map) {
  if (!map.note) return null;
  const notes = map.rows.map((_, r) => make("div", {}, map.note(r)));
  return make("div", { class: "row-notes" }, notes);
}

function put(band, r, c) {
  band.style.setProperty("--r", r);
  band.style.setProperty("--c", c);
}

// Let pointer and arrow keys point at the cells of a plate.
function pointable(plate, map, show) {
  const [R, C] = [map.rows.length, map.columns.length];
  const point = { at: [0, 0] };
  const move = (r, c) => {
    point.at = [clamp(r, R), clamp(c, C)];
    show(...point.at);
  };
  const cellAt = (event) => {
    const box = plate.getBoundingClientRect();
    return [
      Math.floor(((event.clientY - box.top) / box.height) * R),
      Math.floor(((event.clientX - box.left) / box.width) * C),
    ];
  };
  plate.addEventListener("pointermove", (event) => move(...cellAt(event)));
  plate.addEventListener("click", (event) => map.choose(...cellAt(event)));
  plate.addEventListener("keydown", (event) => {
    const by = MOVES[event.key];
    if (event.key === "Enter" || event.key === " ") map.choose(...point.at);
    else if (by) {
      move(point.at[0] + by[0], point.at[1] + by[1]);
      reveal(plate.closest(".scroll"), ...point.at);
      const signs = signsOf(map, ...point.at).map(signName);
      announce([map.describe(...point.at), ...signs].join(", "));
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return point;
}

// ------------------------------------------------------------------------- thumbnails

// The colours of 0 and 1 as the style sheet has them now.
function colours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
  };
  return {
    none: read("--none"),
    full: read("--full"),
    hatch: read("--hatch"),
    bare: read("--card"),
  };
}

// Draw a map without labels, each cell `unit` pixels wide; masked cells are hatched.
function thumbnail(map, unit) {
  const [R, C] = [map.rows.length, map.columns.length];
  const canvas = make("canvas", { width: C * unit, height: R * unit });
  canvas.redraw = () => paint(canvas, map, unit);
  canvas.redraw();
  return canvas;
}

function paint(canvas, map, unit) {
  const [R, C] = [map.rows.length, map.columns.length];
  const { none, full, hatch, bare } = colours();
  const context = canvas.getContext("2d");
  const image = context.createImageData(C * unit, R * unit);
  const pixels = image.data;
  for (let r = 0; r < R; r++) {
    for (let c = 0; c < C; c++) {
      const masked = map.masked(r, c);
      const weight = masked ? 0 : map.weight(r, c);
      const colour = none.map((n, i) => Math.round(n + (full[i] - n) * weight));
      for (let y = r * unit; y < (r + 1) * unit; y++) {
        for (let x = c * unit; x < (c + 1) * unit; x++) {
          const [red, green, blue] = masked ? ((x + y) % 6 < 2 ? hatch : bare) : colour;
          const at = 4 * (y * C * unit + x);
          pixels[at] = red;
          pixels[at + 1] = green;
          pixels[at + 2] = blue;
          pixels[at + 3] = 255;
        }
      }
    }
  }
  context.putImageData(image, 0, 0);
}

// ------------------------------------------------------------------------------ lines

const LINE = { height: 27, width: 400, left: 150, right: 290, most: 400 };

// Draw who looks at whom: queries on the left, keys on the right.
function lines(map) {
  const [R, C] = [map.rows.length, map.columns.length];
  const height = Math.max(R, C) * LINE.height + 26;
  const y = (index, count) => 34 + (index + (Math.max(R, C) - count) / 2) * LINE.height;
  const drawn = strongLines(map);
  const paths = drawn.map(([weight, r, c]) => linePath(weight, y(r, R), y(c, C)));
  const [left, right] = [
    map.rows.map((row, r) =>
      lineToken(row, LINE.left - 10, y(r, R), "end", () => map.choose(r, -1)),
    ),
    map.columns.map((column, c) =>
      lineToken(column, LINE.right + 10, y(c, C), "start", () => map.choose(-1, c)),
    ),
  ];
  const svg = makeSvg(
    "svg",
    {
      class: "lines",
      viewBox: `0 0 ${LINE.width} ${height}`,
      role: "group",
      "aria-label": map.name,
    },
    makeSvg(
      "text",
      { class: "side", x: LINE.left - 10, y: 13, "text-anchor": "end" },
      label("looks"),
    ),
    makeSvg("text", { class: "side", x: LINE.right + 10, y: 13 }, label("lookedAt")),
    paths,
    left,
    right,
  );
  const readout = make("p", { class: "readout" }, "\u00a0");
  const left_out =
    drawn.length < R * C ? make("p", { class: "quiet" }, leastDrawn(drawn)) : null;
  return {
    element: make(
      "div",
      { class: "figure" },
      make("div", { class: "scroll" }, svg),
      readout,
      left_out,
    ),
    mark(row, column, cell) {
      drawn.forEach(([, r, c], i) => {
        paths[i].classList.toggle("chosen", r === row);
        paths[i].classList.toggle("cell", r === row && c === cell);
      });
      left.forEach((token, r) => pressed(token, "chosen", r === row));
      right.forEach((token, c) => pressed(token, "chosen-column", c === column));
      readout.textContent = cell >= 0 ? map.describe(row, cell) : "\u00a0";
    },
  };
}

// Return [weight, row, column] of the lines worth drawing, the weakest first.
function strongLines(map) {
  const all = [];
  map.rows.forEach((_, r) =>
    map.columns.forEach((_, c) => {
      const weight = map.masked(r, c) ? 0 : map.weight(r, c);
      if (weight >= 0.01) all.push([weight, r, c]);
    }),
  );
  all.sort((a, b) => a[0] - b[0]);
  return all.slice(-LINE.most);
}

function leastDrawn(drawn) {
  const least = drawn.length === LINE.most ? drawn[0][0] : 0.01;
  return label("linesFrom", { weight: fixed(least, 2) });
}

function linePath(weight, from, to) {
  const { left, right } = LINE;
  const middle = (left + right) / 2;
  return makeSvg("path", {
    d: `M${left},${from - 4} C${middle},${from - 4} ${middle},${to - 4} ${right},${to - 4}`,
    "stroke-width": (0.75 + 5 * weight).toFixed(2),
    "stroke-opacity": (0.06 + 0.94 * weight).toFixed(3),
  });
}

function pressed(token, name, on) {
  token.classList.toggle(name, on);
  token.setAttribute("aria-pressed", on);
}

// About how wide a text is at 14 px: a kana or a character is a square.
function widthOf(text) {
  return [...text].reduce((sum, one) => sum + (one > "\u2e7f" ? 14 : 7.6), 0);
}

function lineToken(token, x, y, anchor, choose) {
  const keydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    choose();
    event.preventDefault();
  };
  const parts = token.element.map((part) => {
    const text = part.classList.contains("to") ? " → " : part.textContent;
    return makeSvg("tspan", { lang: part.getAttribute("lang") }, text);
  });
  const made = {
    class: "line-token",
    tabindex: 0,
    role: "button",
    "aria-label": token.spoken,
    x,
    y,
    "text-anchor": anchor,
    onclick: choose,
    onkeydown: keydown,
  };
  const room = anchor === "end" ? x : LINE.width - x;
  const text = parts.map((part) => part.textContent).join("");
  if (widthOf(text) > room) // squeezed, where it would be cut off
    Object.assign(made, { textLength: room, lengthAdjust: "spacingAndGlyphs" });
  const title = makeSvg(
    "title",
    {},
    token.element
      .map((part) => part.title)
      .filter(Boolean)
      .join(" → "),
  );
  return makeSvg("text", made, parts, title);
}
