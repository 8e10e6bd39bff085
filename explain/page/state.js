// What is being looked at, what it is called, and the address that names it.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LABELS = JSON.parse(document.getElementById("labels").textContent);
const KINDS = ["encoder_self", "decoder_self", "cross"];
const SIDES = {
  encoder_self: ["source", "source"],
  decoder_self: ["target", "target"],
  cross: ["target", "source"],
};
const MEAN = -1;

const state = {
  language: "en",
  theme: "auto",
  figure: "matrix",
  entry: 0,
  step: 0, // the target row
  source: 0, // the source token
  pinned: false, // whether the reader chose it; else it follows the strongest weight
  keys: { encoder_self: 0, decoder_self: 0 }, // the columns of those maps' chosen cells
  kind: "cross", // which map's chosen cell is worked through
  views: {}, // for each kind: {layer, head}
  words: { kind: "cross", marks: "shown", rows: "predicts" },
};

// ------------------------------------------------------------------------ the data

const entry = () => DATA.entries[state.entry];
const model = () => DATA.models[entry().model];
const layersOf = (kind) =>
  Object.keys(entry().maps).filter((n) => n.startsWith(`${kind}.`)).length;
const mapOf = (kind, layer = state.views[kind].layer) =>
  entry().maps[`${kind}.${layer}`];
const headsOf = (kind) => mapOf(kind, 0).weights.shape[0];
const projectionsOf = (kind, layer) => model().projections[`${kind}.${layer}`];
const rowTokens = (kind) =>
  SIDES[kind][0] === "source" ? entry().source : entry().reads;
const columnTokens = (kind) =>
  SIDES[kind][1] === "source" ? entry().source : entry().reads;
const isMasked = (kind, row, column) => kind === "decoder_self" && column > row;

// Return the weight of a cell, of one head or of a layer's mean.
function weightAt(kind, { layer, head }, row, column) {
  const { shape, values } = unpack(mapOf(kind, layer).weights);
  const [H, R, C] = shape;
  if (head !== MEAN) return values[(head * R + row) * C + column];
  let sum = 0;
  for (let h = 0; h < H; h++) sum += values[(h * R + row) * C + column];
  return sum / H;
}

function strongest(kind, row) {
  let best = 0;
  for (let c = 1; c < columnTokens(kind).length; c++) {
    const view = state.views[kind];
    if (weightAt(kind, view, row, c) > weightAt(kind, view, row, best)) best = c;
  }
  return best;
}

// The chosen cell of each map.
function cellOf(kind) {
  if (kind === "cross") return [state.step, state.source];
  return [kind === "encoder_self" ? state.source : state.step, state.keys[kind]];
}

const checks = new WeakMap();

// Recompute all weights of the open sentence, once.
function checkAll() {
  const open = entry();
  if (!checks.has(open)) {
    const total = { count: 0, difference: 0, wrong: [] };
    for (const [name, map] of Object.entries(open.maps)) {
      const [kind, layer] = name.split(".");
      const found = checkMap(map, kind === "decoder_self");
      total.count += found.count;
      total.difference = Math.max(total.difference, found.difference);
      for (const place of found.wrong)
        total.wrong.push([kind, Number(layer), ...place]);
    }
    checks.set(open, total);
  }
  return checks.get(open);
}

// ------------------------------------------------------------------------- choosing

function openEntry(index) {
  state.entry = index;
  const { step, layer, head } = entry().opens;
  for (const kind of KINDS)
    state.views[kind] = { layer: layersOf(kind) - 1, head: MEAN };
  state.views.cross = { layer, head };
  state.kind = "cross";
  state.pinned = false;
  chooseStep(step);
}

function chooseStep(step) {
  state.step = clamp(step, entry().reads.length);
  if (!state.pinned) state.source = strongest("cross", state.step);
  settle();
}

function chooseSource(source, pinned = true) {
  state.source = clamp(source, entry().source.length);
  state.pinned = pinned;
  if (!pinned) state.source = strongest("cross", state.step);
  settle();
}

function chooseView(kind, layer, head) {
  state.views[kind] = { layer: clamp(layer, layersOf(kind)), head };
  state.kind = kind;
  if (!state.pinned) state.source = strongest("cross", state.step);
  settle();
}

function chooseCell(kind, row, column) {
  state.kind = kind;
  if (kind === "cross") {
    state.step = row;
    chooseSource(column);
  } else if (kind === "encoder_self") {
    chooseSource(row);
  } else {
    chooseStep(row);
  }
  if (kind !== "cross") state.keys[kind] = column;
}

