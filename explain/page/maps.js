// The three panels: one map of each kind of attention, drawn large, and every other
// small.

const panels = {};
const ROOMY = 16; // tokens above which three panels side by side are too narrow
// What a panel says of its kind, by the language of what is looked at.
const hintOf = (kind) =>
  SIDES[kind].includes("source")
    ? `${kind}_hint_${languageOf("source")}`
    : `${kind}_hint`;
const longest = () => Math.max(entry().source.length, entry().reads.length);

section(
  "maps",
  () => [state.entry],
  () => [
    make("h2", {}, label("mapsTitle")),
    make(
      "div",
      { class: "tools" },
      choices(
        label("figure"),
        [
          ["matrix", label("matrix")],
          ["lines", label("lines")],
        ],
        () => state.figure,
        (value) => {
          state.figure = value;
        },
      ),
      legend(),
    ),
    make(
      "div",
      { class: longest() > ROOMY ? "panels roomy" : "panels" },
      KINDS.map(panel),
    ),
    make("p", { class: "note" }, label("explains")),
  ],
  () => {
    followChoices("maps");
    KINDS.forEach(updatePanel);
  },
);

function legend() {
  return make(
    "div",
    { class: "legend", role: "img", "aria-label": label("legendSpoken") },
    make("span", {}, "0"),
    make("span", { class: "ramp" }),
    make("span", {}, "1"),
    make("span", { class: "swatch masked" }),
    make("span", {}, label("masked")),
  );
}

function panel(kind) {
  const layers = Array.from({ length: layersOf(kind) }, (_, layer) => layer);
  const heads = [...Array.from({ length: headsOf(kind) }, (_, head) => head), MEAN];
  const layer = make(
    "select",
    {
      "aria-label": label("layerOf"),
      onchange: (event) =>
        show(
          () => chooseView(kind, Number(event.target.value), state.views[kind].head),
          spokenCell,
        ),
    },
    layers.map((i) => option(i, label("layer", { layer: i + 1 }))),
  );
  const head = make(
    "select",
    {
      "aria-label": label("headOf"),
      onchange: (event) =>
        show(
          () => chooseView(kind, state.views[kind].layer, Number(event.target.value)),
          spokenCell,
        ),
    },
    heads.map((i) => option(i, headName(i))),
  );
  const holder = make("div", { class: "holder" });
  const thumbs = [];
  const grid = thumbnailGrid(kind, layers, heads, thumbs);
  panels[kind] = { layer, head, holder, thumbs, figure: null, key: null };
  return make(
    "article",
    { class: "panel", id: `panel-${kind}`, "aria-label": label(kind) },
    make("h3", {}, label(kind)),
    make("p", { class: "quiet" }, label(hintOf(kind))),
    make("p", { class: "tools" }, layer, head),
    make("div", { class: "map" }, holder, make("h4", {}, label("everyHead")), grid),
  );
}

function thumbnailGrid(kind, layers, heads, thumbs) {
  const rows = rowTokens(kind).length;
  const columns = columnTokens(kind).length;
  const unit = Math.max(1, Math.floor(96 / Math.max(rows, columns)));
  const top = heads.map((head) =>
    make("th", { scope: "col" }, head === MEAN ? label("mean") : String(head + 1)),
  );
  const lines = layers.map((layer) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, String(layer + 1)),
      heads.map((head) => {
        const map = {
          rows: { length: rows },
          columns: { length: columns },
          weight: (r, c) => weightAt(kind, { layer, head }, r, c),
          masked: (r, c) => isMasked(kind, r, c),
        };
        const name = `${label(kind)}, ${viewName({ layer, head })}`;
        const button = make(
          "button",
          {
            type: "button",
            class: "thumb",
            "aria-label": name,
            title: viewName({ layer, head }),
            onclick: () => show(() => chooseView(kind, layer, head), spokenCell),
          },
          thumbnail(map, unit),
        );
        thumbs.push({ button, layer, head });
        return make("td", { class: head === MEAN ? "mean" : "" }, button);
      }),
    ),
  );
  return make(
    "table",
    { class: "thumbs" },
    make(
      "thead",
      {},
      make("tr", {}, make("td", { class: "caption" }, label("layerByHead")), top),
    ),
    make("tbody", {}, lines),
  );
}

function updatePanel(kind) {
  const made = panels[kind];
  const view = state.views[kind];
  made.layer.value = view.layer;
  made.head.value = view.head;
  for (const { button, layer, head } of made.thumbs) {
    button.setAttribute("aria-pressed", layer === view.layer && head === view.head);
  }
  const key = JSON.stringify([state.entry, state.language, view, state.figure]);
  if (made.key !== key) {
    const draw = state.figure === "lines" ? lines : matrix;
    made.figure = draw(panelMap(kind));
    made.holder.replaceChildren(made.figure.element);
    made.key = key;
  }
  const [row, cell] = cellOf(kind);
  made.figure.mark(row, kind === "cross" ? cell : row, cell);
  made.holder.classList.toggle("current", kind === state.kind);
}

function panelMap(kind) {
  const view = { ...state.views[kind] };
  const [rowSide, columnSide] = SIDES[kind];
  const columns = columnTokens(kind);
  return {
    name: `${label(kind)}, ${viewName(view)}`,
    rows: rowTokens(kind).map((token, r) => ({
      element: rowSide === "source" ? [tokenElement(token, "source")] : rowElement(r),
      spoken: rowSpoken(rowSide, r),
    })),
    columns: columns.map((token) => ({
      element: [tokenElement(token, columnSide)],
      spoken: spoken(token),
    })),
    weight: (r, c) => weightAt(kind, view, r, c),
    masked: (r, c) => isMasked(kind, r, c),
    describe: (r, c) =>
      describeCell(
        rowSpoken(rowSide, r),
        spoken(columns[c]),
        isMasked(kind, r, c) ? null : weightAt(kind, view, r, c),
      ),
    choose: (r, c) => show(() => chooseInPanel(kind, r, c), spokenCell),
  };
}

function describeCell(row, column, weight) {
  if (weight === null) return label("describeMasked", { row, column });
  return label("describe", { row, column, weight: fixed(weight, 3) });
}

// "Cross-attention, layer 2 head 3: reading 私は, …: 0.412 on machine"
function spokenCell() {
  const map = panelMap(state.kind);
  return `${map.name}: ${map.describe(...cellOf(state.kind))}`;
}

// A cell was chosen, or with c or r of -1 a row's or a column's token.
function chooseInPanel(kind, r, c) {
  const [rowSide, columnSide] = SIDES[kind];
  if (r >= 0 && c >= 0) return chooseCell(kind, r, c);
  state.kind = kind;
  const [side, index] = c < 0 ? [rowSide, r] : [columnSide, c];
  return side === "source" ? chooseSource(index) : chooseStep(index);
}

section(
  "worked",
  () => [
    state.entry,
    state.kind,
    JSON.stringify(state.views[state.kind]),
    ...cellOf(state.kind),
  ],
  drawWorked,
);
