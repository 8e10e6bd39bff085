// The page's sections. Each has: id; key(), what its content depends on; build(), the
// content; and where needed update(), which follows every change of state.

const SECTIONS = [];

function section(id, key, build, update = () => {}) {
  SECTIONS.push({ id, key, build, update, last: null });
}

function option(value, text, chosen) {
  return make("option", { value, selected: chosen }, text);
}

// A group of buttons of which one is on. `choices` is a list of [value, text].
function choices(name, list, current, choose) {
  const buttons = list.map(([value, text, lang]) =>
    make(
      "button",
      {
        type: "button",
        lang,
        "aria-pressed": value === current(),
        // The button itself says what it has become.
        onclick: () => show(() => choose(value), () => ""),
      },
      text,
    ),
  );
  const group = make(
    "div",
    { class: "choices", role: "group", "aria-label": name },
    buttons,
  );
  group.follow = () =>
    list.forEach(([value], i) =>
      buttons[i].setAttribute("aria-pressed", value === current()),
    );
  return group;
}

const followChoices = (id) =>
  document.querySelectorAll(`#${id} .choices`).forEach((group) => group.follow?.());

// ------------------------------------------------------------------------------- top

section(
  "top",
  () => [state.theme],
  () => [
    make("p", { class: "brand" }, label("brand")),
    make(
      "div",
      { class: "switches" },
      choices(
        label("language"),
        [
          ["en", "English", "en"],
          ["ja", "日本語", "ja"],
          ["ko", "한국어", "ko"],
        ],
        () => state.language,
        (value) => {
          state.language = value;
        },
      ),
      choices(
        label("theme"),
        [
          ["auto", label("auto")],
          ["light", label("light")],
          ["dark", label("dark")],
        ],
        () => state.theme,
        (value) => {
          state.theme = value;
        },
      ),
    ),
  ],
);

section(
  "sentence",
  () => [state.entry],
  () => {
    const [source, target] = entry().text;
    const chooser =
      DATA.entries.length < 2
        ? null
        : make(
            "label",
            { class: "chooser" },
            `${label("sentence")} `,
            make(
              "select",
              {
                onchange: (event) => show(() => openEntry(Number(event.target.value))),
              },
              DATA.entries.map((e, i) => option(i, e.text[0], i === state.entry)),
            ),
          );
    return [
      chooser,
      make(
        "h1",
        { class: source.length > 90 ? "long" : "" },
        make("bdi", { lang: languageOf("source") }, source),
        make("bdi", { lang: languageOf("target") }, target),
      ),
      make("p", { class: "intro" }, label("intro")),
      allBadge(),
    ];
  },
);

// What recomputing every weight of the sentence found.
function allBadge() {
  const { count, difference, wrong } = checkAll();
  if (!count)
    return make("p", { class: "badge none", id: "badge" }, label("unchecked"));
  if (!wrong.length) {
    const text = label("allGood", {
      count: counted(count),
      difference: tiny(difference),
    });
    return make("p", { class: "badge good", id: "badge" }, `✓ ${text}`);
  }
  const [kind, layer, head, row, column] = wrong[0];
  const go = () =>
    show(() => {
      chooseView(kind, layer, head);
      chooseCell(kind, row, column);
    });
  return make(
    "p",
    { class: "badge bad", id: "badge" },
    `✗ ${label("allBad", { wrong: counted(wrong.length), count: counted(count) })} `,
    make(
      "button",
      { type: "button", onclick: go },
      `${label(kind)}, ${viewName({ layer, head })}: ${rowSpoken(SIDES[kind][0], row)}`,
    ),
  );
}

// ------------------------------------------------------------------------------- steps

section(
  "bar",
  () => [state.entry],
  () => [
    make(
      "button",
      {
        type: "button",
        class: "move",
        "aria-label": label("previous"),
        onclick: () => moveStep(-1),
      },
      "←",
    ),
    make("p", { class: "now" }),
    make(
      "button",
      {
        type: "button",
        class: "move",
        "aria-label": label("next"),
        onclick: () => moveStep(1),
      },
      "→",
    ),
  ],
  (element) => {
    const { step, source } = state;
    element
      .querySelector(".now")
      .replaceChildren(
        make("span", { class: "quiet" }, `${step + 1}/${entry().reads.length} `),
        ...rowElement(step),
        make(
          "span",
          { class: "wide-only" },
          make("span", { class: "quiet" }, ` ${label("attendsTo")} `),
          tokenElement(entry().source[source], "source"),
          ` ${fixed(weightAt("cross", state.views.cross, step, source), 2)} `,
          make("span", { class: "quiet" }, viewName(state.views.cross)),
        ),
      );
    // A disabled button would lose the focus.
    element.firstChild.setAttribute("aria-disabled", step === 0);
    element.lastChild.setAttribute("aria-disabled", step === entry().reads.length - 1);
  },
);

const moveStep = (by) => show(() => chooseStep(state.step + by));

