  // ---- charts: one colour is one network, and the label at the end of a line names its matrix

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
  const charts = new Map(), widths = new Map();
  // Lines are theory and marks are samples, with bars of two standard errors.
  function draw(id, given) {
    const { about, xs, series, marks = [], ylog = true } = given, before = charts.get(id);
    const data = [xs, ...[...series, ...marks].map(({ values }) => values.map((value) => (ylog && !(value > 0) ? null : value)))];
    if (!widths.get(id)) widths.set(id, $(id).clientWidth && Math.max(240, $(id).clientWidth));
    if (!widths.get(id)) return; // out of sight: drawn when its tab is opened
    // A chart is made anew only if more than its numbers changed, which takes several times as long.
    const look = JSON.stringify([widths.get(id), isDark.matches, xs.length < 2, marks.length, longestEnd(series), given],
      (name, value) => ["about", "xs", "values", "errors", "end"].includes(name) ? undefined : value);
    if (before?.look === look) {
      Object.assign(before, { given, marks });
      before.plot.setData(data);
    } else {
      before?.plot.destroy();
      $(id).replaceChildren();
      const chart = { given, marks, look, tip: make("div", { className: "tip", hidden: true }) };
      chart.plot = new uPlot(options(chart, widths.get(id)), data, $(id));
      chart.plot.over.append(chart.tip);
      charts.set(id, chart);
    }
    set($(id), "ariaLabel", `${about}. Arrow keys read values; the table below has all.`);
  }
  // Pixels for the labels next to the chart, in steps, so that a digit more or less does not move it.
  const FONT = "system-ui, sans-serif", pen = make("canvas").getContext("2d");
  function longestEnd(series) {
    pen.font = `600 12px ${FONT}`;
    return Math.min(192, 24 * Math.ceil(Math.max(0, ...series.map((each) => pen.measureText(each.end ?? "").width)) / 24));
  }
  function options(chart, width) {
    const { series, xlabel, ylabel, xlog = false, ylog = true, xs, height } = chart.given, text = css("--text"), line = css("--grid");
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
    const labels = (u, ticks) => ticks.map((tick) => number(tick, 3)), read_ = (u, value) => value;
    const sparse = (u) => u.data[0].filter((_, k) => k % Math.max(1, Math.ceil(u.data[0].length / (width / 60))) === 0);
    return {
      width, height: height ?? Math.round(Math.min(340, Math.max(230, width * 0.5))), padding: [10, 14 + longestEnd(series), 0, 0],
      // A mark that is read is filled with its colour; uPlot would fill it with the page's, and the curve would have a hole.
      cursor: { y: false, drag: { x: false, y: false }, points: { fill: (u, k) => u.series[k].points.stroke(u, k) } }, legend: { show: false },
      scales: { x: { time: false, distr: xlog ? 3 : 1, log: 2, range: (u, low, high) => xlog ? [low / 1.1, high * 1.1]
        : [low - 0.3, high + 0.3] },
      y: ylog ? { distr: 3, range: (u, low, high) => logRange(low, high) } : { range: [0, 1] } },
      axes: [{ ...axis, label: xlabel, labelSize: 20, size: 30, splits: xlog ? sparse
        : (u, k, low, high) => whole(low, high, width), filter: (u, ticks) => ticks, values: (u, ticks) => ticks.map(String) },
      { ...axis, label: ylabel, labelSize: 18, size: 54, filter: (u, ticks) => ticks, values: labels,
        ...(ylog ? { splits: (u, k, low, high) => decades(low, high) } : {}) }],
      series: [{ label: xlabel, value: read_ }, ...series.map((each) => ({
        label: each.label, stroke: seen(each.color), width: each.width ?? 2, dash: each.dash,
        points: { show: xs.length < 2 || !!each.points, size: 6 }, spanGaps: true, value: read_ })),
      ...chart.marks.map((each) => ({ label: each.label, stroke: seen(each.color), paths: () => null,
        points: { show: true, size: 7, width: 1.5, fill: css("--back") }, value: read_ }))],
      hooks: { draw: [(u) => chart.marks.forEach((each) => bars(u, u.data[0], each)), (u) => nameEnds(u, chart)],
        setCursor: [(u) => showTip(u, chart)] },
    };
  }
  // Labels where lines end, pushed apart where lines meet: text, colour, the line's end and the label's height.
  function ends(plot, { xs, series }, gap, isCanvas) {
    const found = series.filter((each) => each.end).map((each) => {
      const at = each.values.findLastIndex((value) => value > 0);
      return at < 0 ? null : { text: each.end, color: each.color, x: plot.valToPos(xs[at], "x", isCanvas), y: plot.valToPos(each.values[at], "y", isCanvas) };
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    let last = -Infinity;
    for (const each of found) last = each.at = Math.max(each.y, last + gap);
    const over = last - (isCanvas ? plot.bbox.top + plot.bbox.height : plot.over.clientHeight);
    for (let k = found.length - 1, most = last - Math.max(0, over); k >= 0; k--) {
      found[k].at = Math.min(found[k].at, most);
      most = found[k].at - gap;
    }
    return found;
  }
  function nameEnds(u, chart) {
    const { ctx, bbox } = u, pixels = devicePixelRatio, right = bbox.left + bbox.width;
    ctx.save();
    ctx.font = `600 ${12 * pixels}px ${FONT}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    for (const each of ends(u, chart.given, 15 * pixels, true)) {
      ctx.fillStyle = ctx.strokeStyle = seen(each.color);
      ctx.lineWidth = 0.8 * pixels;
      ctx.setLineDash([]);
      // A line that ends early has its name there: a line to the edge would look like more of the curve.
      if (each.x < right - 60 * pixels) {
        ctx.fillText(each.text, each.x + 6 * pixels, each.at - 9 * pixels);
        continue;
      }
      ctx.beginPath();
      ctx.moveTo(each.x + 2 * pixels, each.y);
      ctx.lineTo(right + 6 * pixels, each.at);
      ctx.stroke();
      ctx.fillText(each.text, right + 9 * pixels, each.at);
    }
    ctx.restore();
  }
  // The values at a place of the axis, as text.
  function valuesAt({ given, marks }, at) {
    return [...given.series, ...marks].filter((each) => !each.isQuiet && each.values[at] !== null && each.values[at] !== undefined)
      .map((each) => [each.label, number(each.values[at]), each.color]);
  }
  function showTip(u, chart) {
    const at = u.cursor.idx, { tip } = chart;
    tip.hidden = at === null || at === undefined || u.cursor.left < 0;
    if (tip.hidden) return;
    tip.replaceChildren(make("b", {}, `${chart.given.xlabel} ${chart.given.xs[at]}`), ...valuesAt(chart, at).slice(0, 14).map(([label, value, shade]) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = seen(shade);
      return make("div", {}, swatch, `${label}  ${value}`);
    }));
    const left = u.valToPos(chart.given.xs[at], "x"), isLeft = left > u.over.clientWidth / 2;
    tip.style.left = isLeft ? "" : `${left + 12}px`;
    tip.style.right = isLeft ? `${u.over.clientWidth - left + 12}px` : "";
  }
  // Values by the keyboard, which are read out.
  function readable(holder) {
    holder.tabIndex = 0;
    holder.setAttribute("role", "img");
    holder.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], chart = charts.get(holder.id), plot = chart?.plot;
      if (!by || !plot) return;
      event.preventDefault();
      const xs = plot.data[0], at = Math.min(xs.length - 1, Math.max(0, (plot.cursor.idx ?? (by > 0 ? -1 : xs.length)) + by));
      plot.setCursor({ left: plot.valToPos(xs[at], "x"), top: 10 });
      $("spoken").textContent = [`${chart.given.xlabel} ${xs[at]}`, ...valuesAt(chart, at).map(([label, value]) => `${label} ${value}`)].join(", ");
    });
    holder.addEventListener("blur", () => charts.get(holder.id)?.plot.setCursor({ left: -10, top: -10 }));
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
