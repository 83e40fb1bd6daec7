  // ---- from the address to the page

  let waiting = 0, stopClock = () => {}, took = Infinity;
  function notBusy() {
    clearTimeout(waiting);
    stopClock();
    $("busy").hidden = true;
    $("status").textContent = "";
  }
  function giveUp() {
    running?.abort();
    notBusy();
    $("status").textContent = "Cancelled.";
  }
  // All that the tab does not change.
  const withoutTab = (one) => one && write({ ...one, tab: "" });
  async function load() {
    running?.abort();
    const controller = running = new AbortController(), { signal } = controller, begun = performance.now(), before = state;
    isTyped = now() === ownAddress;
    if (!isTyped) ownAddress = null;
    say("");
    try {
      state = read(now());
    } catch (error) {
      say(`The address cannot be read: ${error.message.slice(0, 200)}.`);
      state ??= read(START);
      return;
    }
    showTour();
    const isTab = networks.length && withoutTab(before) === withoutTab(state) && isCurrent("predict");
    if (!isTab) await predictAll(signal, begun);
    if (signal.aborted || !isCurrent("predict")) return;
    try {
      await fillTab(signal);
      if (signal.aborted) return;
      if (DATA.run) await showCell(signal);
      notBusy();
      document.body.dataset.settled = now();
      if (!isTab) await askSparks(signal);
    } catch (error) {
      if (!signal.aborted) say(error.message);
    }
  }
  function forget() {
    stepping?.abort();
    if (networkKey() !== sampledOf) {
      sampling?.abort();
      [sampled, sampledOf] = [null, ""];
      $("sample_words").textContent = "";
    }
    for (const id of ["rate", "sizes_words", "compared"]) $(id).textContent = "";
    for (const id of ["compared_all", "rate_all"]) $(id).hidden = true;
  }
  async function predictAll(signal, begun) {
    forget();
    mark();
    showTab();
    showControls();
    const name = nameOf(state.network);
    notBusy();
    document.body.classList.remove("failed");
    waiting = setTimeout(() => {
      const write_ = (passed) => { $("status").textContent = `Computing ${name === "This network" ? "this network" : name} … ${passed}`; };
      write_("");
      stopClock = clock(write_);
      $("busy").hidden = false;
    }, 200);
    try {
      const isHere = !!ready("predict", state.network), first = await ask("predict", state.network, { signal });
      if (!isHere) took = performance.now() - begun;
      else if (isModel()) took = Infinity;
      else took = Math.min(took, FAST - 1);
      const answers = [{ name: first.name, content: first }];
      for (const pin of state.pins) {
        try {
          answers.push({ name: pin.name, network: pin.network, content: await ask("predict", pin.network, { signal }) });
        } catch (error) {
          if (signal.aborted) return;
          say(`${pin.name}: ${error.message}`);
        }
      }
      if (signal.aborted) return;
      ghost = networks.length && !state.tour && networks[0].content !== first ? networks[0].content : null;
      networks = answers;
      const start = performance.now();
      mark("predict");
      showControls();
      showAnswer();
      performance.clearMeasures("show");
      performance.measure("show", { start });
      notBusy();
      document.body.dataset.shown = now();
      document.body.dataset.milliseconds = String(performance.now() - begun);
      if (LIVE && !isHere) await new Promise((go) => { setTimeout(go, PAUSE); });
    } catch (error) {
      if (signal.aborted) return;
      notBusy();
      showControls();
      document.body.classList.add("failed");
      say(error.message);
      document.body.dataset.shown = now();
    }
  }

  buildControls();
  buildTabs();
  buildSampling();
  buildTour();
  $("skip").addEventListener("click", () => $("answer").focus());
  $("contents").textContent = LIVE ? "This page contacts only this machine." : `This file contacts no server. It contains ${DATA.answers.about}`;
  for (const id of ["my_norm", "my_loss"]) $(id).addEventListener("input", compareMine);
  $("matrix").addEventListener("change", () => { showAnswer(); if (state.tab === "sizes") drawSizes(); });
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
  isDark.addEventListener("change", () => networks.length && (showAnswer(), drawSizes()));
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
