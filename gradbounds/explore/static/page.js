"use strict";
// What is data is only ever set as text. The address holds the whole state: a change sets it, and it sets the page.
(() => {
  const $ = (id) => document.getElementById(id);
  const DATA = JSON.parse($("data").textContent);
  const LIVE = DATA.answers === null;
  const FIELDS = new Map(DATA.groups.flatMap((group) => group.fields.map((field) => [field.name, field])));
  const START = DATA.run ? new URLSearchParams(DATA.run.cells[0].fields).toString() || "placement=post" : "like=gpt2";
  const LONGEST = 30000;
  const DISTINCT = "distinct";
  const MOST_PINS = DATA.curves.length - 1;
  const DASHES = [[], [8, 5], [2, 4], [10, 4, 2, 4]];
  // An answer so fast may be followed by those of other sizes, unasked.
  const FAST = 500;
  // Milliseconds after a curve in which the next change may come before anything else is asked of the server.
  const PAUSE = 100;
  const kept = new Map();
  const hidden = new Set();
  const charts = new Map(), widths = new Map();
  // What each part of the page answers, by the key of its question.
  const answered = {};
  // The address that a control has set, and whether the page shows it: then the field with the caret is left alone.
  let ownAddress = null, isTyped = false, focused = null;
  let state = null, networks = [], batchOf = null, sizesOf = [], running = null, stepping = null;
  // What was drawn or lies in the run folder, of which network, and what draws now.
  let sampled = null, sampledOf = "", sampling = null, drawnSeed = null;

  // ---- elements

  function make(tag, attributes = {}, ...inside) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...inside);
    return element;
  }
  const lines = (id, texts, tag = "li") => $(id).replaceChildren(...texts.map((text) => make(tag, {}, text)));
  const number = (value, digits = 4) => {
    if (value === null || value === undefined) return "–";
    const rounded = Number(Number(value).toPrecision(digits)), size = Math.abs(rounded);
    return size && (size < 1e-4 || size >= 1e6) ? rounded.toExponential() : String(rounded);
  };
  // A table that is folded away is filled when it is opened: `content` gives its heads and rows.
  function table(id, content) {
    const details = $(id).closest("details");
    $(id).replaceChildren();
    details.ontoggle = () => details.open && !$(id).hasChildNodes() && fillTable(id, ...content());
    details.ontoggle();
  }
  function fillTable(id, heads, rows) {
    const cells = (row) => row.map((cell, k) => make(k ? "td" : "th", k ? {} : { scope: "row" }, cell));
    $(id).replaceChildren(make("table", { className: "numbers" },
      make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row))))));
  }
  // What is there already is not set again, which would cost a layout.
  const set = (element, name, value) => { if (element[name] !== value) element[name] = value; };
  function say(text) {
    $("message").replaceChildren(text, ...longer(text), ...without(text));
    $("message").hidden = !text;
  }
  // A button where theory has an answer that takes longer than it may, and no more memory: by the command's own words.
  const LATE = /takes? about ([\d.]+) (s|min) [^;]*, more than the [^;]* of --max-time(?! and)/;
  function longer(text) {
    const [, time, unit] = (LIVE && text.match(LATE)) || [], seconds = Math.ceil(2 * time * (unit === "min" ? 60 : 1));
    if (!(seconds <= 600)) return [];
    return [" ", make("button", { type: "button", onclick: () => change((next) => { next.max_time = `${seconds}s`; }) },
      `Take longer (about ${time} ${unit})`)];
  }
  // A button for the flag of which a message about a config.json says that it leaves a key out.
  function without(text) {
    const [, name] = (state?.network.config && text.match(/--ignore (\w+) leaves it out/)) || [];
    if (!name || !Object.hasOwn(JSON.parse(state.network.config), name)) return [];
    return [" ", make("button", { type: "button", onclick: () => change((next) => {
      const { [name]: _, ...others } = JSON.parse(next.network.config);
      next.network.config = JSON.stringify(others);
    }) }, `Leave ${name} out`)];
  }
  // Says every second how many have passed, until what it returns is called.
  function clock(write) {
    const begun = performance.now(), timer = setInterval(() => write(`${Math.round((performance.now() - begun) / 1000)} s`), 1000);
    return () => clearInterval(timer);
  }

  // ---- the state and its address

  const empty = () => ({ like: "", config: "", drawn_by: "hf", fields: new Map() });
  function readNetwork(params) {
    const network = empty();
    for (const [name, value] of params) {
      if (name === "like" || name === "drawn_by") network[name] = value;
      else if (name === "config") {
        JSON.parse(value);
        network.config = value;
      } else if (FIELDS.has(name)) network.fields.set(name, value);
      else if (!["batch", "zipf", "max_time", "pin", "name"].includes(name)) throw new Error(`no field is called ${name.slice(0, 60)}`);
    }
    return network;
  }
  function writeNetwork(network) {
    const params = new URLSearchParams();
    for (const name of ["like", "config"]) if (network[name]) params.set(name, network[name]);
    if (network.drawn_by !== "hf") params.set("drawn_by", network.drawn_by);
    for (const [name, value] of network.fields) params.set(name, value);
    return params;
  }
  function read(address) {
    if (address.length > LONGEST) throw new Error(`it has ${address.length} letters, and at most ${LONGEST} are read`);
    const params = new URLSearchParams(address || START);
    const pins = params.getAll("pin").slice(0, MOST_PINS).map((text) => {
      const inner = new URLSearchParams(text);
      return { network: readNetwork(inner), name: (inner.get("name") || "pinned").slice(0, 40) };
    });
    return { network: readNetwork(params), batch: params.get("batch") || "512", zipf: params.get("zipf") || "",
      max_time: params.get("max_time") || "", pins };
  }
  function write(next) {
    const params = writeNetwork(next.network);
    if (next.batch !== "512") params.set("batch", next.batch);
    if (next.zipf) params.set("zipf", next.zipf);
    if (next.max_time) params.set("max_time", next.max_time);
    for (const pin of next.pins) {
      const inner = writeNetwork(pin.network);
      inner.set("name", pin.name);
      params.append("pin", inner.toString());
    }
    return params.toString() || "placement=post";
  }
  const now = () => location.hash.slice(1);
  function change(edit) {
    const next = { network: { ...state.network, fields: new Map(state.network.fields) }, batch: state.batch,
      zipf: state.zipf, max_time: state.max_time, pins: [...state.pins] };
    edit(next);
    const address = write(next);
    if (address.length > LONGEST) return say(`This is too long for an address of ${LONGEST} letters.`);
    if (address !== now()) location.hash = ownAddress = address;
  }
  function withField(network, name, value) {
    const fields = new Map(network.fields);
    const plain = !network.like && !network.config && value === FIELDS.get(name).default;
    if (value === "" || plain) fields.delete(name);
    else fields.set(name, value);
    return { ...network, fields };
  }
  const setField = (name, value) => change((next) => { next.network = withField(next.network, name, value); });

  // ---- questions

  function question(network) {
    const asked = { fields: Object.fromEntries(network.fields), drawn_by: network.drawn_by };
    if (network.like) asked.like = network.like;
    if (network.config) asked.config = JSON.parse(network.config);
    if (state.max_time) asked.max_time = state.max_time;
    return asked;
  }
  function key(kind, network, batch, zipf) {
    const params = [...writeNetwork(network)];
    const shown = params.filter(([name, value]) => network.like || FIELDS.get(name)?.default !== value);
    if (kind === "batch") shown.push(["batch", batch], ...(zipf ? [["zipf", zipf]] : []), ...(LIVE && state.max_time ? [["max_time", state.max_time]] : []));
    return `${kind}?${shown.map(([name, value]) => `${name}=${value}`).sort().join("&")}`;
  }
  const wanted = (kind) => [key(kind === "sizes" ? "depth" : kind, state.network, state.batch, state.zipf),
    ...(kind === "batch" ? [] : state.pins.map((pin) => key("pin", pin.network)))].join("&");
  const isCurrent = (kind) => answered[kind] === wanted(kind);
  // What does not answer the question of the address is dimmed and cannot be used; `kind` has been answered now.
  function mark(kind) {
    if (kind) answered[kind] = wanted(kind);
    for (const part of document.querySelectorAll("[data-of]")) {
      const isStale = !isCurrent(part.dataset.of);
      if (isStale && part.contains(document.activeElement)) focused = document.activeElement;
      part.inert = isStale;
      part.classList.toggle("stale", isStale);
    }
    if (!focused || focused.closest("[inert]")) return;
    if (document.activeElement === document.body) focused.focus({ preventScroll: true });
    focused = null;
  }
  // Whether there is an answer: a file has some, and a server tries.
  const has = (network) => LIVE || Object.hasOwn(DATA.answers.given, key("predict", network));
  async function post(kind, asked, signal) {
    const reply = await fetch(`api/${kind}`, { method: "POST", signal, headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked) });
    if (!reply.ok) throw new Error((await reply.json()).error);
    return reply;
  }
  async function ask(kind, network, { batch, zipf, signal } = {}) {
    const name = key(kind, network, batch, zipf);
    if (kept.has(name)) return kept.get(name); // refusals are not kept: with more time they are asked again
    let content;
    if (LIVE) {
      const asked = question(network);
      if (kind === "batch") Object.assign(asked, { batch }, zipf ? { zipf } : {});
      content = await (await post(kind, asked, signal)).json();
    } else {
      if (!Object.hasOwn(DATA.answers.given, name)) {
        throw new Error(`This file has no answer to that. It has ${DATA.answers.about} For this, type the command: ` +
          command(network, kind, batch, zipf));
      }
      content = DATA.answers.given[name];
      if (content.error) throw new Error(content.error);
    }
    if (kept.size > 60) kept.delete(kept.keys().next().value);
    kept.set(name, content);
    return content;
  }
  const STEPPED = { sgd: "SGD", adam: "Adam" };
  const quoted = (word) => /^[\w.,:=+/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
  function command(network, kind, batch, zipf) {
    const words = ["gradbounds", "predict"];
    if (network.like) words.push("--like", network.like);
    if (network.config) words.push("--config", "config.json");
    if (network.drawn_by !== "hf") words.push("--drawn-by", network.drawn_by);
    for (const [name, value] of network.fields) words.push(`--${name.replaceAll("_", "-")}`, value);
    if (kind === "batch") {
      // The command may have the time for more tokens than this page took.
      if (batchOf?.longer && network === state.network && !network.fields.has("tokens")) words.push("--tokens", String(batchOf.tokens));
      words.push("--batch", batch, ...(zipf ? ["--text", isNaN(zipf) ? zipf : `zipf:${zipf}`] : []));
    }
    if (kind === "first_step") words.push("--first-step", "--optimizer", ...Object.keys(STEPPED));
    if (kind === "depth" || kind === "width") words.push("--compare", `${kind}=${2 * (networks[0]?.content.stack[kind] ?? FIELDS.get(kind).default)}`);
    if (state?.max_time) words.push("--max-time", state.max_time);
    return words.map(quoted).join(" ");
  }
  // The fields in which a pinned network differs; null where it is no change of fields of this one.
  function changesOf(pin) {
    const { network } = state, isModel = network.like || network.config;
    if (["like", "config", "drawn_by"].some((name) => pin[name] !== network[name])) return null;
    const names = [...new Set([...network.fields.keys(), ...pin.fields.keys()])];
    const changed = names.filter((name) => network.fields.get(name) !== pin.fields.get(name));
    if (isModel && changed.some((name) => !pin.fields.has(name))) return null;
    return changed.map((name) => `${name}=${pin.fields.get(name) ?? FIELDS.get(name).default}`);
  }
  // This network and the pinned ones: beside it where they change its fields, else by a line of their own.
  function commands() {
    const changes = state.pins.map((pin) => changesOf(pin.network)), beside = changes.filter((each) => each?.length);
    const words = beside.flatMap((each, k) => k ? ["+", ...each] : each).map(quoted);
    return [[command(state.network), ...(words.length ? ["--compare", ...words] : [])].join(" "),
      ...state.pins.filter((pin, k) => !changes[k]).map((pin) => command(pin.network))].join("\n");
  }

  // ---- controls

  function select(element, choices) {
    element.replaceChildren(...choices.map(([value, text]) => make("option", { value }, text)));
  }
  function buildControls() {
    select($("like"), [["", "none: the fields below alone"], ...DATA.models.map((name) => [name, name])]);
    for (const option of $("like").options) option.disabled = option.value !== "" && !has({ ...empty(), like: option.value });
    $("file").disabled = !LIVE;
    select($("drawn_by"), DATA.drawers.map((name) => [name, name === "hf" ? "hf, its class in transformers" : name]));
    $("chips").append(...FIELDS.get("placement").choices.map((name) => make("label", { className: "chip" },
      make("input", { type: "radio", name: "placement", value: name, onchange: () => setField("placement", name) }), name)));
    $("groups").append(...DATA.groups.map((group, k) => make("details", { open: k === 0 && innerWidth > 860 },
      make("summary", {}, group.name.replace(/(?<=[a-z])(?=[A-Z])/g, " "), make("span", { className: "quiet" })),
      make("p", { className: "quiet" }, group.about),
      ...group.fields.filter((field) => field.name !== "placement").map(control))));
    $("like").addEventListener("change", () => change((next) => { next.network = { ...empty(), like: $("like").value }; }));
    $("drawn_by").addEventListener("change", () => change((next) => { next.network.drawn_by = $("drawn_by").value; }));
    $("paper").addEventListener("click", () => change((next) => { next.network = empty(); }));
    $("batch").addEventListener("change", () => change((next) => { next.batch = $("batch").value.trim() || "512"; }));
    $("tokens").addEventListener("change", () => setField("tokens", $("tokens").value.trim()));
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
        if (!times || !["width", "depth", "tokens", "vocab"].includes(field.name) || !(size > 0)) return;
        event.preventDefault();
        setField(field.name, String(Math.max(1, Math.round(size * times))));
      });
    }
    return make("label", { className: "field", title: field.help }, `${field.name}: ${field.help}`, input);
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
  const isChanged = ({ like, config, fields }, field) => fields.has(field.name) && (!!like || !!config || fields.get(field.name) !== field.default);
  function showControls() {
    const { like, config, drawn_by, fields } = state.network, isModel = like || config;
    const stack = isCurrent("predict") ? networks[0].content.stack : null;
    $("like").value = like;
    $("drawn_by").value = drawn_by;
    $("drawn").hidden = !like && !config;
    $("configured").hidden = !config;
    if (!config) $("file").value = "";
    $("configured").textContent = config ? `A config.json of ${config.length} letters describes the network.` : "";
    for (const [id, value] of [["batch", state.batch], ["zipf", state.zipf], ["tokens", fields.get("tokens") ?? (isModel ? "" : FIELDS.get("tokens").default)]]) {
      if (!isTyped || document.activeElement !== $(id)) $(id).value = value;
    }
    const placement = fields.get("placement") ?? (stack || !isModel ? stack?.placement ?? FIELDS.get("placement").default : "");
    for (const chip of $("chips").querySelectorAll("input")) {
      chip.checked = chip.value === placement;
      chip.disabled = !chip.checked && !has(withField(state.network, "placement", chip.value));
    }
    for (const field of FIELDS.values()) {
      const input = $(`field_${field.name}`);
      if (!input) continue;
      const value = stack && field.name in stack ? stack[field.name] ?? "own" : stack || !isModel ? field.default : "", shown = typeof value === "number" ? number(value, 7) : String(value);
      const own = fields.has(field.name) ? "" : isModel ? " (the model’s)" : " (the paper’s)", given = fields.get(field.name) ?? "";
      if (!field.choices.length) set(input, "placeholder", shown);
      else set(input.options[0], "textContent", shown + own);
      if (!LIVE) for (const option of input.options ?? []) option.disabled = option.value !== given && !has(withField(state.network, field.name, option.value));
      if (!isTyped || document.activeElement !== input || input.value === "" || field.choices.length) set(input, "value", given);
      input.parentElement.classList.toggle("changed", isChanged(state.network, field));
    }
    DATA.groups.forEach((group, k) => {
      const changed = group.fields.filter((field) => isChanged(state.network, field)).length;
      $("groups").children[k].querySelector("span").textContent = changed ? ` — ${changed} changed` : "";
    });
  }

  // ---- charts

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const isDark = matchMedia("(prefers-color-scheme: dark)");
  // Dark colours of figures would not be seen on a dark page: mixed with white up to a contrast of about four.
  const LEAST_LUMINANCE = 0.22;
  const luminance = (parts) => parts.reduce((sum, part, k) => {
    const share = part / 255, linear = share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    return sum + [0.2126, 0.7152, 0.0722][k] * linear;
  }, 0);
  function seen(color) {
    if (!isDark.matches || !/^#[0-9a-f]{6}$/i.test(color)) return color;
    let parts = [1, 3, 5].map((k) => parseInt(color.slice(k, k + 2), 16));
    while (luminance(parts) < LEAST_LUMINANCE) parts = parts.map((part) => part + (255 - part) / 8);
    return `rgb(${parts.map(Math.round)})`;
  }
  function decades(low, high) {
    const steps = high / low > 1e4 ? [1] : high / low > 10 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8], ticks = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) {
      for (const step of steps) {
        const tick = step * 10 ** k;
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    return ticks.length > 12 ? ticks.filter((_, k) => k % Math.ceil(ticks.length / 8) === 0) : ticks;
  }
  function logRange(low, high) {
    if (!(low > 0)) return [0.1, 10];
    const below = 10 ** Math.floor(Math.log10(low)), above = 10 ** Math.floor(Math.log10(high));
    const down = [5, 2, 1].find((step) => step * below <= low * 0.98) ?? 0.5;
    const up = [1, 2, 5, 10, 20].find((step) => step * above >= high * 1.02);
    return [down * below, up * above];
  }
  // Lines are theory and marks are samples, with bars of two standard errors.
  function draw(id, given) {
    const { about, xs, series, marks = [], ylog = true } = given, before = charts.get(id);
    const data = [xs, ...[...series, ...marks].map(({ values }) => values.map((value) => (ylog && !(value > 0) ? null : value)))];
    if (!widths.has(id)) widths.set(id, Math.max(240, $(id).clientWidth));
    // A chart is made anew only if more than its numbers changed, which takes several times as long.
    const look = JSON.stringify([widths.get(id), isDark.matches, xs.length < 2, marks.length, given],
      (name, value) => ["about", "xs", "values", "errors"].includes(name) ? undefined : value);
    if (before?.look === look) {
      Object.assign(before, { given, marks });
      before.plot.setData(data);
    } else {
      before?.plot.destroy();
      const chart = { given, marks, look };
      chart.plot = new uPlot(options(chart, widths.get(id)), data, $(id));
      charts.set(id, chart);
    }
    set($(id), "ariaLabel", `${about}. Arrow keys read values; the table below has all.`);
  }
  function options(chart, width) {
    const { series, xlabel, ylabel, xlog = false, ylog = true, xs } = chart.given, text = css("--text"), line = css("--grid");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const labels = (u, ticks) => {
      const texts = ticks.map((tick) => number(tick, 3)), isWide = ylog && texts.some((each) => each.includes("e"));
      return isWide ? ticks.map((tick) => tick.toExponential()) : texts;
    };
    const read = (u, value) => value === null || value === undefined ? "" : number(value);
    const sparse = (u) => u.data[0].filter((_, k) => k % Math.max(1, Math.ceil(u.data[0].length / (width / 60))) === 0);
    return {
      width, height: Math.round(Math.min(340, Math.max(230, width * 0.5))),
      // A mark that is read is filled with its colour; uPlot would fill it with the page's, and the curve would have a hole.
      cursor: { y: false, drag: { x: false, y: false }, points: { fill: (u, k) => u.series[k].points.stroke(u, k) } }, legend: { live: true, markers: { dash: (u, k) => !u.series[k].dash?.length ? "solid" : u.series[k].dash[0] > 3 ? "dashed" : "dotted" } },
      scales: { x: { time: false, distr: xlog ? 3 : 1, log: 2, range: (u, low, high) => xlog ? [low / 1.1, high * 1.1]
        : [low - 0.3, high + 0.3] },
      y: ylog ? { distr: 3, range: (u, low, high) => logRange(low, high) } : { range: [0, 1] } },
      axes: [{ ...axis, label: xlabel, labelSize: 20, size: 34, splits: xlog ? sparse
        : (u, k, low, high) => whole(low, high, width), filter: (u, ticks) => ticks, values: (u, ticks) => ticks.map(String) },
      { ...axis, label: ylabel, labelSize: 18, size: 54, filter: (u, ticks) => ticks, values: labels,
        ...(ylog ? { splits: (u, k, low, high) => decades(low, high) } : {}) }],
      series: [{ label: xlabel, value: read }, ...series.map((each) => ({
        label: each.label, stroke: seen(each.color), width: each.width ?? 2, dash: each.dash,
        points: { show: xs.length < 2 || !!each.points, size: 6 }, spanGaps: true, value: read })),
      ...chart.marks.map((each) => ({ label: each.label, stroke: seen(each.color), paths: () => null,
        points: { show: true, size: 7, width: 1.5, fill: css("--back") }, value: read }))],
      hooks: { draw: [(u) => chart.marks.forEach((each) => bars(u, u.data[0], each))] },
    };
  }
  // Values by the keyboard.
  function readable(holder) {
    holder.tabIndex = 0;
    holder.setAttribute("role", "img");
    holder.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], plot = charts.get(holder.id)?.plot;
      if (!by || !plot) return;
      event.preventDefault();
      const xs = plot.data[0], at = Math.min(xs.length - 1, Math.max(0, (plot.cursor.idx ?? (by > 0 ? -1 : xs.length)) + by));
      plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: 10 });
      const read = [...holder.querySelectorAll(".u-series")].map((row) => [...row.cells].map((cell) => cell.textContent));
      $("spoken").textContent = read.filter(([, value]) => value).map((each) => each.join(" ")).join(", ");
    });
  }
  function bars(u, xs, { color, values, errors }) {
    const { ctx, bbox } = u, pixels = devicePixelRatio, bottom = bbox.top + bbox.height;
    ctx.save();
    ctx.strokeStyle = seen(color);
    ctx.lineWidth = 1.2 * pixels;
    ctx.beginPath();
    xs.forEach((x, k) => {
      if (values[k] === null || errors[k] === null) return;
      const at = u.valToPos(x, "x", true), low = values[k] - 2 * errors[k];
      const ends = [low > 0 || u.scales.y.distr !== 3 ? u.valToPos(low, "y", true) : bottom, u.valToPos(values[k] + 2 * errors[k], "y", true)]
        .map((end) => Math.min(bottom, Math.max(bbox.top, end)));
      ctx.moveTo(at, ends[0]);
      ctx.lineTo(at, ends[1]);
      for (const end of ends) {
        ctx.moveTo(at - 3 * pixels, end);
        ctx.lineTo(at + 3 * pixels, end);
      }
    });
    ctx.stroke();
    ctx.restore();
  }
  function whole(low, high, width) {
    const step = [1, 2, 4, 5, 8, 10, 20, 50, 100].find((each) => (high - low) / each <= width / 45) ?? 200, ticks = [];
    for (let tick = Math.ceil(low); tick <= high; tick++) if (tick === 1 || tick % step === 0) ticks.push(tick);
    return ticks;
  }
  const onLayers = (content, count, values = "predicted") => Array.from({ length: count },
    (_, k) => content[values][content.layer.indexOf(k + 1)] ?? null);
  const named = (label, k) => networks.length > 1 ? `${label}, ${networks[k].name}` : label;
  const color = (quantity) => DATA.colors[quantity.replace("encoder_", "").replace("grad_S", "grad_W")] ?? "#8c5a2b";

  function drawLayers() {
    const count = Math.max(...networks.flatMap((each) => each.content.series.flatMap((one) => one.layer)));
    const xs = Array.from({ length: count }, (_, k) => k + 1);
    const series = [];
    networks.forEach((each, k) => {
      for (const one of each.content.series.filter((other) => other.matrix && !hidden.has(other.quantity))) {
        const encoder = one.quantity.startsWith("encoder_");
        series.push({ label: named(encoder ? `${one.head}, encoder` : one.head, k), color: color(one.quantity), dash: DASHES[k],
          // Queries lie under keys, which often have the same norms.
          width: encoder ? 1.2 : one.quantity.endsWith("Q") ? 4.5 : 2, values: onLayers(one, count) });
      }
    });
    const law = networks[0].content.paper?.appendix_f;
    if (law && !hidden.has("grad_W2")) {
      series.push({ label: "appendix F, W2", color: "#777777", dash: [2, 3], width: 1.2, values: xs.map((_, k) => law[k] ?? null) });
    }
    const points = new Map((sampled?.series ?? []).map((one) => [one.quantity, one]));
    const mark = (one, label, markColor) => points.has(one.quantity) ? [{ label, color: markColor,
      values: onLayers(points.get(one.quantity), count, "mean"), errors: onLayers(points.get(one.quantity), count, "sem") }] : [];
    const marks = networks[0].content.series.filter((one) => one.matrix && !hidden.has(one.quantity)).flatMap((one) =>
      mark(one, `${one.head}${one.quantity.startsWith("encoder_") ? ", encoder" : ""}, samples`, color(one.quantity)));
    draw("gradients", { about: "Norm of every matrix's gradient in each layer", xs, series, marks, xlabel: "layer", ylabel: "norm" });
    for (const [id, quantity, ylog, ylabel] of [["energy", "hidden_energy", true, "|x|²/d"], ["cosine", "cosine", false, "cosine"]]) {
      const streams = networks.map((each, k) => [each.content.series.find((one) => one.quantity === quantity), k]);
      draw(id, { about: quantity.replace("_", " "), xs, ylog, xlabel: "layer", ylabel, series: streams.filter(([one]) => one).map(([one, k]) => ({
        label: named(one.head, k), color: DATA.curves[k], dash: DASHES[k], values: onLayers(one, count) })),
      marks: streams[0][0] ? mark(streams[0][0], `${streams[0][0].head}, samples`, DATA.curves[0]) : [] });
    }
    table("table", () => layersTable(xs, points));
    $("law").textContent = networks[0].content.paper ? "Theorem 1 allows the last layer’s dL/dW2 a norm of " +
      `${number(networks[0].content.paper.bound)}, ` + `${ofBound(networks[0].content)} times the theory’s` + (law ? "; dotted is what appendix F of the paper says of W2, through the last layer." : ".")
      : "Theorem 1 and appendix F say nothing of this network, which is not in the paper’s setting.";
  }
  function ofBound({ paper, series }) {
    const { predicted, layer } = series.find((one) => one.quantity === "grad_W2");
    return number(paper.bound / predicted[layer.indexOf(Math.max(...layer))], 3);
  }
  function layersTable(xs, points) {
    const count = xs.length;
    const shown = networks.flatMap((each, k) => each.content.series.filter((one) => one.layer.some((layer) => layer > 0)).map((one) => ({
      head: named((one.quantity.startsWith("encoder_") ? "encoder " : "") + (one.head === one.quantity ? one.quantity.replaceAll("_", " ") : one.head), k),
      values: onLayers(one, count), points: k ? null : points.get(one.quantity) })));
    const cells = (one, at) => {
      const k = one.points ? one.points.layer.indexOf(at + 1) : -1;
      return [number(one.values[at]), ...(one.points ? [k < 0 ? "–" : `${number(one.points.mean[k])} ± ${number(2 * one.points.sem[k], 2)}`] : [])];
    };
    return [["layer", ...shown.flatMap((one) => [one.head, ...(one.points ? [`${one.head}, samples`] : [])])],
      xs.map((x, at) => [String(x), ...shown.flatMap((one) => cells(one, at))])];
  }
  async function showEvened() {
    try {
      const one = networks[0].content, { evened, lines: texts } = "evened" in one ? one : await ask("lines", state.network, { signal: running.signal });
      Object.assign(one, { evened, lines: texts });
      if (evened && one === networks[0].content) $("stands_out").append(make("li", {}, evened.replace(/^- /, "")));
    } catch { /* theory has no more to say of the network */ }
  }
  async function showLines() {
    $("lines").textContent = "";
    if (!$("all").open) return;
    try {
      const { lines: texts } = networks[0].content.lines ? networks[0].content : await ask("lines", state.network, { signal: running.signal });
      $("lines").textContent = texts.join("\n");
    } catch (error) {
      if (error.name !== "AbortError") $("lines").textContent = error.message;
    }
  }
  function showApart() {
    const steps = networks[0].content.taken_apart, whole = steps.reduce((sum, step) => sum + Math.log(step.factor), 0);
    $("apart").hidden = !steps.length;
    const bar = (step) => {
      const one = make("span", { className: "bar" });
      one.style.width = `calc(${Math.max(0, Math.log(step.factor) / whole)} * var(--bar))`;
      return one;
    };
    table("apart_table", () => [["step", "loses a factor", "share of the logarithm", "norm up to here"], steps.map((step) => {
      const name = make("span", {}, step.name + (step.sure ? "" : " (may fail)"), make("small", {}, step.meaning));
      return [name, number(step.factor, 3), bar(step), number(step.norm)];
    })]);
  }
  function drawSizes() {
    const role = $("matrix").value, rows = [];
    $("sizes_drawn").hidden = !sizesOf.length;
    for (const [id, kind] of [["depths", "depth"], ["widths", "width"]]) {
      const answers = sizesOf.map((each) => each[kind]);
      if (!answers.every(Boolean) || !answers.length) continue;
      const xs = [...new Set(answers.flatMap((one) => one.rows.size))].sort((a, b) => a - b), series = [];
      answers.forEach((one, k) => {
        for (const end of ["first", "last"]) {
          const at = new Map(one.rows.size.map((size, j) => [size, j]).filter(([, j]) => one.rows.quantity[j] === role));
          series.push({ label: named(`${end} layer`, k), color: DATA.curves[end === "first" ? 0 : 1], dash: DASHES[k], points: true,
            values: xs.map((size) => at.has(size) ? one.rows[end][at.get(size)] : null) });
        }
      });
      const paper = new Map(answers[0].paper.map((one) => [one.size, one]));
      if (role === "grad_W2" && paper.size) {
        series.push({ label: "Theorem 1 allows", color: "#3b3b3b", dash: [6, 4], values: xs.map((size) => paper.get(size)?.bound ?? null) });
        if (answers[0].paper[0].appendix_f) series.push({ label: "appendix F, first layer", color: "#777777", dash: [2, 3],
          values: xs.map((size) => paper.get(size)?.appendix_f ?? null) });
      }
      draw(id, { about: `First and last layer against the ${kind}`, xs, series, xlog: true, xlabel: kind, ylabel: "norm" });
      xs.forEach((size, at) => series.forEach((one) => {
        if (one.values[at] !== null) rows.push([kind, String(size), one.label, number(one.values[at])]);
      }));
    }
    table("sizes_table", () => [["against", "size", "what", "norm"], rows]);
  }

  // ---- the answer in words

  function showAnswer() {
    const { content } = networks[0];
    $("answer").hidden = false;
    $("title").textContent = content.title;
    const sequences = Number(content.stack.sequences ?? 1);
    const tokens = tokensOf(content), long = `${tokens} token${tokens > 1 ? "s, all different" : ""}`;
    $("of_sequences").textContent = `${sequences > 1 ? `of a batch of ${sequences} sequences` : "of one sequence"} of ${long}`;
    $("standing").textContent = `What stands out at ${long}`;
    lines("drawn_lines", content.drawn);
    const [, ...standing] = content.stands_out;
    lines("stands_out", standing.length ? standing.map((text) => text.replace(/^- /, "")) : ["It has one layer: there is no other to compare it with."]);
    const trust = content.trust.length ? content.trust : ["This network is wide enough for theory to be judged: finite width changes less than the margin of 3%."];
    lines("trust", [...content.sampled.map(forPage), ...trust, ...(content.cheaper ? [`Theory goes a cheaper way here: ${content.cheaper}.`] : [])], "p");
    $("command").textContent = commands();
    placeLog();
    $("python").textContent = content.python;
    const roles = new Map(networks.flatMap((each) => each.content.series.filter((one) => one.matrix).map((one) => [one.quantity, one.head])));
    $("matrices").replaceChildren(...[...roles].map(([quantity, head]) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = seen(color(quantity));
      return make("button", { type: "button", ariaPressed: String(!hidden.has(quantity)), onclick: (event) => {
        if (!hidden.delete(quantity)) hidden.add(quantity);
        event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(quantity)));
        drawLayers();
      } }, swatch, quantity.startsWith("encoder_") ? `${head}, encoder` : head);
    }));
    const before = $("matrix").value;
    select($("matrix"), [...roles]);
    $("matrix").value = roles.has(before) ? before : roles.has("grad_W2") ? "grad_W2" : [...roles.keys()][0];
    drawLayers();
    showApart();
    $("pins").replaceChildren(...state.pins.map((pin, k) => make("li", { className: "row" },
      `${pin.name}: ${networks[k + 1]?.error ?? networks[k + 1]?.content.title ?? ""}`,
      make("button", { type: "button", onclick: () => change((next) => next.pins.splice(k, 1)) }, `Remove ${pin.name}`))));
    $("pin").disabled = state.pins.length >= MOST_PINS;
  }
  // A file has only what differs from the defaults.
  const tokensOf = (content) => Number(content.stack.tokens ?? FIELDS.get("tokens").default);
  // Of a model the first line of its log comes first, else the curves do.
  function placeLog() {
    const before = $(state.network.like || state.network.config ? "over_layers" : "sampling");
    if ($("log").nextElementSibling !== before) before.before($("log"));
  }
  // The end of the command's own sentence, as ", at 512 sequences of 16 tokens".
  const sizes = (content) => content.lines.join(" ").match(/, at [\d,]+ sequences? of [\d,]+ tokens?/)?.[0] ?? "";
  // The law as the field has it: a kind of text, an exponent, or none.
  const lawOf = (content) => content.text?.replace(/^zipf:/, "");

  // Flags of the command in words of the page.
  const forPage = (text) => text.replace("; --text english says how much.", "; English text says how much.").replace(", and --patterns takes more.", ".")
    .replace("within --max-time and --memory", "that this page has time and memory for unasked,").replace(/ --text FILE counts yours\./, "");
  function showBatch(content, error) {
    batchOf = content;
    const law = content && lawOf(content);
    $("first_line").textContent = content ? `step 1: loss ${number(content.loss)}, gradient norm ${number(content.gradient_norm)}${sizes(content)}, ` +
      (!law || law === DISTINCT ? "all words different" : isNaN(law) ? `text: ${law.replace("_", " ")}` : `words by Zipf’s law, exponent ${law}`) : "";
    $("zipf").placeholder = law ?? "all differ";
    $("tokens").placeholder = content ? String(content.tokens) : "";
    const tokens = tokensOf(networks[0].content);
    $("log_tokens").textContent = content && content.tokens !== tokens ? `This line is of ${content.tokens} tokens in a sequence, and the ` +
      `curves are of ${tokens}; a number in the field of tokens sets both.` : "";
    $("log_command").textContent = command(state.network, "batch", state.batch, state.zipf);
    // The command's own words, from its sentence on.
    const from = content ? content.lines.findIndex((line) => line.startsWith("Step 1")) : -1;
    if (content) $("first_words").textContent = forPage(content.lines.slice(from, content.lines.indexOf("", from)).join(" "));
    else $("first_words").replaceChildren(error, ...longer(error));
    if (content?.longer) $("first_words").append(make("br"), content.longer.replace(/, more than.*/, "."), ...longer(content.longer));
    table("shares", () => [["parameter", "share of the squared norm"],
      (content?.shares ?? []).map((row) => [row.name, `${(100 * row.share).toFixed(2)}%`])]);
    showPublic();
    compareMine();
    mark("batch");
  }
  const ofRun = ({ question: { like = "", config, drawn_by, fields } }) => ({ like, config: config === '""' ? "" : config, drawn_by,
    fields: new Map(Object.entries(fields)) });
  let printedOf = null;
  function showPublic() {
    const those = DATA.public_runs.filter((run) => run.question.batch === state.batch && networkKey(ofRun(run)) === networkKey());
    const run = those.find((each) => String(DATA.public_runs.indexOf(each)) === $("public_run").value) ?? those[0] ?? null;
    $("public_run").value = run ? String(DATA.public_runs.indexOf(run)) : "";
    lines("printed", those.map((each) => `${each.name} printed loss ${each.loss}${each.norm === null ? "" : ` and gradient norm ${each.norm}`} ` +
      `(${each.source}, ${each.date}; ${each.note}).`));
    if (run !== printedOf) {
      $("my_loss").value = run?.loss ?? "";
      $("my_norm").value = run?.norm ?? "";
      printedOf = run;
    }
  }
  function compareMine() {
    const norm = Number($("my_norm").value.replace(",", ".")), loss = Number($("my_loss").value.replace(",", "."));
    const texts = [];
    if (batchOf && norm > 0) texts.push(`Your norm is ${number(norm / batchOf.gradient_norm, 3)} times the prediction.`);
    if (batchOf && loss > 0) texts.push(`Your loss is ${number(Math.abs(loss - batchOf.loss), 2)} ${loss >= batchOf.loss ? "above" : "below"} it.`);
    if (batchOf && norm > 0 && (!batchOf.text || batchOf.text === DISTINCT)) texts.push("Text repeats words, and then gradients agree more: choose English text.");
    if (batchOf && norm > 0) texts.push("A log’s norm must be taken before clipping, of the mean loss, at the first step.");
    $("mine").textContent = texts.join(" ");
  }

  // ---- samples

  function layOver(content, of) {
    [sampled, sampledOf] = [content, of];
    drawLayers();
    $("sample_words").textContent = !content ? "" : `${content.from}: ${overTheory(content.series)}${content.note ?? ""}`;
  }
  function overTheory(series) {
    const ratios = [];
    for (const one of networks[0].content.series.filter((each) => each.matrix)) {
      const points = series.find((each) => each.quantity === one.quantity);
      points?.layer.forEach((layer, k) => {
        const theory = one.predicted[one.layer.indexOf(layer)], error = points.sem[k] / theory;
        if (theory > 0) ratios.push({ ratio: points.mean[k] / theory, error, what: `${one.head} of layer ${layer}` });
      });
    }
    if (!ratios.length) return "there is no matrix of a layer to compare with theory.";
    ratios.sort((a, b) => a.ratio - b.ratio);
    const [low, high] = [ratios[0], ratios.at(-1)].map((one) => `${number(one.ratio, 3)} ± ${number(2 * one.error, 1)} (${one.what})`);
    return `norms of matrices are ${low} to ${high} times theory’s; bars and ± are two standard errors.`;
  }
  async function drawSamples() {
    sampling?.abort();
    // Others are those of the next seed, unless another one was given.
    if (sampledOf === networkKey() && $("seed").value.trim() === drawnSeed) $("seed").value = String(Number(drawnSeed) + 1);
    const { signal } = (sampling = new AbortController()), of = networkKey(), seed = $("seed").value.trim() || "0";
    const bar = $("sample_bar");
    bar.removeAttribute("value");
    bar.hidden = $("cancel_sample").hidden = false;
    $("sample").disabled = true;
    $("sample_words").textContent = "Waiting for a process that draws …";
    try {
      const asked = { ...question(state.network), draws: $("draws").value.trim() || "32", seed };
      const reply = await post("sample", asked, signal);
      let text = "", last = null;
      for (const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader(); ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const parts = (text + value).split("\n");
        text = parts.pop();
        for (const part of parts) {
          last = JSON.parse(part);
          if (last.error) throw new Error(last.error);
          [bar.max, bar.value] = [last.of, last.draws];
          signal.throwIfAborted();
          if (last.series?.length) layOver({ ...last, from: `${last.draws < last.of ? `${last.draws} of ` : ""}${last.of} networks, seed ${seed}`,
            note: last.of === Number(asked.draws) ? "" : ` They are drawn in whole blocks: ${last.of}, where ${asked.draws} were asked for.` }, of);
          else $("sample_words").textContent = `Drawing ${last.of} networks, some ${number(last.seconds, 1)} s …`;
        }
      }
      if (last?.draws !== last?.of || !last) throw new Error("the samples ended early.");
      drawnSeed = seed;
      $("sample").textContent = "Draw others";
    } catch (error) {
      if (sampling?.signal === signal) $("sample_words").textContent = signal.aborted ? "Cancelled." : error.message;
    }
    if (sampling?.signal !== signal) return;
    bar.hidden = $("cancel_sample").hidden = true;
    $("sample").disabled = false;
  }
  const networkKey = (network = state.network) => key("network", network);
  const ofCell = (cell) => ({ ...empty(), fields: new Map(Object.entries(cell.fields)) });
  const isShown = (cell) => networkKey(ofCell(cell)) === networkKey();
  async function showCell(signal) {
    const shown = DATA.run.cells.filter(isShown), cell = shown.find((each) => each.name === $("cell").value) ?? shown[0];
    $("cell").value = cell?.name ?? "";
    if (!cell || sampledOf === networkKey()) return;
    const of = networkKey();
    const content = await (await post("cell", { cell: cell.name }, signal)).json();
    if (!signal.aborted) layOver({ ...content, from: `${content.draws} networks of ${DATA.run.folder}` }, of);
  }
  function buildSampling() {
    $("sampling").hidden = !LIVE;
    $("draws").value = "32";
    $("seed").value = "0";
    $("sample").addEventListener("click", drawSamples);
    $("cancel_sample").addEventListener("click", () => sampling?.abort());
    if (!DATA.run) return;
    $("of_run").hidden = false;
    $("run_name").textContent = DATA.run.folder + (DATA.run.left_out ? ` (${DATA.run.left_out} of a text or of one draw are left out)` : "");
    select($("cell"), [["", "none of the folder’s"], ...DATA.run.cells.map((cell) => [cell.name, cell.title])]);
    $("cell").addEventListener("change", () => {
      const cell = DATA.run.cells.find((each) => each.name === $("cell").value);
      if (!cell) return;
      sampledOf = "";
      if (isShown(cell)) showCell(running.signal);
      else change((next) => { next.network = ofCell(cell); });
    });
  }

  // ---- from the address to the page

  let waiting = 0, stopClock = () => {};
  function notBusy() {
    clearTimeout(waiting);
    stopClock();
    $("busy").hidden = true;
  }
  function giveUp() {
    running?.abort();
    notBusy();
    $("status").textContent = "Cancelled. What is dimmed is of the network before.";
  }
  async function load() {
    running?.abort();
    stepping?.abort();
    stopClock();
    const controller = running = new AbortController(), { signal } = controller, begun = performance.now(), isFirst = state === null;
    say("");
    isTyped = now() === ownAddress;
    if (!isTyped) ownAddress = null;
    try {
      state = read(now());
    } catch (error) {
      say(`The address cannot be read: ${error.message.slice(0, 200)}.`);
      state ??= read(START);
      return;
    }
    if (networkKey() !== sampledOf) {
      sampling?.abort();
      [sampled, sampledOf] = [null, ""];
      $("sample_words").textContent = "";
    }
    mark();
    showControls();
    const before = networks.length && !isCurrent("predict") ? " What is dimmed is of the network before." : "";
    $("status").textContent = `Predicting …${before}`;
    stopClock = clock((passed) => { $("status").textContent = `Predicting … ${passed}${before}`; });
    clearTimeout(waiting);
    waiting = setTimeout(() => { $("busy").hidden = false; }, 400);
    for (const id of ["rate", "sizes_words", "compared"]) $(id).textContent = "";
    $("compared_all").hidden = true;
    $("rate_all").hidden = true;
    try {
      const first = await ask("predict", state.network, { signal });
      const took = performance.now() - begun;
      const answers = [{ name: "this", content: first }];
      for (const pin of state.pins) {
        try {
          answers.push({ name: pin.name, network: pin.network, content: await ask("predict", pin.network, { signal }) });
        } catch (error) {
          if (signal.aborted) return;
          say(`${pin.name}: ${error.message}`);
        }
      }
      if (signal.aborted) return;
      networks = answers;
      const start = performance.now();
      mark("predict");
      showControls();
      showAnswer();
      performance.clearMeasures("show");
      performance.measure("show", { start });
      const predicted = LIVE ? `Predicted in ${number(took / 1000, 2)} s.` : "Predicted when this file was written.";
      $("status").textContent = predicted;
      stopClock();
      stopClock = clock((passed) => { $("status").textContent = `${predicted} The first line of the log: ${passed} …`; });
      document.body.dataset.shown = now();
      document.body.dataset.milliseconds = String(performance.now() - begun);
      if (LIVE && !isFirst) await new Promise((go) => { setTimeout(go, PAUSE); });
      if (signal.aborted) return;
      batchOf = null;
      $("first_line").textContent ||= "Predicting …";
      const logged = ask("batch", state.network, { batch: state.batch, zipf: state.zipf, signal }).then(
        (content) => { if (!signal.aborted) showBatch(content, ""); }, (error) => { if (!signal.aborted) showBatch(null, error.message); });
      showEvened();
      showLines();
      await logged;
      if (signal.aborted) return;
      notBusy();
      $("status").textContent = predicted;
      if (DATA.run) await showCell(signal);
      await compare(signal);
      if (signal.aborted) return;
      $("sizes").hidden = !LIVE || took < FAST;
      sizesOf = [];
      if (!LIVE || took < FAST) await askSizes(signal);
      else drawSizes();
      document.body.dataset.settled = now();
    } catch (error) {
      if (signal.aborted) return;
      notBusy();
      $("status").textContent = networks.length && !isCurrent("predict") ? "What is dimmed is of the network before." : "";
      showControls();
      say(error.message);
      document.body.dataset.shown = now();
    }
  }
  async function compare(signal) {
    if (networks.length < 2) return;
    try {
      if (!LIVE) throw new Error("This file compares by its curves; the served page has words too.");
      const asked = { networks: networks.map((each) => question(each.network ?? state.network)), names: networks.map((each) => each.name) };
      const content = await (await post("compare", asked, signal)).json();
      if (signal.aborted) return;
      lines("compared", content.words, "p");
      $("compared_lines").textContent = content.lines.join("\n").trim();
      $("compared_all").hidden = false;
    } catch (error) {
      if (!signal.aborted) $("compared").textContent = error.message;
    }
  }
  async function askSizes(signal) {
    $("sizes_words").textContent = "Predicting other sizes …";
    try {
      const answers = [];
      for (const { network = state.network } of networks) {
        answers.push({ depth: await ask("depth", network, { signal }), width: await ask("width", network, { signal }) });
      }
      if (signal.aborted) return;
      sizesOf = answers;
      drawSizes();
      mark("sizes");
      $("sizes_words").textContent = [...new Set(answers.flatMap((one) => [one.depth, one.width].filter((each) => each.left_out)
        .map((each) => `Against the ${each.along}: ${each.left_out}`)))].join(" ");
    } catch (error) {
      if (!signal.aborted) $("sizes_words").textContent = error.message;
    }
  }
  async function askStep() {
    const { signal } = (stepping = new AbortController());
    $("cancel").hidden = false;
    $("step").disabled = true;
    const waits = "Predicting the first step; it takes up to a minute of one idle core …";
    $("rate").textContent = waits;
    const stop = clock((passed) => { $("rate").textContent = `${waits} ${passed}`; });
    try {
      const content = await ask("first_step", state.network, { signal });
      $("rate").textContent = content.rates.map((one) => one.no_rule ? `${STEPPED[one.optimizer]}: ${one.no_rule}`
        : `${STEPPED[one.optimizer]}: ${number(one.critical_rate, 3)}, off by up to ` +
          (one.implied_error === null ? `an unknown share (${one.no_coefficient}).` : `${number(100 * one.implied_error, 2)}%.`))
        .join(" ") + " At these rates the loss, to second order, is back at its start.";
      $("rate").append(...content.rates.flatMap((one) => one.no_rule ? longer(one.no_rule) : []).slice(0, 2));
      $("rate_lines").textContent = content.lines.join("\n");
      $("rate_all").hidden = false;
    } catch (error) {
      $("rate").textContent = signal.aborted ? "Cancelled." : error.message;
    }
    stop();
    $("cancel").hidden = true;
    $("step").disabled = false;
  }
  function download() {
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const rows = [["network", "quantity", "layer", "predicted", "predicted_sem", "mean", "sem", "draws"].join(",")];
    for (const each of networks) {
      for (const one of each.content.series) {
        const points = each === networks[0] ? sampled?.series.find((other) => other.quantity === one.quantity) : null;
        one.layer.forEach((layer, k) => {
          const at = points ? points.layer.indexOf(layer) : -1;
          rows.push([quote(each.name), one.quantity, layer, one.predicted[k] ?? "", one.sem[k] ?? "",
            ...(at < 0 ? ["", "", ""] : [points.mean[at] ?? "", points.sem[at] ?? "", sampled.draws])].join(","));
        });
      }
    }
    save(rows.join("\n") + "\n", "text/csv", "gradbounds.csv");
  }
  // The curves over the layers as the page has them, on white: lines are theory, marks with bars samples.
  function drawing() {
    const { plot, given, marks } = charts.get("gradients"), space = "http://www.w3.org/2000/svg", pixels = devicePixelRatio;
    const [left, top, wide, high] = ["left", "top", "width", "height"].map((name) => plot.bbox[name] / pixels);
    const legend = [...given.series.map((each) => [each, false]), ...marks.map((each) => [each, true])];
    const head = 22 * networks.length + 22, below = 50 + 18 * legend.length, [width, height] = [left + wide + 20, head + top + high + below];
    const root = document.createElementNS(space, "svg");
    const add = (tag, attributes, text = "") => {
      const element = document.createElementNS(space, tag);
      for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
      element.textContent = text;
      return root.appendChild(element);
    };
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "sans-serif",
      "font-size": 12 })) root.setAttribute(name, value);
    const x = (value) => left + plot.valToPos(value, "x"), y = (value) => head + top + plot.valToPos(value, "y");
    const { min, max } = plot.scales.y, within = (value) => value >= min && value <= max;
    add("rect", { width, height, fill: "white" });
    networks.forEach((each, k) => add("text", { x: 8, y: 18 + 22 * k }, `${networks.length > 1 ? `${each.name}: ` : ""}${each.content.title}`));
    add("text", { x: 8, y: head - 4 }, $("gradients").getAttribute("aria-label").replace(/\..*/, ""));
    for (const tick of decades(min, max)) {
      add("line", { x1: left, x2: left + wide, y1: y(tick), y2: y(tick), stroke: "#e0e0e0" });
      add("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 3));
    }
    for (const tick of whole(plot.scales.x.min, plot.scales.x.max, wide)) add("text", { x: x(tick), y: head + top + high + 16, "text-anchor": "middle" }, String(tick));
    add("text", { x: left + wide / 2, y: head + top + high + 34, "text-anchor": "middle" }, given.xlabel);
    for (const each of given.series) {
      const points = given.xs.map((at, k) => [at, each.values[k]]).filter(([, value]) => value > 0).map(([at, value]) => `${x(at)},${y(value)}`);
      add("polyline", { points: points.join(" "), fill: "none", stroke: each.color, "stroke-width": each.width ?? 2, "stroke-dasharray": (each.dash ?? []).join(" ") });
    }
    for (const each of marks) {
      given.xs.forEach((at, k) => {
        if (!within(each.values[k])) return;
        const ends = [-2, 2].map((times) => y(Math.min(max, Math.max(min, each.values[k] + times * each.errors[k]))));
        add("line", { x1: x(at), x2: x(at), y1: ends[0], y2: ends[1], stroke: each.color });
        add("circle", { cx: x(at), cy: y(each.values[k]), r: 3, fill: "white", stroke: each.color });
      });
    }
    legend.forEach(([each, isMark], k) => {
      const at = head + top + high + 52 + 18 * k;
      if (isMark) add("circle", { cx: left + 14, cy: at - 4, r: 3, fill: "white", stroke: each.color });
      else add("line", { x1: left, x2: left + 28, y1: at - 4, y2: at - 4, stroke: each.color, "stroke-width": each.width ?? 2, "stroke-dasharray": (each.dash ?? []).join(" ") });
      add("text", { x: left + 36, y: at }, each.label);
    });
    save(new XMLSerializer().serializeToString(root), "image/svg+xml", "gradbounds.svg");
  }
  function save(text, type, name) {
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  async function copy(event) {
    const source = $(event.currentTarget.dataset.copies), button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch { // without the right to, the text is selected
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  buildControls();
  buildSampling();
  $("skip").addEventListener("click", () => $("answer").focus());
  $("where").textContent = LIVE ? "It asks this machine alone." : `This file asks nobody: it has ${DATA.answers.about}`;
  for (const id of ["my_norm", "my_loss"]) $(id).addEventListener("input", compareMine);
  $("matrix").addEventListener("change", drawSizes);
  $("sizes").addEventListener("click", () => askSizes(running.signal));
  $("step").addEventListener("click", askStep);
  $("all").addEventListener("toggle", showLines);
  $("give_up").addEventListener("click", giveUp);
  $("cancel").addEventListener("click", () => stepping?.abort());
  $("csv").addEventListener("click", download);
  $("svg").addEventListener("click", drawing);
  for (const button of document.querySelectorAll("[data-copies]")) button.addEventListener("click", copy);
  $("pin").addEventListener("click", () => change((next) => {
    next.pins.push({ name: $("pin_name").value.trim() || networks[0].content.name, network: next.network });
  }));
  isDark.addEventListener("change", () => networks.length && (showAnswer(), showEvened(), drawSizes()));
  document.querySelectorAll(".chart").forEach(readable);
  let resized = 0, wide = 0;
  new ResizeObserver(([{ contentRect: { width } }]) => {
    if (width === wide) return;
    wide = width;
    clearTimeout(resized);
    resized = setTimeout(() => {
      widths.clear();
      charts.forEach((chart, id) => draw(id, chart.given));
    }, 150);
  }).observe(document.querySelector("main"));
  addEventListener("hashchange", load);
  load();
})();