function glossElement(gloss) {
  if (!gloss) return null;
  return make(
    "span",
    { class: "gloss", title: gloss.word },
    gloss.reading ? make("span", { lang: "ja" }, gloss.reading) : null,
    gloss.meaning ? make("span", { lang: "en" }, gloss.meaning) : null,
  );
}

section(
  "steps",
  () => [state.entry],
  () => [
    make("h2", {}, label("stepsTitle")),
    make("p", { class: "quiet" }, label("stepsHint")),
    make(
      "div",
      { class: "strip", role: "group", "aria-label": label("stepsTitle") },
      entry().reads.map((_, step) => stepButton(step)),
    ),
  ],
  (element) => {
    element.querySelectorAll(".strip > button").forEach((button, step) => {
      const chosen = step === state.step;
      button.setAttribute("aria-current", chosen ? "step" : "false");
      button.tabIndex = chosen ? 0 : -1;
      if (chosen) keepInView(button);
    });
  },
);

function stepButton(step) {
  return make(
    "button",
    {
      type: "button",
      class: "step",
      "aria-label": `${step + 1}: ${rowSpoken("target", step)}`,
      onclick: () => show(() => chooseStep(step)),
    },
    make("span", { class: "reads" }, tokenElement(entry().reads[step], "target")),
    make("span", { class: "to", "aria-hidden": true }, "↓"),
    make("span", { class: "predicts" }, tokenElement(entry().predicts[step], "target")),
    glossElement(entry().glosses[step]),
  );
}

// Scroll a strip, and nothing else, until a button of it is in view.
function keepInView(button) {
  const strip = button.parentElement;
  if (!strip) return;
  const left = button.offsetLeft - strip.offsetLeft;
  if (left < strip.scrollLeft) strip.scrollLeft = left - 20;
  const over = left + button.offsetWidth - strip.scrollLeft - strip.clientWidth;
  if (over > 0) strip.scrollLeft += over + 20;
}

const crossKey = () => [
  state.entry,
  state.step,
  state.source,
  JSON.stringify(state.views.cross),
];

section("row", crossKey, () => {
  const { step } = state;
  const bars = entry().source.map((token, s) => {
    const weight = weightAt("cross", state.views.cross, step, s);
    const fill = make("span", { class: "fill" });
    fill.style.height = `${100 * weight}%`;
    return make(
      "button",
      {
        type: "button",
        class: "weight-bar",
        "aria-pressed": s === state.source,
        "aria-label": `${spoken(token)}: ${fixed(weight, 3)}`,
        title: tooltip(token),
        onclick: () =>
          show(() => chooseSource(s, !(state.pinned && s === state.source))),
      },
      make("span", { class: "number" }, fixed(weight, 2)),
      make("span", { class: "well" }, fill),
      tokenElement(token, "source"),
    );
  });
  requestAnimationFrame(() => keepInView(bars[state.source]));
  return [
    make("h2", {}, label(`rowTitle_${languageOf("source")}`)),
    make(
      "p",
      { class: "quiet" },
      label("rowHint", { view: viewName(state.views.cross) }),
    ),
    make(
      "div",
      { class: "reading" },
      labelled("reads", entry().reads[step], entry().glosses[step - 1]),
      make("span", { class: "to", "aria-hidden": true }, "→"),
      labelled("predicts", entry().predicts[step], entry().glosses[step]),
    ),
    make("div", { class: "bars" }, bars),
  ];
});

function labelled(name, token, gloss) {
  return make(
    "div",
    {},
    make("span", { class: "caption" }, label(name)),
    tokenElement(token, "target"),
    glossElement(gloss),
  );
}

section(
  "next",
  () => [state.entry, state.step],
  () => {
    const { step } = state;
    const rows = entry().candidates[step];
    const written = entry().predicts[step];
    const probability = chance(Math.exp(entry().log_probs[step]));
    const parts = [make("h2", {}, label("nextTitle"))];
    if (!rows) {
      return [
        ...parts,
        make(
          "p",
          {},
          label("writtenOnly"),
          " ",
          tokenElement(written, "target"),
          ` ${probability}`,
        ),
      ];
    }
    parts.push(make("p", { class: "quiet" }, label("nextHint")));
    parts.push(make("ol", { class: "candidates" }, rows.map(candidateRow)));
    if (!rows.some(([token]) => token.raw === rawOf(written))) {
      parts.push(
        make(
          "p",
          { class: "quiet" },
          label("writtenInstead"),
          " ",
          tokenElement(written, "target"),
          ` ${probability}`,
        ),
      );
    }
    return parts;
  },
);

// The one piece of a shown token; a character's first piece shows them all.
const rawOf = (token) => token.raw.split(" ")[0];

function candidateRow([token, probability]) {
  const bar = make("span", { class: "fill" });
  bar.style.width = `${100 * probability}%`;
  const written = token.raw === rawOf(entry().predicts[state.step]);
  return make(
    "li",
    { class: written ? "written" : "" },
    tokenElement(token, "target"),
    make("span", { class: "well" }, bar),
    make("span", { class: "number" }, chance(probability)),
  );
}
