// One cell's arithmetic, step by step, with the model's numbers: computed here, shown,
// and compared with what the model stored. The steps start from stored values, so that a
// fault shows in its own step alone; but scale and softmax follow from the scores here.

// Compute what can be computed of head `head`'s cell (row, column) from what is here.
function computeCell(kind, layer, head, row, column) {
  const map = mapOf(kind, layer);
  const matrices = projectionsOf(kind, layer);
  const found = { kind, layer, head, row, column, steps: {} };
  found.weights = Array.from(rowOf(unpack(map.weights), head, row));
  if (map.q) addScores(found, map);
  if (map.v) addContext(found, map);
  if (map.q && map.v && map.normalised && matrices)
    addProjections(found, map, matrices);
  return found;
}

// How far from 0 a row's largest score may be for exp(score) to be readable. Past it the
// largest score is subtracted first, as the softmax does in any case.
const FAR = 12;

function addScores(found, map) {
  const { kind, head, row, column } = found;
  const [q, k] = [unpack(map.q), unpack(map.k)];
  found.q = rowOf(q, head, row);
  found.k = rowOf(k, head, column);
  found.products = Array.from(found.q, (value, i) => value * found.k[i]);
  const scale = Math.sqrt(found.q.length);
  found.scores = found.weights.map((_, c) => dot(found.q, rowOf(k, head, c)));
  found.scaled = found.scores.map((score) => score / scale);
  const allowed = (c) => !isMasked(kind, row, c);
  const largest = Math.max(...found.scaled.filter((_, c) => allowed(c)));
  found.shift = Math.abs(largest) > FAR ? largest : 0;
  found.raised = found.scaled.map((s, c) =>
    allowed(c) ? Math.exp(s - found.shift) : 0,
  );
  found.total = found.raised.reduce((a, b) => a + b, 0);
  found.fresh = softmax(found.scaled, allowed);
  const slack = () => unpack(map.weights).step / 2;
  const stored = (name) => rowOf(unpack(map[name]), head, row);
  found.steps.score = compare(found.scores, stored("scores"));
  found.steps.scale = compare(found.scaled, stored("scaled"));
  found.steps.weight = compare(found.fresh, found.weights, slack);
}

function addContext(found, map) {
  const { head, row } = found;
  const v = unpack(map.v);
  found.values = found.weights.map((_, c) => rowOf(v, head, c));
  found.context = weightedSum(found.weights, found.values);
  const slack = (i) => {
    const size = found.values.reduce((sum, value) => sum + Math.abs(value[i]), 0);
    return (size * unpack(map.weights).step) / 2;
  };
  found.steps.context = compare(
    found.context,
    rowOf(unpack(map.context), head, row),
    slack,
  );
  const heads = Array.from({ length: v.shape[0] }, (_, h) =>
    rowOf(unpack(map.context), h, row),
  );
  found.concatenated = heads.flatMap((part) => Array.from(part));
}

function addProjections(found, map, matrices) {
  const { kind, head, row, column, q, k } = found;
  const K = q.length;
  const inputs = unpack(map.normalised);
  const keys = kind === "cross" ? unpack(entry().memory) : inputs;
  const [wq, wk, wv, wo] = ["w_q", "w_k", "w_v", "w_o"].map((name) =>
    unpack(matrices[name]),
  );
  const x = rowOf(inputs, row);
  const m = rowOf(keys, column);
  const project = (from, matrix) => timesMatrix(from, matrix, head * K, K);
  Object.assign(found, { x, m, wq, wk, wv, wo });
  found.freshQ = project(x, wq);
  found.freshK = project(m, wk);
  found.freshV = project(m, wv);
  found.output = timesMatrix(found.concatenated, wo, 0, wo.shape[1]);
  const checked = (fresh, stored, from, matrix) => {
    const slack = roundingSlack(from, matrix);
    return { ...compare(fresh, stored, () => slack), rounded: true };
  };
  found.steps.query = checked(found.freshQ, q, x, wq);
  found.steps.key = checked(found.freshK, k, m, wk);
  found.steps.value = checked(found.freshV, found.values[column], m, wv);
  found.steps.output = checked(
    found.output,
    rowOf(unpack(map.output), row),
    found.concatenated,
    wo,
  );
}

// --------------------------------------------------------------------------- drawing