// The other maps' cells lie on the chosen rows, at their strongest weight.
function settle() {
  state.keys.encoder_self = strongest("encoder_self", state.source);
  state.keys.decoder_self = strongest("decoder_self", state.step);
}

const clamp = (index, length) => Math.max(0, Math.min(index, length - 1)) || 0;

// ---------------------------------------------------------------------- the address

const SHORT = { encoder_self: "encoder", decoder_self: "decoder", cross: "cross" };

function address() {
  const parts = new URLSearchParams();
  if (DATA.entries.length > 1) parts.set("sentence", state.entry + 1);
  parts.set("step", state.step + 1);
  for (const kind of KINDS) {
    const { layer, head } = state.views[kind];
    parts.set(SHORT[kind], `${layer + 1}.${head === MEAN ? "mean" : head + 1}`);
  }
  const [row, column] = cellOf(state.kind);
  parts.set("cell", `${SHORT[state.kind]}.${row + 1}.${column + 1}`);
  // A cell of the other maps names it.
  if (state.pinned && state.kind === "decoder_self")
    parts.set("source", state.source + 1);
  if (state.figure !== "matrix") parts.set("figure", state.figure);
  if (state.language !== firstLanguage()) parts.set("language", state.language);
  return `#${parts}`;
}

function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = (text, most) => clamp(Number.parseInt(text, 10) - 1, most);
  openEntry(
    parts.has("sentence") ? number(parts.get("sentence"), DATA.entries.length) : 0,
  );
  if (parts.has("step")) state.step = number(parts.get("step"), entry().reads.length);
  for (const kind of KINDS) {
    const [layer, head] = (parts.get(SHORT[kind]) || "").split(".");
    if (!layer) continue;
    state.views[kind] = {
      layer: number(layer, layersOf(kind)),
      head: head === undefined || head === "mean" ? MEAN : number(head, headsOf(kind)),
    };
  }
  if (parts.has("source"))
    chooseSource(number(parts.get("source"), entry().source.length));
  chooseStep(state.step);
  const [short, row, column] = (parts.get("cell") || "").split(".");
  const kind = KINDS.find((k) => SHORT[k] === short);
  if (kind && column) {
    chooseCell(
      kind,
      number(row, rowTokens(kind).length),
      number(column, columnTokens(kind).length),
    );
    state.pinned = state.source !== strongest("cross", state.step);
  }
  state.figure = parts.get("figure") === "lines" ? "lines" : "matrix";
  const language = parts.get("language");
  if (Object.hasOwn(LABELS, language)) state.language = language;
}

function writeAddress() {
  if (location.hash === address()) return;
  try {
    history.replaceState(null, "", address());
  } catch {
    // A sandboxed frame, such as a notebook's, has no address of its own.
  }
}

// ------------------------------------------------------------------------- language

function firstLanguage() {
  const wanted = navigator.languages.map((l) => l.slice(0, 2));
  return wanted.find((l) => Object.hasOwn(LABELS, l)) || "en";
}

// Return a label in the chosen language, its {names} filled in.
function label(name, values = {}) {
  const text = LABELS[state.language][name];
  if (text === undefined) throw new Error(`no label ${name}`);
  return text.replace(/\{(\w+)\}/g, (_, key) => String(values[key]));
}

const headName = (head) =>
  head === MEAN ? label("mean") : label("head", { head: head + 1 });

function viewName({ layer, head }) {
  return `${label("layer", { layer: layer + 1 })} ${headName(head)}`;
}

// "reading 私は, predicting 機械: attends to machine 0.41, layer 2 head 3"
function spokenStep() {
  return label("spoken", {
    reads: spoken(entry().reads[state.step]),
    predicts: spoken(entry().predicts[state.step]),
    key: spoken(entry().source[state.source]),
    weight: fixed(weightAt("cross", state.views.cross, state.step, state.source), 2),
    view: viewName(state.views.cross),
  });
}

// -------------------------------------------------------------------------- numbers

const MINUS = "\u2212";
const fixed = (value, digits) => {
  const text = value.toFixed(digits);
  return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", MINUS);
};

const counted = (number) => number.toLocaleString(state.language);

// A probability that would round to nothing is said to be small, not nought.
const chance = (value) => (value > 0 && value < 0.0005 ? "<0.001" : fixed(value, 3));

// Return a small difference such as 3 × 10⁻⁸ as words.
function tiny(value) {
  if (value === 0) return "0";
  const [number, power] = value.toExponential(0).split("e");
  const raised = String(Number(power))
    .replace("-", "⁻")
    .replace(/\d/g, (d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d]);
  return Math.abs(Number(power)) < 3 ? value.toPrecision(1) : `${number} × 10${raised}`;
}
