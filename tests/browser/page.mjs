// The operator's page in a browser: empty, full, hostile; on a desk and on a phone. Needs a server on which nothing has
// happened yet, and a client that may do everything.
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { join } from 'node:path';

const QUEUE = 'proj-browser/linux-large';
const SIZES = {
  desktop: { viewport: { width: 1360, height: 900 } },
  phone: { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true },
};
// Would open a dialog, or run as soon as it is part of a page.
const HOSTILE = `"'><script>alert(1)</script><img src=x onerror=alert(2)><svg/onload=alert(3)>`;

function slug() {
  const bytes = randomBytes(16);
  bytes[0] &= 0x7f;
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  return bytes.toString('base64url');
}

function api({ rootUrl, clientId, accessToken }) {
  const authorization = `Basic ${Buffer.from(`${clientId}:${accessToken}`).toString('base64')}`;
  return async (method, path, body) => {
    const response = await fetch(`${rootUrl}/api/queue/v1${path}`, {
      method,
      headers: { authorization, 'content-type': 'application/json' },
      body: body && JSON.stringify(body),
    });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return text ? JSON.parse(text) : null;
  };
}

// Tasks in all states; one of them says hostile things wherever a submitter can say something.
async function fill(call) {
  const at = (seconds) => new Date(Date.now() + seconds * 1000).toISOString();
  const create = async (name, more = {}) => {
    const id = slug();
    await call('PUT', `/task/${id}`, {
      taskQueueId: QUEUE,
      created: at(0),
      deadline: at(3600),
      payload: { command: [['make', name]], maxRunTime: 600 },
      metadata: { name, description: `Builds ${name} and runs its tests.`, owner: 'ci@example.com', source: 'https://example.com/repo' },
      ...more,
    });
    return id;
  };
  const group = slug();
  const ids = {};
  for (const name of ['build-linux', 'test-unit', 'test-integration', 'lint', 'docs', 'package-debian']) {
    ids[name] = await create(name, { taskGroupId: group });
  }
  ids.hostile = await create(HOSTILE, {
    taskGroupId: group,
    metadata: { name: HOSTILE, description: HOSTILE, owner: HOSTILE, source: `https://example.com/${HOSTILE}` },
    payload: { [HOSTILE]: HOSTILE, close: '</pre></script>' },
    tags: { [HOSTILE]: HOSTILE },
    extra: { [HOSTILE]: [HOSTILE] },
    priority: 'highest',
  });
  const claim = async (tasks, workerId) =>
    (await call('POST', `/claim-work/${encodeURIComponent(QUEUE)}`, { workerGroup: 'frankfurt', workerId, tasks })).tasks;
  const end = (claimed, how, body) => call('POST', `/task/${claimed.status.taskId}/runs/${claimed.runId}/${how}`, body);
  const [hostile, completed, failed, broken, shut] = await claim(5, 'worker-01');
  assert.equal(hostile.status.taskId, ids.hostile);
  await end(hostile, 'failed');
  await end(completed, 'completed');
  await end(failed, 'failed');
  await end(broken, 'exception', { reason: 'malformed-payload' });
  await end(shut, 'exception', { reason: 'worker-shutdown' });
  const [running] = await claim(1, 'worker-02');
  for (let i = 1; i <= 6; i += 1) await create(`nightly-${i}`, { taskQueueId: i % 2 ? QUEUE : 'proj-browser/windows', priority: i % 3 ? 'low' : 'medium' });
  return { group, hostile: ids.hostile, running: running.status.taskId, retried: shut.status.taskId };
}

