// What the page of `gradbounds explore` does in a browser: node explore_page.js CHROMIUM ADDRESS FILE FOLDER RUN SETTINGS PART
// prints JSON.
const { chromium } = require("playwright-core");
const [executablePath, address, file, folder, ofRun, given, asked] = process.argv.slice(2);
const settings = JSON.parse(given);
const found = { errors: [], dialogs: 0, requests: [], beyond: {} };
const SMALL = "placement=peri&width=128&tokens=4";

// A table is filled when it is opened, and then with every change.
async function unfold(page, id) {
  await fold(page, id, true);
  await page.waitForFunction((name) => document.getElementById(name).hasChildNodes(), id);
}
const fold = (page, id, isOpen) => page.evaluate(([name, open]) => { document.getElementById(name).closest("details").open = open; }, [id, isOpen]);
async function table(page) {
  await unfold(page, "table");
  return text(page, "table");
}
const canvas = (page) => page.evaluate(() => document.querySelector("#gradients canvas").toDataURL());
const text = (page, id) => page.evaluate((name) => document.getElementById(name).textContent, id);
const shown = (page, hash) => page.waitForFunction((want) => document.body.dataset.shown === want
  && location.hash.slice(1) === want, hash, { timeout: 300000 });
const settled = (page, hash) => page.waitForFunction((want) => document.body.dataset.settled === want, hash, { timeout: 300000 });

async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(300000);
  page.on("pageerror", (error) => found.errors.push(error.message));
  page.on("console", (line) => {
    // A refused question is a reply of 400, of which Chromium says so.
    if (line.type() === "error" && !line.text().includes("400 (Bad Request)")) found.errors.push(line.text());
  });
  page.on("dialog", (dialog) => { found.dialogs++; dialog.dismiss(); });
  page.on("request", (request) => found.requests.push(new URL(request.url()).origin));
  await page.goto(url);
  return page;
}
const tab = (page, name) => page.click(`#tab_${name}`);
async function fill(page, field, value) {
  await page.evaluate(([name, word]) => {
    const input = document.getElementById(`field_${name}`);
    input.value = word;
    input.dispatchEvent(new Event("change"));
  }, [field, value]);
}

