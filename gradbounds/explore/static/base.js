  // ---- elements, numbers and tables; what is data is only ever set as text

  const $ = (id) => document.getElementById(id);
  const DATA = JSON.parse($("data").textContent);
  const LIVE = DATA.live;
  const FIELDS = new Map(DATA.groups.flatMap((group) => group.fields.map((field) => [field.name, field])));
  const START = DATA.run ? new URLSearchParams(DATA.run.cells[0].fields).toString() || "placement=post" : DATA.start;
  const LONGEST = 30000;
  const DISTINCT = "distinct";
  const MOST_PINS = DATA.curves.length - 1;
  // An answer so fast may be followed by others, unasked.
  const FAST = 500;
  // Milliseconds after a curve in which the next change may come before anything else is asked of the server.
  const PAUSE = 100;
  const kept = new Map();
  // What each part of the page answers, by the key of its question.
  const answered = {};
  // The address that a control has set, and whether the page shows it: then the field with the caret is left alone.
  let ownAddress = null, isTyped = false, focused = null;
  // The networks on the page, and the one that it showed before.
  let state = null, networks = [], ghost = null;
  let batchOf = null, sizesOf = [], running = null, stepping = null;

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
  const SPACE = "http://www.w3.org/2000/svg";
  function shape(tag, attributes, text = "") {
    const element = document.createElementNS(SPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
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
  function select(element, choices) {
    element.replaceChildren(...choices.map(([value, text]) => make("option", { value }, text)));
  }
  // At the field that it is about, if that is in sight, and else above the answer.
  function say(text) {
    const [, name] = text.match(/^(\w+) /) ?? [], field = $(`field_${name}`);
    document.querySelectorAll("[aria-invalid]").forEach((each) => each.removeAttribute("aria-invalid"));
    if (field) field.ariaInvalid = "true";
    (field?.offsetParent ? field.closest(".slider") ?? field.closest(".field") : $("controls")).after($("message"));
    $("message").replaceChildren(text, ...longer(text), ...without(text));
    $("message").hidden = !text;
    if (text && field) $("message").scrollIntoView({ block: "nearest" });
  }
  // A button where theory has an answer that takes longer than it may, and no more memory: by the command's own words.
  const LATE = /takes? about ([\d.]+) (?:CPU )?(s|min) [^;]*, more than the [^;]* of --max-time(?! and)/;
  function longer(text) {
    const [, time, unit] = (LIVE && text.match(LATE)) || [], seconds = Math.ceil(2 * time * (unit === "min" ? 60 : 1));
    if (!(seconds <= 600)) return [];
    return [" ", make("button", { type: "button", onclick: () => change((next) => { next.max_time = `${seconds}s`; }) },
      `Take longer (about ${time} ${unit})`)];
  }
  // A button that leaves out what a message is about: a key of a config.json, or a field.
  function without(text) {
    if (!state) return [];
    const leave = (name, onclick) => [" ", make("button", { type: "button", onclick }, `Leave ${name} out`)];
    const { config, fields } = state.network, [, key_] = (config && text.match(/--ignore (\w+) leaves it out/)) || [];
    if (key_ && Object.hasOwn(JSON.parse(config), key_)) return leave(key_, () => change((next) => {
      const { [key_]: _, ...others } = JSON.parse(next.network.config);
      next.network.config = JSON.stringify(others);
    }));
    const [, field] = text.match(/^(\w+) must /) || [];
    return fields.has(field) ? leave(`${field}=${fields.get(field)}`, () => setField(field, "")) : [];
  }
  // Says every second how many have passed, until what it returns is called.
  function clock(write_) {
    const begun = performance.now(), timer = setInterval(() => write_(`${Math.round((performance.now() - begun) / 1000)} s`), 1000);
    return () => clearInterval(timer);
  }