async function open(browser, size, { rootUrl, screenshots }) {
  const context = await browser.newContext({ ...SIZES[size], colorScheme: size === 'desktop' ? 'light' : 'dark' });
  const page = await context.newPage();
  const troubles = [];
  page.on('dialog', (dialog) => {
    troubles.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on('console', (message) => message.type() === 'error' && troubles.push(`the console: ${message.text()}`));
  page.on('pageerror', (error) => troubles.push(`an error: ${error}`));
  const visit = async (path, name, status = 200) => {
    const response = await page.goto(`${rootUrl}${path}`);
    assert.equal(response.status(), status, path);
    await look(name);
  };
  const look = async (name) => {
    if (screenshots) await page.screenshot({ path: join(screenshots, `page-${name}-${size}.png`), fullPage: true });
    // Tables scroll in their own boxes; the page itself never does, sideways.
    const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    assert.ok(wide <= room, `${name} on ${size} is ${wide} wide in ${room}`);
    assert.equal(await page.locator('script').count(), 0, `${name} has a script`);
    assert.deepEqual(troubles, [], `${name} on ${size}`);
  };
  const text = () => page.locator('main').innerText();
  return { context, page, visit, look, text, troubles };
}

async function logIn(view, { clientId, accessToken }) {
  await view.page.getByRole('link', { name: 'Log in' }).first().click();
  await view.page.getByLabel('Client id').fill(clientId);
  await view.page.getByLabel('Access token').fill(accessToken);
  await view.page.getByRole('button', { name: 'Log in' }).click();
  await view.page.waitForURL((url) => !url.pathname.endsWith('/login'));
}

async function emptyPages(browser, parts) {
  for (const size of Object.keys(SIZES)) {
    const view = await open(browser, size, parts);
    await view.visit('/', 'empty-anonymous');
    assert.match(await view.text(), /There is no queue yet/);
    assert.match(await view.text(), /queue:claimed-list/);
    await view.visit('/login', 'login');
    await view.page.getByLabel('Client id').fill(parts.clientId);
    await view.page.getByLabel('Access token').fill('wrong');
    await view.page.getByRole('button', { name: 'Log in' }).click();
    assert.match(await view.page.getByRole('alert').innerText(), /no such client, or the access token is wrong/);
    view.troubles.length = 0; // The 401 is in the console, as it should be.
    await view.look('login-wrong');
    await view.visit('/', 'empty-anonymous');
    await logIn(view, parts);
    assert.match(await view.text(), /No worker holds a task/);
    await view.look('empty');
    await view.context.close();
  }
}

async function fullPages(browser, parts, made) {
  for (const size of Object.keys(SIZES)) {
    const view = await open(browser, size, parts);
    await view.visit('/', 'overview-anonymous');
    await logIn(view, parts);
    await view.look('overview');
    for (const words of [QUEUE, 'proj-browser/windows', 'frankfurt/worker-02', 'malformed-payload', 'tried again', 'Oldest transaction']) {
      assert.ok((await view.text()).includes(words), `the overview says ${words}`);
    }
    await view.page.getByRole('link', { name: QUEUE, exact: true }).first().click();
    await view.look('queue');
    assert.match(await view.text(), /Next in line/);
    await view.page.locator(`a[href$="/task/${made.running}"]`).first().click();
    await view.look('task-running');
    assert.match(await view.text(), /running/);
    await view.page.getByRole('link', { name: 'frankfurt/worker-02' }).first().click();
    await view.look('worker');
    await view.visit(`/task/${made.retried}`, 'task-retried');
    assert.match(await view.text(), /made by retry[^]*worker-shutdown/);
    await view.visit(`/group/${made.group}`, 'group');
    await view.visit(`/task/${made.hostile}`, 'task-hostile');
    assert.ok((await view.text()).includes(HOSTILE), 'what was said is shown as text');
    assert.equal(await view.page.locator('a[href^="javascript:" i]').count(), 0);
    assert.equal(await view.page.locator('main img, main svg, main [onerror], main [onload]').count(), 0);
    view.troubles.length = 0;
    await view.page.goto(`${parts.rootUrl}/task/${slug()}`);
    view.troubles.length = 0; // The 404 is in the console.
    await view.look('not-found');
    await view.visit('/', 'overview');
    await view.page.getByRole('button', { name: 'Log out' }).click();
    await view.page.getByRole('link', { name: 'Log in' }).first().waitFor();
    assert.equal((await view.context.cookies()).length, 0, 'logging out takes the cookie away');
    await view.context.close();
  }
}

async function refreshes(browser, parts, call) {
  const view = await open(browser, 'desktop', parts);
  await view.visit('/', 'overview-anonymous');
  const name = `proj-browser/appears-${slug().slice(0, 6).toLowerCase().replaceAll(/[^a-z0-9]/g, 'x')}`;
  const now = Date.now();
  await call('PUT', `/task/${slug()}`, {
    taskQueueId: name,
    created: new Date(now).toISOString(),
    deadline: new Date(now + 60_000).toISOString(),
    metadata: { name: 'late', description: '', owner: 'o', source: 'https://example.com' },
    payload: {},
  });
  await view.page.getByText(name).waitFor({ timeout: 20_000 });
  await view.page.getByRole('link', { name: 'live' }).click();
  await view.page.getByRole('link', { name: 'paused' }).waitFor();
  assert.equal(await view.page.locator('meta[http-equiv=refresh]').count(), 0);
  await view.context.close();
}

export async function run(browser, parts) {
  const call = api(parts);
  await emptyPages(browser, parts);
  const made = await fill(call);
  await fullPages(browser, parts, made);
  await refreshes(browser, parts, call);
}