async function live(browser) {
  const page = await open(browser, `${address}#placement=post`);
  await shown(page, "placement=post");
  const before = [await table(page), await canvas(page)];
  await page.locator("#chips input[value=pre]").focus();
  await page.keyboard.press("ArrowRight"); // a group of radio buttons by the keyboard
  const byKey = await page.evaluate(() => document.querySelector("#chips input:checked").value);
  await shown(page, `placement=${byKey}`);
  await page.locator("#field_width").fill("1024");
  await page.keyboard.press("Tab");
  const hash = `placement=${byKey}&width=1024`;
  await shown(page, hash);
  const after = [await table(page), await canvas(page)];
  found.control = { address: hash, moves_numbers: before[0] !== after[0], moves_curve: before[1] !== after[1] };
  const again = await open(browser, `${address}#${hash}`);
  await shown(again, hash);
  found.address_restores = (await table(again)) === after[0] && (await again.inputValue("#field_width")) === "1024";
  await again.close();
  await page.goBack();
  await page.goBack();
  await shown(page, "placement=post");
  found.back_restores = (await table(page)) === before[0];
  await page.locator("#gradients").focus();
  await page.keyboard.press("ArrowRight");
  found.value_by_keyboard = await text(page, "spoken");
  await tab(page, "code");
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#csv")]);
  await download.saveAs(`${folder}/page.csv`);
  const [picture] = await Promise.all([page.waitForEvent("download"), page.click("#svg")]);
  await picture.saveAs(`${folder}/page.svg`);
  await tab(page, "log");
  await settled(page, "placement=post&tab=log");
  await page.fill("#my_norm", "2");
  found.what_yours_printed = await text(page, "mine");
  const config = { model_type: "llama", hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 96,
    intermediate_size: 96 };
  await page.setInputFiles("#file", { name: "config.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(config)) });
  await page.waitForFunction(() => location.hash.includes("config=") && document.body.dataset.shown === location.hash.slice(1));
  found.of_a_config = await text(page, "title");
  found.command_of_a_config = await text(page, "command");
  await page.goBack();
  await settled(page, "placement=post&tab=log");
  await tab(page, "compare");
  await page.fill("#pin_name", "one");
  await page.click("#pin");
  await page.waitForFunction(() => document.querySelectorAll("#pins li").length === 1 && location.hash.includes("pin="));
  found.pinned = await text(page, "pins");
  await tab(page, "rate");
  await page.click("#step");
  await page.waitForTimeout(500);
  await page.click("#cancel");
  await page.waitForFunction(() => !document.getElementById("step").disabled);
  found.cancelled = await text(page, "rate");
  await page.close();
}
// Samples of one browser, which the other has not; a cancelled draw leaves none.
async function samples(browser) {
  const hash = `${SMALL}&tab=samples`, one = await open(browser, `${address}#${hash}`), other = await open(browser, `${address}#${hash}`);
  for (const page of [one, other]) await settled(page, hash);
  const words = (page) => text(page, "sample_words"), plain = await canvas(one);
  const drawnBy = async (page, draws) => {
    await page.fill("#draws", draws);
    await page.click("#sample");
  };
  const idle = (page) => page.waitForFunction(() => !document.getElementById("sample").disabled, null, { timeout: 300000 });
  await drawnBy(one, "64");
  await idle(one);
  found.samples = { words: await words(one), moves_curve: plain !== await canvas(one), button: await text(one, "sample"),
    others_words: await words(other), others_curve_is_plain: plain === await canvas(other) };
  await tab(one, "code");
  const [download] = await Promise.all([one.waitForEvent("download"), one.click("#csv")]);
  await download.saveAs(`${folder}/samples.csv`);
  const [drawn] = await Promise.all([one.waitForEvent("download"), one.click("#svg")]);
  await drawn.saveAs(`${folder}/samples.svg`);
  await tab(one, "samples");
  await drawnBy(one, "20000");
  await one.waitForFunction(() => /^[0-9]+ of/.test(document.getElementById("sample_words").textContent), null, { timeout: 300000 });
  found.samples.bar = await one.evaluate(() => { const bar = document.getElementById("sample_bar"); return [bar.hidden, bar.value > 0 && bar.value < bar.max]; });
  await one.click("#cancel_sample");
  await idle(one);
  found.samples.cancelled = await words(one);
  await drawnBy(one, "64");
  await idle(one);
  found.samples.again = await words(one);
  await drawnBy(one, "1e9");
  await idle(one);
  found.samples.too_many = await words(one);
  for (const page of [one, other]) await page.context().close();
}
async function run(browser) {
  const page = await open(browser, ofRun);
  await page.waitForFunction(() => document.getElementById("sample_words").textContent.includes("networks of"), null, { timeout: 300000 });
  await tab(page, "samples");
  const first = await page.inputValue("#cell"), cells = await page.evaluate(() => document.getElementById("cell").options.length - 1);
  await page.selectOption("#cell", { index: 2 });
  await page.waitForFunction((before) => document.getElementById("cell").value !== before
    && document.getElementById("sample_words").textContent.includes("networks of"), first, { timeout: 300000 });
  found.run = { cells, words: await text(page, "sample_words"), title: await text(page, "title") };
  await page.close();
}
async function public_run(browser) {
  const page = await open(browser, `${address}#like=gpt2&tab=log`);
  await settled(page, "like=gpt2&tab=log");
  await page.evaluate(() => {
    const list = document.getElementById("public_run");
    list.value = [...list.options].find((each) => each.text === "GPT-2 124M, llm.c").value;
    list.dispatchEvent(new Event("change"));
  });
  await page.waitForFunction(() => !document.getElementById("busy").hidden, null, { timeout: 300000 });
  await page.click("#give_up");
  found.given_up = [await text(page, "status"), await page.evaluate(() => document.getElementById("busy").hidden)];
  await page.reload();
  await page.waitForFunction(() => document.getElementById("first_line").textContent.includes("1024"), null, { timeout: 300000 });
  found.public_run = { first_line: await text(page, "first_line"), printed: await text(page, "printed"), mine: await text(page, "mine"),
    boxes: [await page.inputValue("#my_loss"), await page.inputValue("#my_norm")] };
  await page.close();
}
async function parts(browser) {
  const pins = ["pre", "peri", "keel"].map((name) => `pin=${encodeURIComponent(`placement=${name}&name=${name}`)}`).join("&");
  const page = await open(browser, `${address}#placement=post&${pins}&tab=compare`);
  await page.waitForFunction(() => document.querySelectorAll("#compared p").length === 3, null, { timeout: 300000 });
  found.compared = await page.evaluate(() => [...document.querySelectorAll("#compared p")].map((each) => each.textContent));
  await tab(page, "layers");
  await unfold(page, "apart_table");
  found.taken_apart = await page.evaluate(() => [...document.querySelectorAll("#apart_table tbody tr")].map((row) =>
    [...row.cells].map((cell) => (cell.querySelector("span")?.firstChild ?? cell).textContent)));
  await page.close();
}
// Numbers of the table of random settings, as the page prints them, for the test to hold against predict.
async function numbers(browser) {
  const read = async (page) => page.evaluate(() => [...document.querySelectorAll("#table tr")].map((row) => [...row.cells].map((cell) => cell.textContent)));
  found.numbers = { served: {}, file: {} };
  for (const [kind, url, options, list] of [["served", address, {}, settings.served], ["file", file, { offline: true }, settings.file]]) {
    const page = await open(browser, `${url}#${list[0]}`, options), times = [];
    await shown(page, list[0]);
    for (const hash of list) {
      await page.evaluate((want) => { location.hash = want; }, hash);
      await shown(page, hash);
      if (kind === "file") times.push(await page.evaluate(() => Number(document.body.dataset.milliseconds)));
      await unfold(page, "table");
      found.numbers[kind][hash] = await read(page);
      await fold(page, "table", false);
    }
    if (kind === "file") found.file_milliseconds = { median: Math.round(times.sort((a, b) => a - b)[times.length >> 1]), largest: Math.round(times.at(-1)) };
    await page.context().close();
  }
}
async function pictures(browser) {
  for (const [name, url] of [["served", `${address}#${SMALL}`], ["file", `${file}#placement=pre`]]) {
    for (const width of [1280, 390]) {
      for (const colorScheme of ["light", "dark"]) {
        const page = await open(browser, url, { viewport: { width, height: 900 }, colorScheme });
        await page.waitForFunction(() => document.body.dataset.settled !== undefined, null, { timeout: 300000 });
        if (name === "served") {
          await tab(page, "samples");
          await page.click("#sample");
          await page.waitForFunction(() => !document.getElementById("sample").disabled, null, { timeout: 300000 });
        }
        await page.screenshot({ path: `${folder}/${name}-${width}-${colorScheme}.png`, fullPage: true });
        const beyond = () => page.evaluate(() => document.documentElement.scrollWidth - innerWidth), first = await beyond();
        // A window that narrows: charts are drawn again after a moment, and do not widen the page until then.
        await page.setViewportSize({ width: 320, height: 900 });
        found.beyond[`${name} at ${width}`] = Math.max(first, await beyond());
        await page.context().close();
      }
    }
  }
}
// From a control to the new curve, of four networks of 48 layers; and the time of the page's own work in it.
async function latency(browser) {
  const pins = ["pre", "peri", "keel"].map((name) => `pin=${encodeURIComponent(`placement=${name}&depth=48&name=${name}`)}`).join("&");
  const page = await open(browser, `${address}#placement=post&depth=48&${pins}&tab=fields`), times = [];
  const work = await page.context().newCDPSession(page);
  await work.send("Performance.enable", { timeDomain: "threadTicks" }); // of a processor, not of a clock
  const busy = async () => (await work.send("Performance.getMetrics")).metrics.find((each) => each.name === "TaskDuration").value;
  await page.waitForFunction(() => document.body.dataset.settled !== undefined, null, { timeout: 300000 });
  const scripts = [];
  let tasks = 0;
  for (let k = 0; k < 40; k++) {
    const time = page.evaluate(() => new Promise((done) => {
      const begun = performance.now(), before = document.body.dataset.shown;
      const look = () => document.body.dataset.shown !== before && document.body.dataset.shown === location.hash.slice(1)
        ? done(performance.now() - begun) : requestAnimationFrame(look);
      look();
    }));
    const before = await busy();
    await fill(page, ["width", "tokens", "vocab"][k % 3], String(9 + k));
    times.push(await time);
    tasks += await busy() - before;
    scripts.push(await page.evaluate(() => performance.getEntriesByName("show")[0].duration));
  }
  for (const each of [times, scripts]) each.sort((a, b) => a - b);
  found.latency = { changes: times.length, networks: 4, layers: 48, median_ms: Math.round(times[20]), at_95_percent_ms: Math.round(times[37]),
    script_median_ms: Math.round(scripts[20]), script_at_95_percent_ms: Math.round(scripts[37]), page_work_ms: Math.round((1000 * tasks) / times.length) };
  await page.close();
}
async function hostile(browser) {
  found.hostile = {};
  const cases = { "unknown field": "nofield=1", "script in a name": `placement=${encodeURIComponent("<img src=x onerror=alert(1)>")}`,
    "script in a pin": `placement=pre&pin=${encodeURIComponent(`placement=pre&name=${encodeURIComponent("<img src=x onerror=alert(1)>")}`)}`,
    "width 1e9": "width=1e9", "depth 1e5": "depth=100000", "1 MB": `like=${"x".repeat(1e6)}`, "no number": "width=many" };
  for (const [name, hash] of Object.entries(cases)) {
    const begun = Date.now(), page = await open(browser, `${address}#${hash}`);
    await page.waitForFunction(() => !document.getElementById("message").hidden || document.body.dataset.shown, null, { timeout: 300000 });
    found.hostile[name] = { message: (await text(page, "message")).slice(0, 160), seconds: Math.round((Date.now() - begun) / 100) / 10,
      images: await page.evaluate(() => document.images.length) };
    await page.context().close();
  }
}
async function offline(browser) {
  const before = found.requests.length;
  const page = await open(browser, file, { offline: true });
  await tab(page, "log");
  await page.waitForFunction(() => document.getElementById("first_line").textContent);
  const first = await text(page, "first_line");
  await tab(page, "layers");
  await page.click("#paper");
  await shown(page, "placement=post");
  await page.locator("#chips input[value=pre]").check({ force: true });
  await shown(page, "placement=pre");
  const title = await text(page, "title"), tokens = await text(page, "standing");
  await fill(page, "width", "77");
  await shown(page, "placement=pre&width=77");
  found.file = { first_line: first, title, tokens, not_in_it: (await text(page, "message")).slice(-60), asked: [...new Set(found.requests.slice(before))] };
  found.requests.length = before;
  await page.close();
}
// While answers are held back: which parts can be seen or used that answer another question than the address asks. Then
// the field with the caret, which follows the history.
async function current(browser) {
  const page = await open(browser, `${address}#${SMALL}&tab=log`), held = [];
  await settled(page, `${SMALL}&tab=log`);
  const hold = (kind) => page.route(`**/api/${kind}`, (route) => held.push(route));
  const seen = async () => {
    await page.waitForTimeout(300); // of which a fast answer has half before what it replaces is hidden
    return page.evaluate(() => [...new Set([...document.querySelectorAll("[data-of]")].filter((each) => each.offsetParent
      && !(each.closest("[inert]") && getComputedStyle(each).visibility === "hidden")).map((each) => each.dataset.of))].sort());
  };
  for (const kind of ["predict", "batch"]) await hold(kind);
  const next = "placement=pre&width=144";
  await page.evaluate((want) => { location.hash = want; }, `${next}&tab=log`);
  await page.waitForFunction(() => document.getElementById("status").textContent.startsWith("Computing"));
  found.current = { waiting: await seen() };
  await page.unroute("**/api/predict");
  for (const route of held.splice(0)) await route.continue().catch(() => {});
  await shown(page, `${next}&tab=log`);
  found.current.predicted = await seen();
  await page.unroute("**/api/batch");
  for (const route of held.splice(0)) await route.continue().catch(() => {});
  await settled(page, `${next}&tab=log`);
  found.current.settled = await seen();
  await tab(page, "fields");
  const field = (value) => `${next}&tokens=${value}&tab=fields`;
  await page.evaluate(() => document.querySelectorAll("#groups details").forEach((each) => { each.open = true; }));
  for (const value of ["4", "6"]) {
    await page.locator("#field_tokens").fill(value);
    await settled(page, field(value));
  }
  await page.goBack();
  await settled(page, field("4"));
  found.current.caret = await page.evaluate(() => [document.activeElement.id, document.activeElement.value]);
  await page.context().close();
}
// From an address to the first picture, of the served page and of the file; and whether a reader without scripts has one.
async function first(browser) {
  found.first = {};
  for (const [name, url] of [["served", address], ["file", file]]) {
    const times = [];
    for (let k = 0; k < 5; k++) {
      const begun = Date.now(), page = await open(browser, url);
      await page.waitForFunction(() => document.body.dataset.shown !== undefined);
      times.push(Date.now() - begun);
      await page.context().close();
    }
    found.first[`${name}_ms`] = times.sort((a, b) => a - b)[2];
  }
  const page = await open(browser, address, { javaScriptEnabled: false });
  found.first.without_scripts = [await page.locator("#finding").textContent(), await page.locator("#gradients polyline").count()];
  await page.context().close();
}
(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  await { live, samples, run, parts, public_run, latency, hostile, offline, numbers, pictures, current, first }[asked](browser);
  found.requests = [...new Set(found.requests)];
  found.chromium = browser.version();
  await browser.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error, JSON.stringify(found)); process.exit(1); });
