  // ---- controls: the model, the placement, depth and width above; every other field in a tab

  const ABOVE = ["placement", "depth", "width"], SLID = ["depth", "width", "tokens"];
  const DEPTHS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128];
  const isModel = () => !!(state.network.like || state.network.config);
  // The size of a field without a change, by which a slider doubles and halves: a model's own, once it is known.
  const ownSize = { of: "", depth: 0, width: 0, tokens: 0 };
  function buildControls() {
    const models = DATA.models.map((name) => [name, name]);
    select($("like"), [["", "The paper’s network (Xiong et al. 2020)"], ...models]);
    for (const option of $("like").options) option.disabled = option.value !== "" && !has({ ...empty(), like: option.value });
    $("file").disabled = !LIVE;
    select($("drawn_by"), DATA.drawers.map((name) => [name, name === "hf" ? "hf, its class in transformers" : name]));
    $("chips").append(...FIELDS.get("placement").choices.map((name) => make("label", { className: "chip" },
      make("input", { type: "radio", name: "placement", value: name, onchange: () => setField("placement", name) }),
      make("span", { className: "spark" }), name)));
    for (const name of ["depth", "width"]) $("sizes_above").append(slider(FIELDS.get(name)));
    $("groups").append(...DATA.groups.map((group) => make("details", {},
      make("summary", {}, group.name.replace(/(?<=[a-z])(?=[A-Z])/g, " "), make("span", { className: "quiet" })),
      make("p", { className: "quiet" }, group.about),
      make("div", { className: "fields" }, ...group.fields.filter((field) => !ABOVE.includes(field.name))
        .map((field) => field.name === "tokens" ? slider(field) : control(field))))));
    $("like").addEventListener("change", () => change((next) => { next.network = { ...empty(), like: $("like").value }; }));
    $("drawn_by").addEventListener("change", () => change((next) => { next.network.drawn_by = $("drawn_by").value; }));
    $("paper").addEventListener("click", () => change((next) => { next.network = empty(); }));
    $("batch").addEventListener("change", () => change((next) => { next.batch = $("batch").value.trim() || "512"; }));
    $("zipf").addEventListener("change", () => change((next) => { next.zipf = $("zipf").value.trim(); }));
    select($("public_run"), [["", "none"], ...DATA.public_runs.map((run, k) => [String(k), run.name])]);
    $("public_run").addEventListener("change", () => {
      const run = DATA.public_runs[$("public_run").value];
      if (run) change((next) => Object.assign(next, { network: ofRun(run), batch: run.question.batch, zipf: run.question.zipf }));
    });
    $("file").addEventListener("change", () => take($("file").files[0]));
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      take(event.dataTransfer.files[0]);
    });
    $("controls").addEventListener("submit", (event) => event.preventDefault());
    $("find").addEventListener("input", findFields);
  }
  function control(field) {
    const id = `field_${field.name}`;
    const input = field.choices.length ? make("select", { id }, ...["", ...field.choices].map((word) =>
      make("option", { value: word }, word))) : make("input", { id, type: "text",
      inputMode: field.kind === "number" ? "decimal" : "text", spellcheck: false });
    input.addEventListener("change", () => setField(field.name, input.value.trim()));
    let waiting = 0;
    if (field.kind === "number") {
      input.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => setField(field.name, input.value.trim()), 250);
      });
      input.addEventListener("keydown", (event) => {
        const times = { ArrowUp: 2, ArrowDown: 0.5 }[event.key], size = Number(input.value || input.placeholder);
        if (!times || ![...SLID, "vocab"].includes(field.name) || !(size > 0)) return;
        event.preventDefault();
        setField(field.name, String(Math.max(1, Math.round(size * times))));
      });
    }
    const title = ABOVE.includes(field.name) ? field.help : `${field.name}: ${field.help}`;
    return make("label", { className: "field", title: field.help }, title, input);
  }
  // A field with a slider that steps through sizes as on a logarithmic axis.
  function slider(field) {
    const range = make("input", { type: "range", id: `slide_${field.name}`, min: 0, step: 1, ariaLabel: `${field.name}, slider` });
    const label = control(field), given = label.querySelector("input");
    let waiting = 0;
    const size = () => String(steps(field.name)[range.value]);
    range.addEventListener("input", () => {
      given.value = size();
      range.setAttribute("aria-valuetext", size());
      clearTimeout(waiting);
      if (took < FAST) waiting = setTimeout(() => setField(field.name, size()), 60);
    });
    range.addEventListener("change", () => {
      clearTimeout(waiting);
      setField(field.name, size());
    });
    return make("div", { className: "slider" }, label, range);
  }
  // In a file only those that it has an answer to.
  function steps(name) {
    const own = ownSize[name] || Number(FIELDS.get(name).default);
    const sizes = name === "depth" ? [...new Set([...DEPTHS, own])].sort((a, b) => a - b)
      : Array.from({ length: name === "width" ? 10 : 13 }, (_, k) => name === "width" ? own * 2 ** (k - 5) : 2 ** k).filter(Number.isInteger);
    return LIVE ? sizes : sizes.filter((size) => has(withField(state.network, name, size === own && isModel() ? "" : String(size))));
  }
  async function take(file) {
    if (!file) return;
    if (file.size > 2 ** 20) return say("A config.json has at most 1 MB; this file is larger.");
    try {
      const config = JSON.stringify(JSON.parse(await file.text()));
      change((next) => { next.network = { ...empty(), config }; });
    } catch {
      say("The file must be a model's config.json, and it is no JSON.");
    }
  }
  // The fields whose name or meaning has a word.
  function findFields() {
    const word = $("find").value.trim().toLowerCase();
    for (const group of $("groups").children) {
      const found = [...group.querySelectorAll(".field")].filter((label) => {
        label.parentElement.classList.contains("slider") ? label.parentElement.hidden = !label.title.toLowerCase().includes(word) && !label.firstChild.textContent.includes(word)
          : label.hidden = !label.firstChild.textContent.toLowerCase().includes(word);
        return !label.hidden && !label.parentElement.hidden;
      });
      group.hidden = !found.length;
      if (word) group.open = found.length > 0;
    }
  }
  const isChanged = ({ like, config, fields }, field) => fields.has(field.name) && (!!like || !!config || fields.get(field.name) !== field.default);
  function showControls() {
    const { like, config, drawn_by, fields } = state.network;
    const stack = isCurrent("predict") ? networks[0].content.stack : null;
    const model = JSON.stringify([like, config, drawn_by]);
    if (ownSize.of !== model) Object.assign(ownSize, { of: model, depth: 0, width: 0, tokens: 0 });
    for (const name of SLID) if (stack && isModel() && !fields.has(name)) ownSize[name] = Number(stack[name] ?? FIELDS.get(name).default);
    $("like").value = like;
    $("drawn_by").value = drawn_by;
    $("drawn").hidden = !isModel();
    $("configured").hidden = !config;
    if (!config) $("file").value = "";
    $("configured").textContent = config ? "Your config.json describes the network." : "";
    for (const [id, value] of [["batch", state.batch], ["zipf", state.zipf]]) {
      if (!isTyped || document.activeElement !== $(id)) $(id).value = value;
    }
    const placement = fields.get("placement") ?? (stack || !isModel() ? stack?.placement ?? FIELDS.get("placement").default : "");
    for (const chip of $("chips").querySelectorAll("input")) {
      chip.checked = chip.value === placement;
      chip.disabled = !chip.checked && !has(withField(state.network, "placement", chip.value));
    }
    for (const field of FIELDS.values()) showField(field, stack);
    for (const name of SLID) {
      const range = $(`slide_${name}`), sizes = steps(name), size = Number($(`field_${name}`).value || $(`field_${name}`).placeholder);
      range.max = Math.max(0, sizes.length - 1);
      range.disabled = sizes.length < 2;
      const nearest = sizes.reduce((best, each, k) => Math.abs(Math.log(each / size)) < Math.abs(Math.log(sizes[best] / size)) ? k : best, 0);
      if (document.activeElement !== range) range.value = nearest;
      range.setAttribute("aria-valuetext", String(size));
    }
    const changed = [...FIELDS.values()].filter((field) => isChanged(state.network, field));
    $("changed").replaceChildren(...changed.map((field) => make("button", { type: "button", title: `Leave ${field.name} out`,
      onclick: () => setField(field.name, "") }, `${field.name} = ${fields.get(field.name)} ×`)));
    DATA.groups.forEach((group, k) => {
      const count = group.fields.filter((field) => changed.includes(field)).length;
      $("groups").children[k].querySelector("span").textContent = count ? ` — ${count} changed` : "";
      if (count) $("groups").children[k].open = true;
    });
  }
  function showField(field, stack) {
    const input = $(`field_${field.name}`), { fields } = state.network;
    if (!input) return;
    const value = stack && field.name in stack ? stack[field.name] ?? "own" : stack || !isModel() ? field.default : "", shown = typeof value === "number" ? number(value, 7) : String(value);
    const own = fields.has(field.name) ? "" : isModel() ? " (the model’s)" : " (the paper’s)", given = fields.get(field.name) ?? "";
    if (!field.choices.length) set(input, "placeholder", shown);
    else set(input.options[0], "textContent", shown + own);
    if (!LIVE) for (const option of input.options ?? []) option.disabled = option.value !== given && !has(withField(state.network, field.name, option.value));
    if (!isTyped || document.activeElement !== input || input.value === "" || field.choices.length) set(input, "value", given);
    input.parentElement.classList.toggle("changed", isChanged(state.network, field));
  }
  // Every placement as a small picture: the matrix of the large one over the layers, of what is known or soon is.
  const alike = (name) => $("chips").querySelector("input:checked")?.value === name ? state.network : withField(state.network, "placement", name);
  function drawSparks() {
    const quantity = chosenMatrices()[0], curves = new Map();
    for (const chip of $("chips").querySelectorAll("input")) {
      const one = ready("predict", alike(chip.value))?.series.find((each) => each.quantity === quantity);
      if (one) curves.set(chip.value, one.predicted);
    }
    const all = [...curves.values()].flat().filter((value) => value > 0).map(Math.log);
    const low = Math.min(...all), span = Math.max(...all) - low || 1;
    for (const chip of $("chips").querySelectorAll("input")) {
      const values = curves.get(chip.value), root = shape("svg", { viewBox: "0 0 64 26", "aria-hidden": "true" });
      const points = values?.map((value, k) => [values.length > 1 ? 2 + (60 * k) / (values.length - 1) : 32, 23 - (20 * (Math.log(value) - low)) / span]).filter(([, y]) => isFinite(y));
      if (points) root.append(shape("polyline", { points: points.map((each) => each.map((value) => value.toFixed(1)).join()).join(" "), fill: "none", stroke: "currentColor", "stroke-width": 2 }));
      chip.nextElementSibling.replaceChildren(root);
    }
  }
  async function askSparks(signal) {
    if (!LIVE || took >= FAST) return;
    for (const { value } of $("chips").querySelectorAll("input")) {
      try {
        if (!ready("predict", alike(value))) await ask("predict", alike(value), { signal });
      } catch { /* theory has no rule for it here */ }
      if (signal.aborted) return;
      drawSparks();
    }
  }

