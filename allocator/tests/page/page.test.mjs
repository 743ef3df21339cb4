// The allocator's page in Debian's Chromium, before a live allocator with a swarm of hosts.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test as run } from "node:test";
import { launch, open } from "./browser.mjs";
import { Fleet, until } from "./fleet.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let fleet, browser;

// A page that never gets there fails its test, and does not hold up the others.
const test = (name, check) => run(name, { timeout: 120_000 }, check);

before(async () => {
  fleet = await Fleet.start({ racks: 2 });
  [browser] = await Promise.all([launch(), fleet.swarm({ flows: 200, churn: 200, seconds: 600 })]);
});

after(async () => {
  await browser?.close();
  await fleet?.stop();
});

const text = (page, id) => page.evaluate((id) => document.getElementById(id).textContent, id);

test("a change is on the page within two seconds", async () => {
  const { page, close } = await open(browser, fleet.origin);
  assert.match(await text(page, "load-note"), /no link is down/);
  // In the browser: from the answer to the change until it is drawn. It looks out before the change comes.
  await page.evaluate(() => {
    globalThis.drawn = new Promise((done) => {
      const note = document.getElementById("load-note");
      // The page also draws what has not changed.
      new MutationObserver(() => {
        if (/\d links? down/.test(note.textContent)) done(performance.timeOrigin + performance.now());
      }).observe(note, { childList: true, characterData: true, subtree: true });
    });
  });
  await fleet.post("/topology/link", { from: "leaf1", to: "spine1", up: false });
  const changed = performance.timeOrigin + performance.now();
  const after = Math.round((await page.evaluate(() => globalThis.drawn)) - changed);
  console.log(`# drawn ${after} ms after the change`);
  assert.ok(after < 2_000, `${after} ms`);
  assert.match(await text(page, "load-note"), /2 links down: leaf1->spine1|2 links down: spine1->leaf1/);
  assert.ok((await page.locator("#map path.cable").count()) > 32);
  await fleet.post("/topology/link", { from: "leaf1", to: "spine1", up: true });

  assert.equal(await text(page, "state"), "active");
  await fleet.post("/release", {});
  await page.waitForFunction(() => document.getElementById("state").textContent.startsWith("released"));
  await fleet.post("/resume", {});
  await page.waitForFunction(() => document.getElementById("state").textContent === "active");
  await close();
});

test("a link's flows add up to what is drawn on it", async () => {
  const { page, close } = await open(browser, fleet.origin);
  await page.locator("#busiest button").first().click();
  await page.waitForSelector("#chosen-flows td.n");
  const [chosen, flows] = [await text(page, "chosen-title"), await page.locator("#chosen-flows tr").count()];
  // Full frames of 1,538 bytes on a line of 10 Gbit/s hold packets with 1,514 that count.
  assert.match(chosen, /->.*: .*bit\/s of 9\.84 Gbit\/s, \d+ flows?/);
  assert.ok(flows >= 1 && flows <= 16);
  // The same with a mouse, in the picture.
  await page.locator("#map path.cable").first().click({ force: true });
  await page.waitForFunction((before) => document.getElementById("chosen-title").textContent !== before, chosen);
  await close();
});

for (const colorScheme of ["light", "dark"]) {
  test(`axe finds nothing serious, ${colorScheme}`, async () => {
    const { page, close } = await open(browser, fleet.origin, { colorScheme });
    await page.locator("#busiest button").first().click();
    await page.waitForSelector("#chosen-flows td.n");
    await page.evaluate(AXE);
    const { violations } = await page.evaluate(() => globalThis.axe.run());
    const found = violations.map(({ id, impact, nodes }) => `${impact}: ${id}: ${nodes.map((node) => node.target).join(", ")}`);
    for (const line of found) console.log(`# ${line}`);
    assert.deepEqual(violations.filter(({ impact }) => impact === "serious" || impact === "critical").map(({ id }) => id), []);
    await close();
  });
}

test("nothing loads from elsewhere and the policy is never broken", async () => {
  const { page, seen, close } = await open(browser, fleet.origin);
  await page.locator("#busiest button").first().click();
  await page.waitForSelector("#chosen-flows td.n");
  await page.waitForTimeout(1_200);
  assert.ok(seen.requests.length >= 5, seen.requests.join(" "));
  assert.deepEqual(seen.requests.filter((url) => !url.startsWith(`${fleet.origin}/`)), []);
  const loaded = await page.evaluate(() => performance.getEntriesByType("resource").map((entry) => entry.name));
  assert.deepEqual(loaded.filter((url) => !url.startsWith(`${fleet.origin}/`)), []);
  assert.deepEqual(await page.evaluate(() => globalThis.violations), []);
  // A browser reports refused answers as errors; /audit is the one that an allocator may not have.
  assert.deepEqual(seen.complaints.filter((line) => !/404/.test(line)), []);
  // What the page could not do even if it wanted to.
  const blocked = await page.evaluate(async () => {
    document.body.append(Object.assign(document.createElement("img"), { src: "http://127.0.0.1:9/elsewhere.png" }));
    await new Promise((done) => setTimeout(done, 100));
    return globalThis.violations;
  });
  assert.ok(blocked.some((violation) => violation.startsWith("img-src")), blocked.join());
  await close();
});

