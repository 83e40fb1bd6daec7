  // ---- samples

  // What was drawn or lies in the run folder, of which network, and what draws now.
  let sampled = null, sampledOf = "", sampling = null, drawnSeed = null;

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
    $("no_sampling").hidden = LIVE;
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

