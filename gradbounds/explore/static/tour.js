  // ---- the tour: a question, a guess, and then what theory says; each stop is an address

  function showTour() {
    const stop = DATA.tour[state.tour - 1], at = Number(state.tour);
    $("tour").hidden = !stop;
    document.body.classList.toggle("touring", !!stop);
    document.body.classList.toggle("guessing", !!stop && guessed !== at);
    if (!stop) return;
    $("tour_where").textContent = `Stop ${at} of ${DATA.tour.length}${guessed === at ? `: ${stop.title}` : at === 1 ? " (about ten minutes in all)" : ""}`;
    $("tour_question").textContent = stop.question;
    $("guesses").replaceChildren(...stop.guesses.map((guess, k) => make("button", { type: "button", disabled: guessed === at,
      className: guessed === at && k === stop.right ? "right" : "", onclick: () => reveal(at, k) }, guess)));
    $("revealed").textContent = guessed === at ? stop.answer : "Guess first: the picture comes after it.";
    $("tour_back").hidden = at === 1;
    $("tour_next").textContent = at < DATA.tour.length ? "Next stop" : "End of the tour";
  }
  let guessed = 0;
  function reveal(at, guess) {
    guessed = at;
    const stop = DATA.tour[at - 1];
    showTour();
    $("revealed").textContent = `${guess === stop.right ? "Right." : "Not quite."} ${stop.answer}`;
    $("tour_next").focus({ preventScroll: true });
    drawLayers();
  }
  const goTo = (at) => { location.hash = at >= 1 && at <= DATA.tour.length ? `tour=${at}` : DATA.start; };
  function buildTour() {
    $("tour_start").addEventListener("click", () => goTo(1));
    $("tour_leave").addEventListener("click", () => { location.hash = write({ ...state, tab: "" }); });
    $("tour_back").addEventListener("click", () => goTo(Number(state.tour) - 1));
    $("tour_next").addEventListener("click", () => goTo(Number(state.tour) + 1));
  }

