  // ---- the large chart with its sentence, and the layers in words

  const onLayers = (content, count, values = "predicted") => Array.from({ length: count },
    (_, k) => content[values][content.layer.indexOf(k + 1)] ?? null);
  const named = (label, k) => networks.length > 1 ? `${label}, ${networks[k].name}` : label;
  const shortOf = (one) => one.head.replace("dL/d", "") + (one.quantity.startsWith("encoder_") ? ", encoder" : "");
  const matricesOf = (content) => content.series.filter((one) => one.matrix);
  // Of several networks one matrix is drawn, of one all, unless one is chosen.
  function chosenMatrices() {
    const chosen = $("matrix").value, every = networks.length ? matricesOf(networks[0].content).map((one) => one.quantity) : ["grad_W2"];
    if (chosen && every.includes(chosen)) return [chosen];
    return networks.length > 1 ? [mainOf(every)] : [...every].sort((a, b) => (b === mainOf(every)) - (a === mainOf(every)));
  }
  const mainOf = (every) => every.includes("grad_W2") ? "grad_W2" : every[0];
  const lastOf = (one) => one.predicted[one.layer.indexOf(Math.max(...one.layer))];
  // What the change made of the last layer, where it made something of it.
  function factor(one) {
    const before = ghost?.series.find((each) => each.quantity === one.quantity), ratio = before && lastOf(one) / lastOf(before);
    return ratio > 0 && isFinite(ratio) && Math.abs(Math.log(ratio)) > 0.005 ? ` ×${number(ratio, 2)}` : "";
  }
  // Matrices whose curves lie on one another share a label: the first of them has it.
  function sharedEnds(ones) {
    const labels = new Map(), equal = (a, b) => a.predicted.length === b.predicted.length && a.predicted.every((value, k) => Math.abs(value - b.predicted[k]) <= 0.03 * Math.abs(value));
    for (const one of ones) {
      const first = [...labels.keys()].find((each) => equal(each, one));
      if (first) labels.get(first).push(shortOf(one));
      else labels.set(one, [shortOf(one)]);
    }
    return new Map([...labels].map(([one, names]) => [one, names.join(", ") + (networks.length > 1 ? "" : factor(one))]));
  }
  function heroSeries(count) {
    const chosen = chosenMatrices(), series = [];
    if (ghost && networks.length === 1) {
      for (const one of matricesOf(ghost).filter((each) => chosen.includes(each.quantity))) {
        series.push({ label: `${shortOf(one)} before`, color: "#9a9ca3", width: 1.5, values: onLayers(one, count), isQuiet: true });
      }
    }
    networks.forEach((each, k) => {
      const ones = matricesOf(each.content).filter((one) => chosen.includes(one.quantity)), labels = sharedEnds(ones);
      for (const one of ones) {
        const end = !labels.has(one) ? "" : networks.length > 1 ? each.label : labels.get(one);
        series.push({ label: networks.length > 1 ? each.label : shortOf(one), color: DATA.curves[k], dash: one.quantity.startsWith("encoder_") ? [6, 4] : [],
          values: onLayers(one, count), end });
      }
    });
    const paper = networks[0].content.paper, law = paper?.appendix_f, xs = Array.from({ length: count });
    if (law && networks.length === 1 && chosen.includes("grad_W2")) series.push({ label: "appendix F, W2", color: "#777777", dash: [2, 3], width: 1.2, end: "appendix F", values: xs.map((_, k) => law[k] ?? null) });
    if (paper && DATA.tour[state.tour - 1]?.bound) series.push({ label: "Theorem 1 allows", color: "#b3261e", points: true, end: "Theorem 1", values: xs.map((_, k) => (k === count - 1 ? paper.bound : null)) });
    return series;
  }
  function drawLayers() {
    const count = Math.max(...networks.flatMap((each) => each.content.series.flatMap((one) => one.layer)), ...(ghost && networks.length === 1 ? matricesOf(ghost).flatMap((one) => one.layer) : []));
    const xs = Array.from({ length: count }, (_, k) => k + 1), chosen = chosenMatrices();
    const points = new Map((sampled?.series ?? []).map((one) => [one.quantity, one]));
    const mark_ = (one, label) => points.has(one.quantity) ? [{ label, color: DATA.curves[0],
      values: onLayers(points.get(one.quantity), count, "mean"), errors: onLayers(points.get(one.quantity), count, "sem") }] : [];
    const marks = matricesOf(networks[0].content).filter((one) => chosen.includes(one.quantity)).flatMap((one) => mark_(one, `${shortOf(one)}, samples`));
    const streams_ = isOfCosine() && networks[0].content.series.find((one) => one.quantity === "cosine");
    if (streams_) draw("gradients", { about: "Cosine between two tokens", xs, ylog: false, xlabel: "layer", ylabel: "cosine between two tokens",
      series: [{ label: "cosine", color: DATA.curves[0], values: onLayers(streams_, count) }], height: 300 });
    else draw("gradients", { about: `Norm of ${chosen.length > 1 ? "every matrix's" : "a matrix's"} gradient in each layer`, xs, series: heroSeries(count), marks,
      xlabel: "layer", ylabel: "gradient norm", height: innerWidth > 860 ? Math.min(400, Math.max(280, innerHeight - 466)) : 280 });
    for (const [id, quantity, ylog, ylabel] of [["energy", "hidden_energy", true, "|x|²/d"], ["cosine", "cosine", false, "cosine"]]) {
      const streams = networks.map((each, k) => [each.content.series.find((one) => one.quantity === quantity), k]);
      draw(id, { about: quantity.replace("_", " "), xs, ylog, xlabel: "layer", ylabel, series: streams.filter(([one]) => one).map(([one, k]) => ({
        label: named(one.head, k), color: DATA.curves[k], values: onLayers(one, count), end: networks.length > 1 ? networks[k].label : "" })),
      marks: streams[0][0] ? mark_(streams[0][0], `${streams[0][0].head}, samples`) : [] });
    }
    table("table", () => layersTable(xs, points));
    $("law").textContent = networks[0].content.paper && networks.length === 1 && !streams_ ? "Theorem 1 allows the last layer’s dL/dW2 a norm of " +
      `${number(networks[0].content.paper.bound)}, ${ofBound(networks[0].content)} times the theory’s` + (networks[0].content.paper.appendix_f ? "; dotted is what appendix F of the paper says of W2." : ".")
      : "";
  }
  function ofBound({ paper, series }) {
    return number(paper.bound / lastOf(series.find((one) => one.quantity === "grad_W2")), 3);
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
  // What pinned networks change, in short: "placement post → peri".
  function difference(pin) {
    const names = new Set([...state.network.fields.keys(), ...pin.fields.keys()]), changed = [...names].filter((name) => pin.fields.get(name) !== state.network.fields.get(name));
    if (pin.like !== state.network.like || pin.config !== state.network.config || !changed.length || changed.length > 2) return "";
    const word = (network, name) => network.fields.get(name) ?? String(networks[0].content.stack[name] ?? FIELDS.get(name).default);
    return changed.map((name) => `${name} ${word(state.network, name)} → ${word(pin, name)}`).join(", ");
  }
  const isOfCosine = () => DATA.tour[state.tour - 1]?.chart === "cosine";
  function finding() {
    const { content } = networks[0], name = nameOf(state.network, content);
    if (networks.length > 1) {
      const quantity = chosenMatrices()[0], last = networks.map((each) => each.content.series.find((one) => one.quantity === quantity)).map((one) => one && lastOf(one));
      const of = `last layer’s ${shortOf({ quantity, head: $("matrix").value ? $("matrix").selectedOptions[0].text : "W2" })} gradient`;
      const changes = networks.slice(1).map((each, k) => [difference(each.network) || each.name, number(last[k + 1] / last[0], 3)]);
      return changes.length > 1 ? `The ${of}: ${changes.map(([words, times]) => `${words} ×${times}`).join("; ")}.`
        : `${changes[0][0]}: the ${of} is ${changes[0][1]} times as large.`;
    }
    const chosen = $("matrix").value && content.series.find((one) => one.quantity === $("matrix").value);
    const ratio = chosen && chosen.predicted[chosen.layer.indexOf(1)] / lastOf(chosen);
    if (ratio > 0 && isFinite(ratio)) return `${name}: the first layer’s ${shortOf(chosen)} gradient is ${number(ratio, 3)} times the last layer’s.`;
    const sentence = (isOfCosine() && content.cosine) || content.finding;
    return `${name}: ${sentence.charAt(0).toLowerCase()}${sentence.slice(1)}`;
  }
  // The stop of the tour whose matrix was chosen, once.
  let matrixOf = "";
  function showAnswer() {
    const { content } = networks[0], tokens = tokensOf(content), sequences = Number(content.stack.sequences ?? 1);
    const long = `${tokens} token${tokens > 1 ? "s, all different" : ""}`;
    $("answer").hidden = false;
    const changes = networks.slice(1).map((each) => difference(each.network)), own = new Set(changes.map((words) => words.replace(/ → [^,]+/g, "")));
    networks.forEach((each, k) => { each.label = k ? changes[k - 1].replace(/\S+ → /g, "") || each.name : !changes.length ? each.name : (own.size === 1 && [...own][0]) || "this network"; });
    const stop = DATA.tour[state.tour - 1], isNew = state.tour !== matrixOf, before = isNew ? stop?.matrix ?? "" : $("matrix").value, roles = new Map(networks.flatMap((each) => matricesOf(each.content).map((one) => [one.quantity, shortOf(one)])));
    select($("matrix"), [["", networks.length > 1 ? "W2" : "all matrices"], ...roles]);
    $("matrix").value = roles.has(before) ? before : "";
    matrixOf = state.tour;
    $("finding").textContent = finding();
    $("matters").hidden = $("matrix").parentElement.hidden = isOfCosine();
    $("charted").textContent = isOfCosine() ? "Cosine between two tokens" : "Norm of the loss’s gradient";
    $("title").textContent = content.title;
    $("of_sequences").textContent = `${sequences > 1 ? `in a batch of ${sequences} sequences` : "for one sequence"} of ${long}` + (ghost && networks.length === 1 ? "; grey: before, ×: the change" : "");
    const [heading, ...rows] = content.stands_out;
    $("standing").textContent = heading ?? `One layer, at ${long}`;
    lines("drawn_lines", content.drawn);
    lines("stands_out", rows.length ? rows : [content.finding]);
    const trust = content.trust.length ? content.trust : ["This network is wide enough for theory to be judged: finite width changes less than the margin of 3%."];
    lines("trust", [...content.sampled.map(forPage), ...trust, ...(content.cheaper ? [`Theory goes a cheaper way here: ${content.cheaper}.`] : [])], "p");
    $("command").textContent = commands();
    $("python").textContent = content.python;
    drawLayers();
    drawSparks();
    showApart();
    showEvened(content.evened ?? "");
    $("pins").replaceChildren(...state.pins.map((pin, k) => make("li", { className: "row" },
      `${pin.name}: `.repeat(!networks[k + 1]?.content.title.startsWith(`${pin.name}:`)) + (networks[k + 1]?.content.title ?? ""),
      make("button", { type: "button", onclick: () => change((next) => next.pins.splice(k, 1)) }, `Remove ${pin.name}`))));
    $("pin").disabled = state.pins.length >= MOST_PINS;
  }
  // A file has only what differs from the defaults.
  const tokensOf = (content) => Number(content.stack.tokens ?? FIELDS.get("tokens").default);
  // What would make the layers alike, with a button that does it: the change in the command's own words, "(field=value)".
  function showEvened(evened) {
    const [, words = ""] = evened.match(/\((\w+=[^)]*)\)/) ?? [], fields = words.split(", ").map((each) => each.split("="));
    $("even").hidden = !evened;
    $("even_words").textContent = evened.replace(/^- /, "");
    $("apply").hidden = !words || !fields.every(([name, value]) => FIELDS.has(name) && value) ||
      !has(fields.reduce((network, [name, value]) => withField(network, name, value), state.network));
    $("apply").textContent = `Apply ${words}`;
    $("apply").onclick = () => change((next) => { for (const [name, value] of fields) next.network = withField(next.network, name, value); });
  }
  async function askEvened(signal) {
    const one = networks[0].content;
    if ("evened" in one) return;
    try {
      const { evened, lines: texts } = await ask("lines", state.network, { signal });
      Object.assign(one, { evened, lines: texts });
      if (one === networks[0].content) showEvened(evened);
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