function drawWorked() {
  const kind = state.kind;
  const { layer, head } = state.views[kind];
  const [row, column] = cellOf(kind);
  const title = make("h2", {}, label("workedTitle"));
  const place = make("p", { class: "lead" }, ...workedPlace(kind, row, column));
  if (isMasked(kind, row, column))
    return [title, place, make("p", {}, label("maskedCell"))];
  if (head === MEAN) return [title, place, ...meanOfHeads(kind, layer, row, column)];
  const cell = computeCell(kind, layer, head, row, column);
  if (!cell.q) return [title, place, make("p", { class: "notice" }, label("noValues"))];
  const steps = [
    ...projectionSteps(cell),
    ...scoreSteps(cell),
    ...(cell.values ? contextSteps(cell) : []),
    ...(cell.output ? [outputStep(cell)] : []),
  ];
  const parts = [title, place, cellBadge(cell), make("ol", { class: "steps" }, steps)];
  if (!cell.x) {
    const whole = cell.values && !projectionsOf(kind, layer);
    const missing = whole ? "noMatrices" : "noVectors";
    parts.push(make("p", { class: "notice" }, label(missing)));
  }
  return parts;
}

function workedPlace(kind, row, column) {
  const [rows, columns] = [rowTokens(kind), columnTokens(kind)];
  const weight = weightAt(kind, state.views[kind], row, column);
  return [
    make("span", { class: "chip" }, `${label(kind)}, ${viewName(state.views[kind])}`),
    tokenElement(rows[row], SIDES[kind][0]),
    make("span", { class: "to" }, "→"),
    tokenElement(columns[column], SIDES[kind][1]),
    make("strong", { class: "number" }, fixed(weight, 4)),
  ];
}

// A mean has no arithmetic of its own but this.
function meanOfHeads(kind, layer, row, column) {
  const heads = Array.from({ length: headsOf(kind) }, (_, h) => h);
  const weights = heads.map((head) => weightAt(kind, { layer, head }, row, column));
  const sum = weights.map((w) => fixed(w, 4)).join(" + ");
  const mean = weightAt(kind, { layer, head: MEAN }, row, column);
  return [
    make("p", { class: "formula" }, `(${sum}) ÷ ${heads.length} = ${fixed(mean, 4)}`),
    make("p", {}, label("chooseHead")),
    make(
      "p",
      { class: "choices" },
      heads.map((head) =>
        make(
          "button",
          {
            type: "button",
            onclick: () => show(() => chooseView(kind, layer, head), spokenCell),
          },
          headName(head),
        ),
      ),
    ),
  ];
}

function badge(check) {
  if (!check) return null;
  const words = !check.agrees ? "differs" : check.rounded ? "agreesRounded" : "agrees";
  const text = label(words, { difference: tiny(check.difference) });
  return make(
    "span",
    { class: `badge ${check.agrees ? "good" : "bad"}` },
    `${check.agrees ? "✓" : "✗"} ${text}`,
  );
}

function cellBadge(cell) {
  const steps = Object.values(cell.steps);
  const wrong = steps.filter((check) => !check.agrees).length;
  const count = steps.reduce((sum, check) => sum + check.count, 0);
  const text = wrong
    ? label("cellBad", { wrong, steps: steps.length })
    : label("cellGood", { count: counted(count), steps: steps.length });
  return make(
    "p",
    { class: `badge ${wrong ? "bad" : "good"}`, id: "cell-badge", role: "status" },
    `${wrong ? "✗" : "✓"} ${text}`,
  );
}

function step(name, formula, check, ...content) {
  return make(
    "li",
    { class: "worked-step", "data-step": name },
    make("h3", {}, label(`step_${name}`)),
    make("p", { class: "formula" }, named(formula)),
    make("p", { class: "why" }, named(label(`why_${name}`))),
    ...content,
    badge(check),
  );
}

// The first numbers of a vector, the others on demand.
function vector(name, values, first = 6) {
  const list = Array.from(values, (value) => fixed(value, 4));
  const short = `${name} = (${list.slice(0, first).join(", ")}${list.length > first ? ", …" : ""})`;
  if (list.length <= first) return make("p", { class: "vector" }, short);
  return make(
    "details",
    { class: "vector" },
    make(
      "summary",
      {},
      short,
      make(
        "span",
        { class: "quiet" },
        ` ${label("numbers", { count: counted(list.length) })}`,
      ),
    ),
    make("p", {}, list.join(", ")),
  );
}

