// What the model answered when the page was made (explain/probes.py), and about the page.

// ----------------------------------------------------------------------------- what if

section(
  "what-if",
  () => [state.entry],
  () => {
    const title = make("h2", {}, label("whatIfTitle"));
    const asked = entry().what_if;
    if (!asked) return [title, make("p", { class: "quiet" }, label("noWhatIf"))];
    const largest = Math.max(1e-9, ...asked.heads.map((head) => Math.abs(head.change)));
    return [
      title,
      make("p", { class: "quiet" }, label("whatIfHint")),
      make(
        "p",
        {},
        label("allOn"),
        " ",
        make("bdi", { lang: languageOf("target"), class: "with-all" }, asked.translation),
        asked.complete ? "" : " …",
      ),
      make(
        "div",
        { class: "panels" },
        KINDS.map((kind) => whatIfTable(kind, asked, largest)),
      ),
    ];
  },
);

function whatIfTable(kind, asked, largest) {
  const rows = asked.heads
    .filter((head) => head.kind === kind)
    .map((found) => {
      const bar = make("span", { class: found.change < 0 ? "fill" : "fill up" });
      bar.style.width = `${(100 * Math.abs(found.change)) / largest}%`;
      const view = { layer: found.layer, head: found.head };
      const changed =
        found.translation !== asked.translation || found.complete !== asked.complete;
      return make(
        "tr",
        {},
        make(
          "th",
          { scope: "row" },
          make(
            "button",
            {
              type: "button",
              class: "plain",
              title: viewName(view),
              onclick: () => {
                const choose = () => chooseView(kind, found.layer, found.head);
                show(choose, spokenCell);
              },
            },
            `${found.layer + 1}.${found.head + 1}`,
          ),
        ),
        make(
          "td",
          { class: "number" },
          `${found.change >= 0.005 ? "+" : ""}${fixed(found.change, 2)}`,
        ),
        make("td", { class: "change" }, make("span", { class: "well" }, bar)),
        make(
          "td",
          {},
          changed
            ? changedText(found, asked.translation)
            : make("span", { class: "quiet" }, label("same")),
        ),
      );
    });
  const heads = ["whatIfHead", "whatIfChange", null, "whatIfText"].map((name) =>
    name ? make("th", { scope: "col" }, label(name)) : make("td"),
  );
  return make(
    "article",
    { class: "panel" },
    make("h3", {}, label(kind)),
    make(
      "table",
      { class: "what-if" },
      make("thead", {}, make("tr", {}, heads)),
      make("tbody", {}, rows),
    ),
  );
}

// A translation with the stretch that differs from the usual one marked; where nothing
// stands in its place, what is missing is struck out.
function changedText({ translation, complete }, usual) {
  const [now, before] = [[...translation], [...usual]];
  const most = Math.min(now.length, before.length);
  let start = 0;
  while (start < most && now[start] === before[start]) start++;
  let end = 0;
  while (end < most - start && now.at(-1 - end) === before.at(-1 - end)) end++;
  const part = (letters, from, to) => letters.slice(from, to).join("");
  const added = part(now, start, now.length - end);
  const missing = part(before, start, before.length - end);
  return make(
    "bdi",
    { lang: languageOf("target") },
    part(now, 0, start),
    added ? make("mark", {}, added) : make("del", {}, missing),
    part(now, now.length - end, now.length),
    complete ? "" : " …",
  );
}

// -------------------------------------------------------------------------------- lens

section(
  "lens",
  () => [state.entry, state.step],
  () => {
    const title = make("h2", {}, label("lensTitle"));
    const layers = entry().lens;
    if (!layers.length) return [title, make("p", { class: "quiet" }, label("noLens"))];
    return [
      title,
      make("p", { class: "quiet" }, label("lensHint")),
      make("p", { class: "lead" }, ...rowElement(state.step)),
      make(
        "ol",
        { class: "lens" },
        layers.map((rows, layer) =>
          make(
            "li",
            {},
            make(
              "h3",
              {},
              label("layer", { layer: layer + 1 }),
              layer === layers.length - 1
                ? make("span", { class: "quiet" }, ` ${label("lastLayer")}`)
                : null,
            ),
            make("ol", { class: "candidates" }, rows[state.step].map(candidateRow)),
          ),
        ),
      ),
    ];
  },
);

// ------------------------------------------------------------------------------- about

section(
  "about",
  () => [state.entry],
  () => {
    const { name, sha256, config } = model();
    const shape = ["width", "heads", "encoder_layers", "decoder_layers"]
      .filter((key) => config[key] !== undefined)
      .map((key) => `${label(`config_${key}`)} ${config[key]}`)
      .join(" · ");
    return [
      make("h2", {}, label("aboutTitle")),
      make("p", {}, label("howChecked")),
      leftOut(),
      make(
        "p",
        {},
        label("madeBy"),
        " ",
        make("bdi", {}, name),
        shape ? ` · ${shape}` : "",
        sha256 ? ` · SHA-256 ${sha256.slice(0, 12)}` : "",
      ),
      make("p", { class: "quiet" }, label("offline")),
    ].filter(Boolean);
  },
);

// Name what this page leaves out to stay small.
function leftOut() {
  const names = entry().left_out.map(({ what }) => label(`left_${what}`));
  const missing = model().left_out;
  if (missing.length) {
    const maps = missing.map((place) => {
      const [kind, layer] = place.split(".");
      return `${label(kind)} ${label("layer", { layer: Number(layer) + 1 })}`;
    });
    names.push(label("left_projections", { maps: maps.join(", ") }));
  }
  if (Object.keys(model().projections).length) {
    const digits = Object.values(model().projections).map((p) => p.w_q.digits);
    const bits = [...new Set([Math.min(...digits) * 6, Math.max(...digits) * 6])];
    names.push(label("projections_rounded", { bits: bits.join("–") }));
  }
  if (!names.length) return null;
  return make(
    "div",
    { id: "left-out" },
    make("h3", {}, label("leftOut")),
    make(
      "ul",
      {},
      names.map((name) => make("li", {}, named(name))),
    ),
  );
}
