// Takes the pictures of the page for the guides: `make page-picture`.
// usage: node screenshot.mjs FOLDER [RACKS]

import { join } from "node:path";
import { launch, open } from "./browser.mjs";
import { Fleet } from "./fleet.mjs";

const [folder = ".", racks = "4"] = process.argv.slice(2);
const fleet = await Fleet.start({ racks: Number(racks) });
try {
  await fleet.swarm({ flows: 6 * fleet.hosts, churn: 40 * fleet.hosts, seconds: 600 });
  await fleet.post("/topology/load", { from: "leaf2", to: "h18", load_bps: 2_500_000_000, for_ms: 600_000 });
  await fleet.post("/topology/link", { from: "leaf3", to: "spine2", up: false });
  // Time for the charts to have something to show.
  await new Promise((done) => setTimeout(done, Number(process.env.SECONDS_SHOWN ?? 75) * 1_000));
  const browser = await launch();
  for (const [colorScheme, file] of [["light", "page.png"], ["dark", "page-dark.png"]]) {
    const { page, close } = await open(browser, fleet.origin, { colorScheme, viewport: { width: 1200, height: 1010 } });
    await page.locator("#busiest button").first().click();
    await page.waitForSelector("#chosen-flows td.n");
    await page.waitForTimeout(2_500);
    await page.screenshot({ path: join(folder, file) });
    await close();
  }
  await browser.close();
} finally {
  await fleet.stop();
}
