// The view in words: tokens merged, marks left out, true alignments outlined.

section(
  "words",
  () => [state.entry],
  () => {
    const title = make("h2", {}, label("wordsTitle"));
    if (!entry().words)
      return [title, make("p", { class: "notice" }, label("noWords"))];
    const { words } = state;
    const set = (name) => (value) => {
      words[name] = value;
    };
    return [
      title,
      make("p", { class: "quiet" }, label("wordsHint")),
      make(
        "div",
        { class: "tools" },
        choices(
          label("whichMap"),
          KINDS.map((kind) => [kind, label(kind)]),
          () => words.kind,
          set("kind"),
        ),
        choices(
          label("marks"),
          ["shown", "hidden", "renormalised"].map((m) => [m, label(`marks_${m}`)]),
          () => words.marks,
          set("marks"),
        ),
        choices(
          label("rowsAre"),
          ["predicts", "reads"].map((r) => [r, label(`rows_${r}`)]),
          () => words.rows,
          set("rows"),
        ),
      ),
      make("div", { class: "holder" }),
    ];
  },
  (element) => {
    const holder = element.querySelector(".holder");
    if (!holder) return;
    followChoices("words");
    const { kind } = state.words;
    const key = JSON.stringify([
      state.entry,
      state.language,
      state.words,
      state.views[kind],
    ]);
    if (holder.dataset.key === key) return;
    holder.dataset.key = key;
    holder.replaceChildren(...wordFigure(kind));
  },
);

// Return the words of one side of a map, marks among them if asked, each with its
// tokens: `parts` lists [token, share].
function wordsOf(side, reads, marks) {
  const tokens =
    side === "source" ? entry().source : reads ? entry().reads : entry().predicts;
  // The last token of a translation that was cut off is read by no step.
  const words = entry().words[side].map(({ text, parts }, index) => ({
    text,
    side,
    index,
    parts: parts
      .map(([token, share]) => [token + (reads ? 1 : 0), share])
      .filter(([token]) => token < tokens.length),
  }));
  const inside = new Set(words.flatMap((word) => word.parts.map(([token]) => token)));
  const others = tokens.flatMap((token, i) =>
    inside.has(i)
      ? []
      : [{ text: token.text, side, index: -1, mark: true, parts: [[i, 1]] }],
  );
  const all = marks ? [...words, ...others] : words;
  return all
    .filter((word) => word.parts.length)
    .sort((a, b) => a.parts[0][0] - b.parts[0][0]);
}

// Return the words' weights: summed over a key's tokens, averaged over a query's.
function wordWeights(kind, rows, columns) {
  const view = state.views[kind];
  return rows.map((row) => {
    const total = row.parts.reduce((sum, [, share]) => sum + share, 0);
    return columns.map((column) => {
      let sum = 0;
      for (const [r, a] of row.parts) {
        for (const [c, b] of column.parts) {
          if (!isMasked(kind, r, c))
            sum += (a * b * weightAt(kind, view, r, c)) / total;
        }
      }
      return sum;
    });
  });
}

function wordFigure(kind) {
  const { marks, rows: role } = state.words;
  const [rowSide, columnSide] = SIDES[kind];
  const reads = rowSide === "target" && role === "reads";
  const rows = wordsOf(rowSide, reads, marks === "shown");
  const columns = wordsOf(columnSide, columnSide === "target", marks === "shown");
  const weights = wordWeights(kind, rows, columns);
  const masses = weights.map((row) => Math.max(0, 1 - row.reduce((a, b) => a + b, 0)));
  if (marks === "renormalised") {
    weights.forEach((row, r) =>
      row.forEach((w, c) => {
        row[c] = masses[r] < 1 ? w / (1 - masses[r]) : 0;
      }),
    );
  }
  const gold = kind === "cross" && !reads ? entry().gold : null;
  const map = wordMap(kind, rows, columns, weights, gold);
  if (marks !== "shown") map.note = (r) => fixed(masses[r], 2);
  const figure = matrix(map);
  figure.mark(-1, -1, -1);
  const mean = masses.reduce((a, b) => a + b, 0) / masses.length;
  const notes = [
    make("h3", {}, `${label(kind)}, ${viewName(state.views[kind])}`),
    marks === "shown"
      ? null
      : make(
          "p",
          { id: "hidden-mass" },
          label(`mass_${marks}`, { mass: fixed(mean, 2) }),
        ),
    goldNotes(kind, gold),
  ];
  return [figure.element, make("div", { class: "notes" }, notes)];
}

function wordMap(kind, rows, columns, weights, gold) {
  const wordElement = (word) => {
    const made = {
      class: word.mark ? "token mark" : "token",
      lang: languageOf(word.side),
      title: word.text,
    };
    return [make("bdi", made, word.text)];
  };
  const has = (links, r, c) =>
    links.some(([s, t]) => s === columns[c].index && t === rows[r].index);
  const goldMark = (r, c) =>
    has(gold.sure, r, c) ? "gold" : has(gold.possible, r, c) ? "gold maybe" : null;
  const best = weights.map((row) => {
    const text = row.map((w, c) => (columns[c].mark ? -1 : w));
    return text.indexOf(Math.max(...text));
  });
  const masked = (r, c) =>
    isMasked(kind, rows[r].parts.at(-1)[0], columns[c].parts[0][0]);
  return {
    name: `${label("wordsTitle")}: ${label(kind)}`,
    rows: rows.map((word) => ({ element: wordElement(word), spoken: word.text })),
    columns: columns.map((word) => ({ element: wordElement(word), spoken: word.text })),
    weight: (r, c) => Math.min(1, weights[r][c]),
    masked,
    gold: (r, c) => gold && goldMark(r, c),
    linked: (r, c) => Boolean(gold) && !rows[r].mark && best[r] === c,
    describe: (r, c) =>
      describeCell(rows[r].text, columns[c].text, masked(r, c) ? null : weights[r][c]),
    choose: () => {},
  };
}

function goldNotes(kind, gold) {
  if (kind !== "cross" || !entry().gold) return null;
  if (!gold) return make("p", { class: "quiet" }, label("goldPredicts"));
  const { layer, head } = state.views.cross;
  const rate = entry().gold.error_rates[`${layer}.${head === MEAN ? "mean" : head}`];
  return make(
    "div",
    { class: "gold-notes" },
    make(
      "ul",
      { class: "key" },
      Object.keys(SIGNS).map((sign) =>
        make("li", {}, make("span", { class: `swatch ${sign}` }), ` ${signName(sign)}`),
      ),
    ),
    make(
      "p",
      { id: "error-rate" },
      `${label("errorRate", { view: viewName(state.views.cross) })} `,
      make("strong", {}, fixed(rate, 3)),
    ),
    make("p", { class: "quiet" }, label("errorRateHint")),
  );
}