// The beginning of x W: its first components, each a sum of products down a column.
// `names` are x, W and the result; `column` is where the head's part of W begins.
function productTable(names, x, matrix, column, result) {
  const [from, to] = [Math.min(3, x.length), Math.min(FIRST, result.length)];
  const rows = Array.from({ length: from }, (_, i) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, `${names[0]}${LOW[i]} = ${fixed(x[i], 3)}`),
      Array.from({ length: to }, (_, j) =>
        make(
          "td",
          {},
          `× ${fixed(matrix.values[i * matrix.shape[1] + column + j], 3)}`,
        ),
      ),
    ),
  );
  const more = make(
    "tr",
    { class: "masked-row" },
    make("th", { scope: "row" }, `… ${names[0]}${lower(x.length)}`),
    Array.from({ length: to }, () => make("td", {}, "…")),
  );
  const sum = make(
    "tr",
    { class: "sum" },
    make("th", { scope: "row" }, label("sum")),
    Array.from(result.slice(0, to), (value) => make("td", {}, fixed(value, 4))),
  );
  const heads = [
    make("td", {}, named(names[1]), ` ${x.length} × ${result.length}`),
    ...Array.from({ length: to }, (_, j) =>
      make("th", { scope: "col" }, `${names[2]}${LOW[j]}`),
    ),
  ];
  return numbersTable(heads, [...rows, more], sum);
}

function numbersTable(heads, rows, sum) {
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label("workedTitle") },
    make(
      "table",
      { class: "numbers-table" },
      make("thead", {}, make("tr", {}, heads)),
      make("tbody", {}, rows),
      make("tfoot", {}, sum),
    ),
  );
}

function rowClass({ kind, row, column }, c) {
  if (c === column) return "chosen";
  return isMasked(kind, row, c) ? "masked-row" : "";
}

const FIRST = 4; // components of a vector that a table shows
const LOW = "₁₂₃₄";
const lower = (number) => String(number).replace(/\d/g, (d) => "₀₁₂₃₄₅₆₇₈₉"[d]);

// A name such as W_Q, its second part set low.
function named(text) {
  return text
    .split(/(_[A-Z])/)
    .filter(Boolean)
    .map((part) =>
      part[0] === "_" ? make("sub", {}, part.slice(1)) : document.createTextNode(part),
    );
}

function projectionSteps(cell) {
  const start = cell.head * cell.q.length;
  const from = cell.kind === "cross" ? "m" : "x";
  const q = step(
    "query",
    "q = x · W_Q",
    cell.steps.query,
    ...(cell.x
      ? [
          vector("x", cell.x),
          productTable(["x", "W_Q", "q"], cell.x, cell.wq, start, cell.freshQ),
        ]
      : []),
    vector("q", cell.x ? cell.freshQ : cell.q),
  );
  const k = step(
    "key",
    `k = ${from} · W_K`,
    cell.steps.key,
    ...(cell.x
      ? [
          vector(from, cell.m),
          productTable([from, "W_K", "k"], cell.m, cell.wk, start, cell.freshK),
        ]
      : []),
    vector("k", cell.x ? cell.freshK : cell.k),
  );
  return [q, k];
}

function scoreSteps(cell) {
  const { column } = cell;
  const four = (value) => fixed(value, 4);
  const score = four(cell.scores[column]);
  const scaled = four(cell.scaled[column]);
  const [raised, total] = [cell.raised[column], cell.total].map(raisedText(cell));
  const root = four(Math.sqrt(cell.q.length));
  return [
    step(
      "score",
      `q · k = q₁k₁ + q₂k₂ + … = ${score}`,
      cell.steps.score,
      productList(cell),
    ),
    step(
      "scale",
      `${score} ÷ √${cell.q.length} = ${score} ÷ ${root} = ${scaled}`,
      cell.steps.scale,
    ),
    step(
      "weight",
      `exp(${scaled}${shiftText(cell)}) ÷ ${total} = ${raised} ÷ ${total} = ${four(cell.fresh[column])}`,
      cell.steps.weight,
      shiftNote(cell),
      softmaxTable(cell),
    ),
  ];
}

// How to write the powers of a row: to as many decimals as their sum needs for quotients
// of what is written to be right to four.
function raisedText({ total }) {
  const digits = 4 + Math.max(0, Math.ceil(-Math.log10(total)));
  return (value) => fixed(value, digits);
}

// What is added to each score of a row before e is raised to it.
function shiftText({ shift }) {
  if (!shift) return "";
  return ` ${shift < 0 ? "+" : MINUS} ${fixed(Math.abs(shift), 4)}`;
}

