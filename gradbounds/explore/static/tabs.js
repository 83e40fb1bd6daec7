  // ---- tabs: the first line of a log, other sizes, the first step, other networks; each is asked when it is opened

  const TABS = ["layers", "log", "sizes", "rate", "samples", "compare", "fields", "code"];
  function showTab() {
    const name = TABS.includes(state.tab) ? state.tab : TABS[0];
    for (const each of TABS) {
      const tab = $(`tab_${each}`), isShown_ = each === name;
      tab.setAttribute("aria-selected", String(isShown_));
      tab.tabIndex = isShown_ ? 0 : -1;
      $(`panel_${each}`).hidden = !isShown_;
    }
    return name;
  }
  function buildTabs() {
    $("tabs").addEventListener("click", ({ target }) => target.id.startsWith("tab_") && change((next) => { next.tab = target.id.slice(4); }));
    $("tabs").addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const tab = $(`tab_${TABS.at((TABS.indexOf(event.target.id.slice(4)) + by) % TABS.length)}`);
      tab.focus();
      tab.click();
    });
  }
  // What the open tab shows and is not here yet.
  async function fillTab(signal) {
    const name = showTab();
    if (!networks.length || !isCurrent("predict")) return;
    if (name === "layers") {
      drawLayers();
      await askEvened(signal);
    } else if (name === "log") await askLog(signal);
    else if (name === "sizes" && !isCurrent("sizes")) {
      $("sizes").hidden = !LIVE || took < FAST;
      sizesOf = [];
      if (!LIVE || took < FAST) await askSizes(signal);
    } else if (name === "sizes") drawSizes();
    else if (name === "compare") await compare(signal);
    else if (name === "code") await showLines();
  }
  async function askLog(signal) {
    batchOf = null;
    if (isCurrent("batch")) return;
    $("log_status").textContent = "Computing the first line of the log …";
    const stop = clock((passed) => { $("log_status").textContent = `Computing the first line of the log … ${passed}`; });
    try {
      showBatch(await ask("batch", state.network, { batch: state.batch, zipf: state.zipf, signal }), "");
    } catch (error) {
      if (!signal.aborted) showBatch(null, error.message);
    }
    stop();
    if (!signal.aborted) $("log_status").textContent = "";
  }
  function drawSizes() {
    const role = chosenMatrices()[0], rows = [];
    $("sizes_drawn").hidden = !sizesOf.length;
    for (const [id, kind] of [["depths", "depth"], ["widths", "width"]]) {
      const answers = sizesOf.map((each) => each[kind]);
      if (!answers.every(Boolean) || !answers.length) continue;
      const xs = [...new Set(answers.flatMap((one) => one.rows.size))].sort((a, b) => a - b), series = [];
      answers.forEach((one, k) => {
        for (const end of ["first", "last"]) {
          const at = new Map(one.rows.size.map((size, j) => [size, j]).filter(([, j]) => one.rows.quantity[j] === role));
          series.push({ label: named(`${end} layer`, k), color: DATA.curves[k], dash: end === "first" ? [6, 4] : [], end: named(`${end} layer`, k).slice(0, 24), points: true,
            values: xs.map((size) => at.has(size) ? one.rows[end][at.get(size)] : null) });
        }
      });
      const paper = new Map(answers[0].paper.map((one) => [one.size, one]));
      if (role === "grad_W2" && paper.size) {
        series.push({ label: "Theorem 1 allows", color: "#b3261e", dash: [8, 5], end: "Theorem 1", values: xs.map((size) => paper.get(size)?.bound ?? null) });
        if (answers[0].paper[0].appendix_f) series.push({ label: "appendix F, first layer", color: "#777777", dash: [2, 3], end: "appendix F",
          values: xs.map((size) => paper.get(size)?.appendix_f ?? null) });
      }
      draw(id, { about: `First and last layer against the ${kind}`, xs, series, xlog: true, xlabel: kind, ylabel: `gradient norm of ${role.replace("grad_", "")}` });
      xs.forEach((size, at) => series.forEach((one) => {
        if (one.values[at] !== null) rows.push([kind, String(size), one.label, number(one.values[at])]);
      }));
    }
    table("sizes_table", () => [["against", "size", "what", "norm"], rows]);
  }

  // The end of the command's own sentence, as ", at 512 sequences of 16 tokens".
  const sizes = (content) => content.lines.join(" ").match(/, at [\d,]+ sequences? of [\d,]+ tokens?/)?.[0] ?? "";
  // The law as the field has it: a kind of text, an exponent, or none.
  const lawOf = (content) => content.text?.replace(/^zipf:/, "");

  // Flags of the command in words of the page.
  const forPage = (text) => text.replace("; --text english predicts it.", "; choose English text to predict it.").replace("; --patterns N reduces these errors.", ".")
    .replace("within --max-time and --memory", "that this page has time and memory for unasked,").replace(/ --text FILE uses your own text\./, "");
  function showBatch(content, error) {
    batchOf = content;
    const law = content && lawOf(content);
    $("first_line").textContent = content ? `Step 1: loss ${number(content.loss)}, gradient norm ${number(content.gradient_norm)}${sizes(content)}, ` +
      (!law || law === DISTINCT ? "all words different" : isNaN(law) ? `text: ${law.replace("_", " ")}` : `words by Zipf’s law, exponent ${law}`) : "";
    $("zipf").placeholder = law ?? "all differ";
    const tokens = tokensOf(networks[0].content);
    $("log_tokens").textContent = content && content.tokens !== tokens ? `A log’s sequences are long, so this line is for ${content.tokens} tokens in a sequence; ` +
      `the curves above are for ${tokens}. The field tokens, under All fields, sets both.` : "";
    $("log_command").textContent = command(state.network, "batch", state.batch, state.zipf);
    // The command's own words, from its sentence on.
    const from = content ? content.lines.findIndex((line) => line.startsWith("Step 1")) : -1;
    if (content) $("first_words").textContent = forPage(content.lines.slice(from, content.lines.indexOf("", from)).join(" "));
    else $("first_words").replaceChildren(error, ...longer(error));
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
    if (batchOf?.loss && loss > 0) texts.push(`Your loss is ${number(Math.abs(loss - batchOf.loss), 2)} ${loss >= batchOf.loss ? "above" : "below"} it.`);
    if (batchOf && norm > 0 && (!batchOf.text || batchOf.text === DISTINCT)) texts.push("Text repeats words, and then gradients agree more: choose English text.");
    if (batchOf && norm > 0) texts.push("A log’s norm must be taken before clipping, of the mean loss, at the first step.");
    $("mine").textContent = texts.join(" ");
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
