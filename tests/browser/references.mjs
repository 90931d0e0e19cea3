// The server's references, read by Taskcluster's own client for JavaScript: it generates its
// classes from them, and the classes are used. No page is opened; the suite is here because its
// packages are.
import assert from "node:assert/strict";

async function read(url) {
  const answer = await fetch(url);
  assert.equal(answer.status, 200, url);
  assert.equal(answer.headers.get("content-type"), "application/json");
  return answer.json();
}

/** The references by service and kind, found as a stranger finds them: from the manifest. */
async function references(origin) {
  const { references } = await read(`${origin}/references/manifest.json`);
  const found = {};
  for (const url of references) {
    assert.ok(url.startsWith(`${origin}/references/`), url);
    const reference = await read(url);
    const kind = url.split("/").at(-1).replace(".json", "");
    (found[reference.serviceName] ??= {})[kind] = reference;
  }
  return found;
}

function definition() {
  const now = Date.now();
  return {
    taskQueueId: "references/npm",
    created: new Date(now).toJSON(),
    deadline: new Date(now + 3_600_000).toJSON(),
    payload: {},
    metadata: { name: "n", description: "d", owner: "o@example.com", source: "https://example.com/" },
  };
}

export default {
  "a client is made from each service's reference and is answered": async ({ origin, root, require }) => {
    const taskcluster = require("taskcluster-client");
    const found = await references(origin);
    assert.deepEqual(Object.keys(found).sort(), ["auth", "object", "purge-cache", "queue", "tenure", "worker-manager"]);
    for (const [name, { api }] of Object.entries(found)) {
      const Service = taskcluster.createClient(api, name);
      const service = new Service({ rootUrl: origin, credentials: root });
      // Tenure's own service has no ping.
      if (api.entries.some((entry) => entry.name === "ping")) {
        assert.equal((await service.ping()).alive, true, name);
      }
      for (const { name: method, args, input } of api.entries) {
        assert.equal(typeof service[method], "function", `${name}.${method}`);
        assert.ok(Array.isArray(args) && (input === undefined || input.startsWith("v1/")));
      }
    }
  },

  "a task is created, claimed and reported by a client that was made from the reference": async (tools) => {
    const { origin, root, require } = tools;
    const taskcluster = require("taskcluster-client");
    const { queue: { api } } = await references(origin);
    const Queue = taskcluster.createClient(api, "queue");
    const queue = new Queue({ rootUrl: origin, credentials: root });
    const taskId = taskcluster.slugid();
    const { status } = await queue.createTask(taskId, definition());
    assert.equal(status.state, "pending");
    const { tasks: [claim] } = await queue.claimWork("references/npm", { workerGroup: "g", workerId: "w", tasks: 1 });
    assert.equal(claim.status.taskId, taskId);
    const worker = new Queue({ rootUrl: origin, credentials: claim.credentials });
    assert.equal((await worker.reportCompleted(taskId, claim.runId)).status.state, "completed");
    assert.equal((await queue.status(taskId)).status.state, "completed");
    await assert.rejects(queue.status(taskcluster.slugid()), (error) => error.statusCode === 404);
    // The client itself refuses a query that the reference does not name.
    const group = await queue.listTaskGroup(taskId, { limit: 1 });
    assert.equal(group.tasks[0].status.taskId, taskId);
    assert.throws(() => queue.buildUrl(queue.status, taskId, { unknown: 1 }));
    assert.ok(queue.buildSignedUrl(queue.status, taskId).includes("bewit="));
  },

  "the events of the log fit the exchanges' reference": async ({ origin, root, require, api: call }) => {
    const taskcluster = require("taskcluster-client");
    const { queue: { api, exchanges } } = await references(origin);
    const QueueEvents = taskcluster.createClient(exchanges, "queue-events");
    const events = new QueueEvents({ rootUrl: origin });
    const Queue = taskcluster.createClient(api, "queue");
    const queue = new Queue({ rootUrl: origin, credentials: root });
    const taskId = taskcluster.slugid();
    await queue.createTask(taskId, definition());
    await queue.cancelTask(taskId);
    const bindings = { "task-defined": events.taskDefined, "task-pending": events.taskPending, "task-exception": events.taskException };
    for (const [short, binding] of Object.entries(bindings)) {
      const { exchange, routingKeyPattern } = binding.call(events, { taskId });
      assert.equal(exchange, exchanges.exchangePrefix + short);
      const query = new URLSearchParams({ after: 0, exchange: short, routingKeyPattern });
      const { events: [event, ...more] } = await call("GET", `/api/tenure/v1/events?${query}`);
      assert.equal(more.length, 0);
      const entry = exchanges.entries.find((one) => one.exchange === short);
      const words = event.routingKey.split(".");
      assert.equal(words.length, entry.routingKey.length);
      assert.equal(words[entry.routingKey.findIndex((word) => word.name === "taskId")], taskId);
      const schema = await read(`${origin}/schemas/queue/${entry.schema.replace("#", "")}`);
      for (const field of schema.required) assert.ok(field in event.payload, `${short}: ${field}`);
      for (const field of Object.keys(event.payload)) assert.ok(field in schema.properties, `${short}: ${field}`);
    }
  },

  "a document that is not there is said not to be": async ({ origin }) => {
    for (const path of ["/references/nothing/v1/api.json", "/references/auth/v1/exchanges.json", "/schemas/queue/v1/x.json", "/schemas/common/x.json"]) {
      const answer = await fetch(origin + path);
      assert.equal(answer.status, 404, path);
      assert.equal((await answer.json()).code, "ResourceNotFound", path);
    }
    assert.equal((await fetch(`${origin}/references/manifest.json?x=1`)).status, 400);
  },
};
