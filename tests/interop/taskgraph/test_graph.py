"""A decision task with real taskgraph: a graph of 200 tasks, submitted by 50 threads, watched and worked off."""

import json
import os
import time

import pytest
import requests
import taskcluster
from taskgraph.create import CreateTasksException
from taskgraph.util import taskcluster as tools

from graph import QUEUE_ID, SCHEDULER_ID, Graph

SETTINGS = ("TASKCLUSTER_CLIENT_ID", "TASKCLUSTER_ACCESS_TOKEN", "TASKCLUSTER_CERTIFICATE")
ROOT_URL = os.environ["TASKCLUSTER_ROOT_URL"]
ROOT = {"clientId": os.environ["TASKCLUSTER_CLIENT_ID"], "accessToken": os.environ["TASKCLUSTER_ACCESS_TOKEN"]}
WORKER = {"workerGroup": "interop", "workerId": "worker-1"}
TASKS = 200
COMPILATIONS = 20
TESTS_OF_EACH = 8
CLAIMED_AT_ONCE = 32
VISIBLE_WITHIN_SECONDS = 20
WORKED_OFF_WITHIN_SECONDS = 120
# Scopes of a decision task: its own tasks, and nothing of other projects.
SCOPES = [
    f"queue:create-task:low:{QUEUE_ID}",
    "queue:create-task:project:none",
    f"queue:scheduler-id:{SCHEDULER_ID}",
    f"queue:cancel-task:{SCHEDULER_ID}/*",
    f"queue:rerun-task:{SCHEDULER_ID}/*",
    "queue:route:checks",
]


def queue(credentials=None):
    return taskcluster.Queue({"rootUrl": ROOT_URL, "credentials": dict(credentials or ROOT)})


class Decision:
    """A decision task that a worker has claimed. Its credentials are where taskgraph looks: in the environment."""

    def __init__(self, scopes):
        self.task_id = taskcluster.slugId()
        worker_type = "decision-" + self.task_id.lower().strip("-_").replace("_", "-")
        self.queue_id = f"interop-3/{worker_type}"
        queue().createTask(self.task_id, self._definition(scopes))
        [claim] = queue().claimWork(self.queue_id, {**WORKER, "tasks": 1})["tasks"]
        self.credentials = claim["credentials"]
        values = (self.credentials["clientId"], self.credentials["accessToken"], self.credentials["certificate"])
        os.environ.update(zip(SETTINGS, values))
        # taskgraph creates one client for the life of the process.
        tools.get_taskcluster_client.cache_clear()

    def _definition(self, scopes):
        return {
            "taskQueueId": self.queue_id,
            "taskGroupId": self.task_id,
            "schedulerId": SCHEDULER_ID,
            "created": taskcluster.fromNowJSON("0 seconds"),
            "deadline": taskcluster.fromNowJSON("1 day"),
            # Not before the deadline of any dependent task.
            "expires": taskcluster.fromNowJSON("1 year"),
            "scopes": scopes,
            "payload": {},
            "metadata": {
                "name": "decision",
                "description": "Decides which tasks there are.",
                "owner": "nobody@example.com",
                "source": "https://example.com/source",
            },
        }

    def upload(self, name, content):
        """As its worker does with the files that taskgraph leaves."""
        wanted = {"storageType": "s3", "contentType": "application/json", "expires": taskcluster.fromNowJSON("1 day")}
        made = queue(self.credentials).createArtifact(self.task_id, "0", name, wanted)
        headers = {"Content-Type": "application/json"}
        answer = requests.put(made["putUrl"], data=json.dumps(content), headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text

    def complete(self):
        queue(self.credentials).reportCompleted(self.task_id, "0")


@pytest.fixture(autouse=True)
def environment():
    before = {name: os.environ.get(name) for name in SETTINGS}
    yield
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="module")
def submitted():
    """The graph, all of its tasks created; the decision task still runs."""
    decision = Decision(SCOPES)
    graph = Graph(decision.task_id)
    assert len(graph.tasks) == TASKS
    graph.submit()
    return decision, graph


def group(group_id):
    """The group's tasks by their ids, read page by page."""
    found = {}

    def keep(page):
        found.update({entry["status"]["taskId"]: entry for entry in page["tasks"]})

    queue().listTaskGroup(group_id, query={"limit": "37"}, paginationHandler=keep)
    return found


def dependents(task_id):
    return {entry["status"]["taskId"] for entry in queue().listDependentTasks(task_id)["tasks"]}


def wait_for(condition):
    deadline = time.monotonic() + VISIBLE_WITHIN_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_all_tasks_of_the_graph_are_there_with_their_edges(submitted):
    decision, graph = submitted
    found = group(decision.task_id)
    assert set(found) == {decision.task_id, *graph.tasks}
    for task_id, task in graph.tasks.items():
        definition = found[task_id]["task"]
        assert set(definition["dependencies"]) == graph.wanted_dependencies(task_id)
        assert (definition["taskGroupId"], definition["schedulerId"]) == (decision.task_id, SCHEDULER_ID)
        assert definition["metadata"]["name"] == task.label
        assert definition["payload"] == task.task["payload"]
        assert found[task_id]["status"]["state"] == "unscheduled"
        assert found[task_id]["status"]["runs"] == []


