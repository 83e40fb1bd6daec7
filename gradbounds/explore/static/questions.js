  // ---- questions: what ships with the page is answered at once, and a server is asked for the rest

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
  const networkKey = (network = state.network) => key("network", network);
  const wanted = (kind) => [key(kind === "sizes" ? "depth" : kind, state.network, state.batch, state.zipf),
    ...(kind === "batch" ? [] : state.pins.map((pin) => key("pin", pin.network)))].join("&");
  const isCurrent = (kind) => answered[kind] === wanted(kind);
  // What does not answer the question of the address is out of sight and cannot be used; `kind` has been answered now.
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
  // An answer that is here without asking; null if there is none.
  function ready(kind, network, batch, zipf) {
    const name = key(kind, network, batch, zipf);
    if (kept.has(name)) return kept.get(name);
    const content = !(LIVE && state?.max_time) && Object.hasOwn(DATA.answers.given, name) ? DATA.answers.given[name] : null;
    return content?.error ? null : content;
  }
  // Whether there is an answer: a file has some, and a server tries.
  const has = (network) => LIVE || Object.hasOwn(DATA.answers.given, key("predict", network));
  async function post(kind, asked, signal) {
    const reply = await fetch(`api/${kind}`, { method: "POST", signal, headers: { "Content-Type": "application/json" },
      body: JSON.stringify(asked) });
    if (!reply.ok) throw new Error((await reply.json()).error);
    return reply;
  }
  async function ask(kind, network, { batch, zipf, signal, isFresh = false } = {}) {
    const name = key(kind, network, batch, zipf), here = isFresh && LIVE ? null : ready(kind, network, batch, zipf);
    if (here) return here; // refusals are not kept: with more time they are asked again
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
      throw new Error(DATA.answers.given[name].error);
    }
    if (kept.size > 60) kept.delete(kept.keys().next().value);
    kept.set(name, content);
    return content;
  }
  const STEPPED = { sgd: "SGD", adam: "AdamW" };
  const quoted = (word) => /^[\w.,:=+/-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
  function command(network, kind, batch, zipf) {
    const words = ["gradbounds", "predict"];
    if (network.like) words.push("--like", network.like);
    if (network.config) words.push("--config", "config.json");
    if (network.drawn_by !== "hf") words.push("--drawn-by", network.drawn_by);
    for (const [name, value] of network.fields) words.push(`--${name.replaceAll("_", "-")}`, value);
    if (kind === "batch") {
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