function shiftNote({ shift }) {
  if (!shift) return null;
  const text = label("shifted", { largest: fixed(shift, 4) });
  return make("p", { class: "quiet shifted" }, text);
}

// Every component's product, as a little sum of its own.
function productList(cell) {
  const products = Array.from(cell.products, (product, i) =>
    make(
      "span",
      { class: "product" },
      make("span", {}, fixed(cell.q[i], 3)),
      make("span", {}, `× ${fixed(cell.k[i], 3)}`),
      make("span", {}, fixed(product, 3)),
    ),
  );
  return make("div", { class: "products" }, products);
}

function softmaxTable(cell) {
  const { kind, row } = cell;
  const raised = raisedText(cell);
  const names = [
    label("column_key"),
    "q · k",
    "÷ √d",
    label("column_mask"),
    cell.shift ? ["exp(…", make("br"), `${shiftText(cell)})`] : "exp",
    label("column_weight"),
  ];
  const heads = names.map((name) => make("th", { scope: "col" }, name));
  const side = SIDES[kind][1];
  const rows = columnTokens(kind).map((token, c) => {
    const masked = isMasked(kind, row, c);
    const numbers = [
      fixed(cell.scores[c], 4),
      fixed(cell.scaled[c], 4),
      masked ? `${MINUS}∞` : label("allowed"),
      raised(cell.raised[c]),
      fixed(cell.fresh[c], 4),
    ];
    return make(
      "tr",
      { class: rowClass(cell, c) },
      make("th", { scope: "row" }, tokenElement(token, side)),
      numbers.map((number) => make("td", {}, number)),
    );
  });
  const sum = make(
    "tr",
    { class: "sum" },
    make("th", { scope: "row", colspan: 4 }, label("rowSum")),
    make("td", {}, raised(cell.total)),
    make(
      "td",
      {},
      fixed(
        cell.fresh.reduce((a, b) => a + b, 0),
        4,
      ),
    ),
  );
  return numbersTable(heads, rows, sum);
}

function contextSteps(cell) {
  const from = cell.kind === "cross" ? "m" : "x";
  const steps = [];
  if (cell.x) {
    steps.push(
      step(
        "value",
        `v = ${from} · W_V`,
        cell.steps.value,
        productTable(
          [from, "W_V", "v"],
          cell.m,
          cell.wv,
          cell.head * cell.q.length,
          cell.freshV,
        ),
        vector("v", cell.freshV),
      ),
    );
  }
  steps.push(
    step("context", label("formula_context"), cell.steps.context, contextTable(cell)),
  );
  return steps;
}

function contextTable(cell) {
  // One less than elsewhere: the key and its weight need that room.
  const first = Math.min(FIRST - 1, cell.context.length);
  const side = SIDES[cell.kind][1];
  const rows = columnTokens(cell.kind).map((token, c) =>
    make(
      "tr",
      { class: rowClass(cell, c) },
      make("th", { scope: "row" }, tokenElement(token, side)),
      make("td", {}, fixed(cell.weights[c], 4)),
      Array.from(cell.values[c].slice(0, first), (v) =>
        make("td", {}, `× ${fixed(v, 3)}`),
      ),
    ),
  );
  const sum = make(
    "tr",
    { class: "sum" },
    make("th", { scope: "row", colspan: 2 }, label("sum")),
    Array.from(cell.context.slice(0, first), (v) => make("td", {}, fixed(v, 4))),
  );
  const heads = [
    label("column_key"),
    label("column_weight"),
    ...Array.from({ length: first }, (_, i) => `v${LOW[i]}`),
  ];
  return make(
    "div",
    {},
    numbersTable(
      heads.map((name) => make("th", { scope: "col" }, name)),
      rows,
      sum,
    ),
    vector(label("headOutput", { head: cell.head + 1 }), cell.context),
  );
}

function outputStep(cell) {
  const K = cell.q.length;
  const heads = cell.concatenated.length / K;
  const parts = Array.from({ length: heads }, (_, h) => {
    const values = cell.concatenated.slice(h * K, h * K + 2).map((v) => fixed(v, 3));
    return make(
      "span",
      { class: h === cell.head ? "part chosen" : "part" },
      make("b", {}, headName(h)),
      ` ${values.join(", ")}, …`,
    );
  });
  return step(
    "output",
    label("formula_output"),
    cell.steps.output,
    make("p", { class: "parts" }, parts),
    productTable(["z", "W_O", "y"], cell.concatenated, cell.wo, 0, cell.output),
    vector("y", cell.output),
  );
}