test("a hostile host name does not become markup", async () => {
  const { page, close } = await open(browser, fleet.origin);
  const overview = await fleet.overview();
  const shown = await page.evaluate(async (overview) => {
    const hostile = `"><img src=x onerror="globalThis.hacked=1"><script>globalThis.hacked=1</script>`;
    const poison = (value, key) => {
      if (Array.isArray(value)) return value.map((entry) => poison(entry, key));
      if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, poison(entry, key)]));
      return typeof value === "string" && key !== "totals" ? hostile : value;
    };
    const { render } = await import("/page.js");
    const link = { name: "x", state: "x", cause: "x", told_bps: 1, carried_bps: 1, speed_bps: 1, lowered_bps: 1 };
    render(poison({ ...overview, links_not_as_told: 1, not_as_told: [link], faults: [{ host: "x", fault: "x", seen_at: "x" }], hosts_missing: ["x"], links_down: 1, links_down_names: ["x"] }));
    const seen = { text: document.getElementById("top").textContent.includes("<img src=x"), elements: document.querySelectorAll("img, main script").length };
    await new Promise((done) => setTimeout(done, 50));
    return { ...seen, hacked: globalThis.hacked ?? 0 };
  }, overview);
  assert.deepEqual(shown, { text: true, elements: 0, hacked: 0 });
  await close();

  // Nor does it come so far: a topology with such a name is refused.
  const topology = readFileSync(fleet.path("topology.toml"), "utf8");
  writeFileSync(fleet.path("hostile.toml"), `${topology}\n[[host]]\nname = "<img src=x>"\nreplaces = "h1"\n`);
  assert.throws(() => fleet.ratewright("topology", "check", fleet.path("hostile.toml")), /is no host name/);
});

test("the page names links of each state and hosts that are not as told, with the evidence", async () => {
  const { page, close } = await open(browser, fleet.origin);
  assert.match(await text(page, "check"), /every link and host is as the allocator was told/);
  const overview = await fleet.overview();
  const shown = await page.evaluate(async (overview) => {
    const { render } = await import("/page.js");
    const nothing = { cause: null, told_bps: 1e10, carried_bps: null, speed_bps: null, lowered_bps: null, by_allowance: false };
    const links = [
      { ...nothing, name: "leaf1->h1", state: "carries_less", carried_bps: 8e9, lowered_bps: 7.68e9 },
      { ...nothing, name: "h2->leaf1", state: "carries_less", carried_bps: 2e9, by_allowance: true },
      { ...nothing, name: "h4->leaf1", state: "carries_more", carried_bps: 1e9, speed_bps: 1.25e10 },
      { ...nothing, name: "leaf1->h5", state: "has_others_traffic", carried_bps: 9e9, cause: "unknown addresses" },
      { ...nothing, name: "leaf1->spine1", state: "wrong_path" },
    ];
    render({ ...overview, links_not_as_told: 7, not_as_told: links, hosts_not_as_told: 1_002, faults: [{ host: "h2", fault: "address_not_in_prefix", seen_at: null }, { host: "h3", fault: "prefix_of_several_hosts", seen_at: "h2" }] });
    return [...document.querySelectorAll("#check tr")].map((row) => [...row.cells].map((cell) => cell.textContent).join("|")).concat(document.getElementById("check-note").textContent);
  }, overview);
  assert.deepEqual(shown, [
    "leaf1->h1|carries less; lowered to 7.68 Gbit/s|10.0 Gbit/s|8.00 Gbit/s",
    "h2->leaf1|carries less; an allowance holds packets up|10.0 Gbit/s|2.00 Gbit/s",
    "h4->leaf1|carries more; its interface has 12.5 Gbit/s|10.0 Gbit/s|1.00 Gbit/s",
    "leaf1->h5|has others traffic; unknown addresses|10.0 Gbit/s|9.00 Gbit/s",
    "leaf1->spine1|wrong path|10.0 Gbit/s|–",
    "h2|address not in prefix||",
    "h3|prefix of several hosts; seen at h2||",
    "and 2 more links, 1,000 more faults of hosts",
  ]);
  await close();
});

test("the page says when the allocator does not answer, and goes on when it does", async () => {
  const { page, close } = await open(browser, fleet.origin);
  const allocator = fleet.children[0];
  allocator.kill("SIGSTOP");
  try {
    await page.waitForFunction(() => document.getElementById("state").textContent === "no answer from the allocator", null, { timeout: 15_000 });
  } finally {
    allocator.kill("SIGCONT");
  }
  await page.waitForFunction(() => document.getElementById("state").textContent === "active", null, { timeout: 15_000 });
  await close();
});

test("with all places for watchers taken the page goes on by asking", async () => {
  const busy = new AbortController();
  const watchers = Array.from({ length: 16 }, () => fetch(`${fleet.origin}/events`, { signal: busy.signal }));
  await Promise.all(watchers);
  const { page, close } = await open(browser, fleet.origin);
  const before = (await fleet.overview()).at_ms;
  await until("the page shows newer figures", async () => (await text(page, "age")) === "now");
  assert.ok((await fleet.overview()).at_ms >= before);
  busy.abort();
  await close();
});
