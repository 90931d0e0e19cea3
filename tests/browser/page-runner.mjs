// Runs page.mjs against a server: node tests/browser/page-runner.mjs ROOT_URL CLIENT_ID ACCESS_TOKEN [FOLDER]
// from a directory in whose node_modules playwright-core is.
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { run } from './page.mjs';

const [rootUrl, clientId, accessToken, screenshots] = process.argv.slice(2);
const { chromium } = createRequire(join(process.cwd(), 'here.js'))('playwright-core');
const browser = await chromium.launch({
  executablePath: process.env.TENURE_CHROMIUM ?? '/usr/bin/chromium',
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync',
  ],
});
try {
  await run(browser, { rootUrl, clientId, accessToken, screenshots });
  console.log('the operator\'s page works in Chromium');
} finally {
  await browser.close();
}