def test_the_edges_can_be_followed_in_the_other_direction(submitted):
    decision, graph = submitted
    compilations = {task_id for task_id, task in graph.tasks.items() if task.kind == "compile"}
    assert dependents(decision.task_id) == compilations
    for task_id in compilations:
        expected = {edge[0] for edge in graph.graph.graph.edges if edge[1] == task_id}
        assert len(expected) == TESTS_OF_EACH
        assert dependents(task_id) == expected


def test_the_states_of_all_tasks_are_read_at_once(submitted):
    _, graph = submitted
    statuses = tools.status_task_batched(list(graph.tasks))
    assert set(statuses) == set(graph.tasks)
    assert {status["state"] for status in statuses.values()} == {"unscheduled"}
    definitions = tools.get_task_definitions(list(graph.tasks))
    assert {task_id: task["metadata"]["name"] for task_id, task in definitions.items()} == {
        task_id: task.label for task_id, task in graph.tasks.items()
    }


def test_the_ancestors_of_a_task_are_found(submitted):
    decision, graph = submitted
    report = graph.ids["report-amd64-client-1"]
    ancestors = tools.get_ancestors(report)
    parts = {f"test-amd64-client-{number}" for number in range(1, TESTS_OF_EACH + 1)}
    assert set(ancestors.values()) == {"decision", "compile-amd64-client", *parts}
    assert ancestors[decision.task_id] == "decision"


def test_taskgraph_reads_dates_and_scopes(submitted):
    decision, graph = submitted
    status = tools.status_task(next(iter(graph.tasks)))
    assert tools.parse_time(status["expires"]) > tools.parse_time(status["deadline"])
    os.environ.update(zip(SETTINGS, (decision.credentials[key] for key in ("clientId", "accessToken", "certificate"))))
    tools.get_taskcluster_client.cache_clear()
    assert set(SCOPES) <= set(tools.get_current_scopes())


def test_what_the_decision_leaves_is_found_by_later_tasks(submitted):
    decision, graph = submitted
    decision.upload("public/label-to-taskid.json", graph.ids)
    decision.upload("public/task-graph.json", graph.graph.to_json())
    assert tools.get_artifact(decision.task_id, "public/label-to-taskid.json") == graph.ids
    assert set(tools.get_artifact(decision.task_id, "public/task-graph.json")) == set(graph.tasks)
    names = {artifact["name"] for artifact in tools.list_artifacts(decision.task_id)}
    assert names == {"public/label-to-taskid.json", "public/task-graph.json"}
    by_hand = requests.get(tools.get_artifact_url(decision.task_id, "public/label-to-taskid.json"), timeout=60)
    assert by_hand.json() == graph.ids


def test_a_graph_that_may_not_be_created_is_refused_for_each_task():
    decision = Decision([scope for scope in SCOPES if scope != f"queue:scheduler-id:{SCHEDULER_ID}"])
    graph = Graph(decision.task_id)
    with pytest.raises(CreateTasksException) as refusal:
        graph.submit()
    # Only tasks without dependencies are attempted.
    assert str(refusal.value).count("Could not create 'compile-") == COMPILATIONS
    assert f"queue:scheduler-id:{SCHEDULER_ID}" in str(refusal.value)
    assert set(group(decision.task_id)) == {decision.task_id}


def test_the_graph_is_worked_off_in_the_order_of_its_edges(submitted):
    """The last test: it ends the graph. One task is cancelled on its way, and run again."""
    decision, graph = submitted
    assert queue().claimWork(QUEUE_ID, {**WORKER, "tasks": 1})["tasks"] == []
    decision.complete()
    compilations = {task_id for task_id, task in graph.tasks.items() if task.kind == "compile"}
    wait_for(lambda: queue().pendingTasks(QUEUE_ID)["pendingTasks"] == COMPILATIONS)

    os.environ.update(zip(SETTINGS, (decision.credentials[key] for key in ("clientId", "accessToken", "certificate"))))
    tools.get_taskcluster_client.cache_clear()
    unlucky = graph.ids["compile-arm64-worker"]
    tools.cancel_task(unlucky)
    assert tools.state_task(unlucky) == "exception"
    assert tools.status_task(unlucky)["runs"][0]["reasonResolved"] == "canceled"
    tools.rerun_task(unlucky)
    assert tools.state_task(unlucky) == "pending"

    done = {decision.task_id}
    deadline = time.monotonic() + WORKED_OFF_WITHIN_SECONDS
    while len(done) <= TASKS:
        assert time.monotonic() < deadline, f"{len(done)} tasks were done in time"
        for claim in queue().claimWork(QUEUE_ID, {**WORKER, "tasks": CLAIMED_AT_ONCE})["tasks"]:
            task_id = claim["status"]["taskId"]
            assert graph.wanted_dependencies(task_id) <= done, f"{graph.tasks[task_id].label} came too early"
            assert claim["runId"] == (1 if task_id == unlucky else 0)
            queue(claim["credentials"]).reportCompleted(task_id, str(claim["runId"]))
            done.add(task_id)
    assert compilations < done
    assert list(tools.list_task_group_incomplete_tasks(decision.task_id)) == []
    states = [entry["status"]["state"] for entry in group(decision.task_id).values()]
    assert states == ["completed"] * (TASKS + 1)
