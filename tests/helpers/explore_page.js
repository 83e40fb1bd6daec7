// What the page of `gradbounds explore` does in a browser: node explore_page.js CHROMIUM ADDRESS FILE FOLDER prints JSON.
const { chromium } = require("playwright-core");
const [executablePath, address, file, folder] = process.argv.slice(2);
const found = { errors: [], dialogs: 0, requests: [] };

const table = (page) => page.evaluate(() => document.getElementById("table").textContent);
const canvas = (page) => page.evaluate(() => document.querySelector("#gradients canvas").toDataURL());
const text = (page, id) => page.evaluate((name) => document.getElementById(name).textContent, id);
const shown = (page, hash) => page.waitForFunction((want) => document.body.dataset.shown === want
  && location.hash.slice(1) === want, hash, { timeout: 120000 });

async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, acceptDownloads: true, ...options });
  const page = await context.newPage();
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
async function fill(page, field, value) {
  await page.evaluate(([name, word]) => {
    const input = document.getElementById(`field_${name}`);
    input.closest("details").open = true;
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
  found.value_by_keyboard = await page.evaluate(() => [...document.querySelectorAll("#gradients .u-value")].map((value) => value.textContent).join(" "));
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#csv")]);
  await download.saveAs(`${folder}/page.csv`);
  await page.fill("#my_norm", "2");
  found.what_yours_printed = await text(page, "mine");
  const config = { model_type: "llama", hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, vocab_size: 96,
    intermediate_size: 96 };
  await page.setInputFiles("#file", { name: "config.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(config)) });
  await page.waitForFunction(() => location.hash.includes("config=") && document.body.dataset.shown === location.hash.slice(1));
  found.of_a_config = await text(page, "title");
  found.command_of_a_config = await text(page, "command");
  await page.goBack();
  await shown(page, "placement=post");
  await page.fill("#pin_name", "one");
  await page.click("#pin");
  await page.waitForFunction(() => document.querySelectorAll("#pins li").length === 1 && location.hash.includes("pin="));
  found.pinned = await text(page, "pins");
  await page.click("#step");
  await page.waitForTimeout(500);
  await page.click("#cancel");
  await page.waitForFunction(() => !document.getElementById("step").disabled);
  found.cancelled = await text(page, "rate");
  await page.close();
}
async function latency(browser) {
  const page = await open(browser, `${address}#placement=post`), times = [];
  await page.waitForFunction(() => document.body.dataset.settled === "placement=post", null, { timeout: 120000 });
  const changes = [];
  for (let k = 0; k < 40; k++) changes.push([["width", "depth", "tokens", "vocab"][k % 4], String(9 + k)]);
  for (const [field, value] of changes) {
    const time = page.evaluate(() => new Promise((done) => {
      const begun = performance.now(), before = document.body.dataset.shown;
      const look = () => document.body.dataset.shown !== before && document.body.dataset.shown === location.hash.slice(1)
        ? done(performance.now() - begun) : requestAnimationFrame(look);
      look();
    }));
    await fill(page, field, value);
    times.push(await time);
  }
  times.sort((a, b) => a - b);
  found.latency = { changes: times.length, median_ms: Math.round(times[20]), at_95_percent_ms: Math.round(times[37]) };
  await page.close();
}
async function hostile(browser) {
  found.hostile = {};
  const cases = { "unknown field": "nofield=1", "script in a name": `placement=${encodeURIComponent("<img src=x onerror=alert(1)>")}`,
    "script in a pin": `placement=pre&pin=${encodeURIComponent(`placement=pre&name=${encodeURIComponent("<img src=x onerror=alert(1)>")}`)}`,
    "width 1e9": "width=1e9", "depth 1e5": "depth=100000", "1 MB": `like=${"x".repeat(1e6)}`, "no number": "width=many" };
  for (const [name, hash] of Object.entries(cases)) {
    const begun = Date.now(), page = await open(browser, `${address}#${hash}`);
    await page.waitForFunction(() => !document.getElementById("message").hidden || document.body.dataset.shown, null, { timeout: 120000 });
    found.hostile[name] = { message: (await text(page, "message")).slice(0, 160), seconds: Math.round((Date.now() - begun) / 100) / 10,
      images: await page.evaluate(() => document.images.length) };
    await page.context().close();
  }
}
async function offline(browser) {
  const before = found.requests.length;
  const page = await open(browser, file, { offline: true });
  await page.waitForFunction(() => document.body.dataset.settled !== undefined);
  const first = await text(page, "first_line");
  await page.click("#paper");
  await shown(page, "placement=post");
  await page.locator("#chips input[value=pre]").check({ force: true });
  await shown(page, "placement=pre");
  const title = await text(page, "title");
  await fill(page, "width", "77");
  await shown(page, "placement=pre&width=77");
  found.file = { first_line: first, title, not_in_it: (await text(page, "message")).slice(-60), asked: [...new Set(found.requests.slice(before))] };
  found.requests.length = before;
  await page.close();
}
async function narrow(browser) {
  const page = await open(browser, `${address}#placement=pre`, { viewport: { width: 390, height: 800 } });
  await shown(page, "placement=pre");
  found.beyond_390_pixels = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  await page.close();
}
(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  for (const part of [live, latency, hostile, offline, narrow]) await part(browser);
  found.requests = [...new Set(found.requests)];
  found.chromium = browser.version();
  await browser.close();
  console.log(JSON.stringify(found));
})().catch((error) => { console.error(error, JSON.stringify(found)); process.exit(1); });
