  // ---- what is taken along: numbers, pictures and lines

  // Of what ships with the page five digits are here: a server has all.
  async function download() {
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const rows = [["network", "quantity", "layer", "predicted", "predicted_sem", "mean", "sem", "draws"].join(",")];
    for (const each of networks) {
      const { series } = await ask("predict", each.network ?? state.network, { isFresh: true });
      for (const one of series) {
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
    const { plot, given, marks } = charts.get("gradients"), pixels = devicePixelRatio;
    const [left, top, wide_, high] = ["left", "top", "width", "height"].map((name) => plot.bbox[name] / pixels);
    const head = 22 * networks.length + 44, [width, height] = [left + wide_ + 180, head + top + high + 46];
    const root = shape("svg", { xmlns: SPACE, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "sans-serif", "font-size": 12 });
    const add = (tag, attributes, text) => root.appendChild(shape(tag, attributes, text));
    const x = (value) => left + plot.valToPos(value, "x"), y = (value) => head + top + plot.valToPos(value, "y");
    const { min, max } = plot.scales.y, within = (value) => value >= min && value <= max;
    add("rect", { width, height, fill: "white" });
    add("text", { x: 8, y: 18, "font-weight": "bold" }, finding());
    networks.forEach((each, k) => add("text", { x: 8, y: 40 + 22 * k, fill: DATA.curves[k] }, `${networks.length > 1 ? `${each.label}: ` : ""}${each.content.title}`));
    add("text", { x: 8, y: head }, given.ylabel);
    for (const tick of decades(min, max)) {
      add("line", { x1: left, x2: left + wide_, y1: y(tick), y2: y(tick), stroke: "#e0e0e0" });
      add("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick, 3));
    }
    for (const tick of whole(plot.scales.x.min, plot.scales.x.max, wide_)) add("text", { x: x(tick), y: head + top + high + 16, "text-anchor": "middle" }, String(tick));
    add("text", { x: left + wide_ / 2, y: head + top + high + 34, "text-anchor": "middle" }, given.xlabel);
    for (const each of given.series) {
      const points = given.xs.map((at, k) => [at, each.values[k]]).filter(([, value]) => value > 0).map(([at, value]) => `${x(at)},${y(value)}`);
      add("polyline", { points: points.join(" "), fill: "none", stroke: each.color, "stroke-width": each.width ?? 2, "stroke-dasharray": (each.dash ?? []).join(" ") });
    }
    for (const each of marks) {
      given.xs.forEach((at, k) => {
        if (!within(each.values[k])) return;
        const bar = [-2, 2].map((times) => y(Math.min(max, Math.max(min, each.values[k] + times * each.errors[k]))));
        add("line", { x1: x(at), x2: x(at), y1: bar[0], y2: bar[1], stroke: each.color });
        add("circle", { cx: x(at), cy: y(each.values[k]), r: 3, fill: "white", stroke: each.color });
      });
    }
    for (const each of ends(plot, given, 15, false)) {
      add("line", { x1: left + each.x, y1: head + top + each.y, x2: left + wide_ + 6, y2: head + top + each.at, stroke: each.color });
      add("text", { x: left + wide_ + 9, y: head + top + each.at + 4, fill: each.color }, each.text);
    }
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

