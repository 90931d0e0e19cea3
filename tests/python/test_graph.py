"""Dependencies, changes of tasks, priorities and groups, through the unmodified official client."""

import time

import pytest
import taskcluster
from taskcluster.exceptions import TaskclusterRestFailure

from tasks import WORKER, claim, claim_one, create, definition, instant, runs
from test_credentials import temporary

SOON_SECONDS = 10


def refused(status, code, call, *arguments, **options):
    with pytest.raises(TaskclusterRestFailure) as failure:
        call(*arguments, **options)
    assert (failure.value.status_code, failure.value.body["code"]) == (status, code), failure.value.body
    return failure.value.body["message"]


def until(queue, task_id, state):
    """Dependents are scheduled by a pass that no request waits for."""
    deadline = time.monotonic() + SOON_SECONDS
    while (status := queue.status(task_id)["status"])["state"] != state:
        assert time.monotonic() < deadline, status
        time.sleep(0.01)
    return status


def complete(queue, queue_id):
    done = claim_one(queue, queue_id)
    queue.reportCompleted(done["status"]["taskId"], done["runId"])
    return done["status"]["taskId"]


def resolve_all(queue, queue_id, report="reportCompleted"):
    for done in claim(queue, queue_id, tasks=32):
        getattr(queue, report)(done["status"]["taskId"], done["runId"])


@pytest.fixture
def waits_id(queue_id):
    return queue_id + "-waits"


def test_a_dependent_runs_after_its_dependencies(queue, queue_id, waits_id):
    required = [create(queue, queue_id), create(queue, queue_id)]
    task_id = taskcluster.slugId()
    created = queue.createTask(task_id, definition(waits_id, dependencies=required))["status"]
    assert (created["state"], created["runs"]) == ("unscheduled", [])
    assert queue.task(task_id)["dependencies"] == required
    complete(queue, queue_id)
    assert queue.status(task_id)["status"]["state"] == "unscheduled"
    complete(queue, queue_id)
    # A waiting worker is woken.
    assert claim_one(queue, waits_id)["status"]["taskId"] == task_id
    [run] = runs(queue, task_id)
    assert run["reasonCreated"] == "scheduled"


def test_a_failure_lets_only_all_resolved_go_on(queue, queue_id, waits_id):
    required = create(queue, queue_id)
    picky = create(queue, waits_id, dependencies=[required])
    easy = create(queue, waits_id, dependencies=[required], requires="all-resolved")
    resolve_all(queue, queue_id, "reportFailed")
    until(queue, easy, "pending")
    assert queue.status(picky)["status"]["state"] == "unscheduled"
    # Satisfied dependencies need no wait.
    late = taskcluster.slugId()
    task = definition(waits_id, dependencies=[required], requires="all-resolved")
    assert queue.createTask(late, task)["status"]["state"] == "pending"


def test_a_diamond_runs_in_order(queue, queue_id):
    a = create(queue, queue_id)
    b, c = (create(queue, queue_id, dependencies=[a]) for _ in range(2))
    d = create(queue, queue_id, dependencies=[b, c])
    order = []
    for _ in range(4):
        order.append(complete(queue, queue_id))
    assert order[0] == a and set(order[1:3]) == {b, c} and order[3] == d


def test_dependencies_that_cannot_be_are_refused(queue, queue_id):
    missing = taskcluster.slugId()
    task_id = taskcluster.slugId()
    text = refused(400, "InputError", queue.createTask, task_id, definition(queue_id, dependencies=[missing]))
    assert missing in text
    refused(404, "ResourceNotFound", queue.status, task_id)
    early = create(queue, queue_id, expires=taskcluster.stringDate(taskcluster.fromNow("65 minutes")))
    late = definition(queue_id, deadline_in="2 hours", dependencies=[early])
    text = refused(400, "InputError", queue.createTask, task_id, late)
    assert early in text
    refused(404, "ResourceNotFound", queue.status, task_id)
    too_many = definition(queue_id, dependencies=[taskcluster.slugId() for _ in range(10_001)])
    refused(400, "InputValidationError", queue.createTask, task_id, too_many)


def test_a_task_that_waits_for_itself_is_scheduled_by_hand(queue, queue_id):
    task_id = taskcluster.slugId()
    task = definition(queue_id, dependencies=[task_id])
    assert queue.createTask(task_id, task)["status"]["state"] == "unscheduled"
    assert queue.createTask(task_id, task)["status"]["state"] == "unscheduled"
    assert queue.scheduleTask(task_id)["status"]["state"] == "pending"
    assert queue.scheduleTask(task_id)["status"]["state"] == "pending"
    assert claim_one(queue, queue_id)["status"]["taskId"] == task_id


def test_dependents_are_listed_in_pages(queue, queue_id, waits_id):
    required = create(queue, queue_id)
    expected = {create(queue, waits_id, dependencies=[required]) for _ in range(7)}
    found, query = [], {"limit": "3"}
    while True:
        page = queue.listDependentTasks(required, query=query)
        assert page["taskId"] == required and len(page["tasks"]) <= 3
        found += [entry["status"]["taskId"] for entry in page["tasks"]]
        assert all(entry["task"]["dependencies"] == [required] for entry in page["tasks"])
        if "continuationToken" not in page:
            break
        query["continuationToken"] = page["continuationToken"]
    assert len(found) == 7 and set(found) == expected
    refused(404, "ResourceNotFound", queue.listDependentTasks, taskcluster.slugId())


def test_a_rerun_gives_a_resolved_task_another_run(queue, queue_id):
    task_id = create(queue, queue_id, retries=1)
    refused(404, "ResourceNotFound", queue.rerunTask, taskcluster.slugId())
    assert len(queue.rerunTask(task_id)["status"]["runs"]) == 1
    complete(queue, queue_id)
    status = queue.rerunTask(task_id)["status"]
    assert (status["state"], status["retriesLeft"]) == ("pending", 1)
    assert [run["reasonCreated"] for run in status["runs"]] == ["scheduled", "rerun"]
    assert complete(queue, queue_id) == task_id


def test_a_cancel_ends_a_task_everywhere(queue, queue_id, waits_id):
    running = create(queue, queue_id)
    held = claim_one(queue, queue_id)
    pending = create(queue, queue_id)
    waiting = create(queue, waits_id, dependencies=[pending])
    for task_id in (waiting, running, pending):
        for _ in range(2):
            status = queue.cancelTask(task_id)["status"]
            assert status["state"] == "exception"
            assert [run["reasonResolved"] for run in status["runs"]] == ["canceled"]
    assert runs(queue, waiting)[0]["reasonCreated"] == "exception"
    refused(409, "RequestConflict", queue.reportCompleted, running, held["runId"])
    assert queue.pendingTasks(queue_id)["pendingTasks"] == 0
    refused(404, "ResourceNotFound", queue.cancelTask, taskcluster.slugId())


def test_a_priority_is_changed_before_the_task_is_resolved(queue, queue_id):
    first, second = create(queue, queue_id), create(queue, queue_id)
    assert queue.changeTaskPriority(second, {"newPriority": "high"})["status"]["priority"] == "high"
    assert complete(queue, queue_id) == second
    refused(409, "RequestConflict", queue.changeTaskPriority, second, {"newPriority": "low"})
    refused(400, "InputValidationError", queue.changeTaskPriority, first, {"newPriority": "normal"})
    refused(404, "ResourceNotFound", queue.changeTaskPriority, taskcluster.slugId(), {"newPriority": "low"})
    # A repeat of the creation is still a repeat.
    queue.changeTaskPriority(first, {"newPriority": "low"})
    assert queue.createTask(first, queue_task(queue, first))["status"]["priority"] == "low"


def queue_task(queue, task_id):
    """The definition as it was sent, from the server's answer."""
    return queue.task(task_id)


def test_a_group_is_listed_sealed_and_cancelled(queue, queue_id):
    group_id = create(queue, queue_id)
    tasks = {group_id} | {create(queue, queue_id, taskGroupId=group_id) for _ in range(11)}
    group = queue.getTaskGroup(group_id)
    assert (group["taskGroupId"], group["schedulerId"], "sealed" in group) == (group_id, "-", False)
    assert instant(group["expires"]) > instant(queue.task(group_id)["expires"])
    found, query = [], {"limit": "5"}
    while True:
        page = queue.listTaskGroup(group_id, query=query)
        assert {name: page[name] for name in group} == group
        found += [entry["status"]["taskId"] for entry in page["tasks"]]
        if "continuationToken" not in page:
            break
        query["continuationToken"] = page["continuationToken"]
    assert len(found) == 12 and set(found) == tasks
    complete(queue, queue_id)
    refused(409, "RequestConflict", queue.cancelTaskGroup, group_id)
    sealed = queue.sealTaskGroup(group_id)
    assert sealed["sealed"] and queue.sealTaskGroup(group_id) == sealed
    late = definition(queue_id, taskGroupId=group_id)
    refused(409, "RequestConflict", queue.createTask, taskcluster.slugId(), late)
    cancelled = queue.cancelTaskGroup(group_id)
    assert (cancelled["taskGroupSize"], cancelled["cancelledCount"], len(cancelled["taskIds"])) == (12, 11, 11)
    assert queue.cancelTaskGroup(group_id)["cancelledCount"] == 0
    unknown = taskcluster.slugId()
    for call in (queue.getTaskGroup, queue.listTaskGroup, queue.sealTaskGroup, queue.cancelTaskGroup):
        refused(404, "ResourceNotFound", call, unknown)
    refused(404, "ResourceNotFound", queue.changeTaskGroupPriority, unknown, {"newPriority": "low"})


def test_the_priority_of_a_group_is_changed_for_what_is_open(queue, queue_id):
    group_id = create(queue, queue_id)
    others = [create(queue, queue_id, taskGroupId=group_id) for _ in range(3)]
    assert complete(queue, queue_id) == group_id
    answer = queue.changeTaskGroupPriority(group_id, {"newPriority": "very-high"})
    assert (answer["tasksAffected"], answer["newPriority"]) == (3, "very-high")
    assert sorted(answer["taskIds"]) == sorted(others)
    assert queue.status(others[0])["status"]["priority"] == "very-high"
    assert queue.changeTaskGroupPriority(group_id, {"newPriority": "very-high"})["tasksAffected"] == 0


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "-1"}, {"limit": "x"}, {"offset": "1"}])
def test_a_page_that_cannot_be_is_refused(queue, queue_id, query):
    task_id = create(queue, queue_id)
    for call in (queue.listTaskGroup, queue.listDependentTasks):
        refused(400, "InvalidRequestArguments", call, task_id, query=query)


def test_a_continuation_token_that_no_answer_had_is_refused(queue, queue_id):
    task_id = create(queue, queue_id)
    for call in (queue.listTaskGroup, queue.listDependentTasks):
        refused(400, "InputError", call, task_id, query={"continuationToken": "elsewhere"})
        assert call(task_id, query={"limit": "5000"})["tasks"] is not None


def test_nothing_changes_after_the_deadline(timed_server, queue_id, waits_id):
    queue = timed_server.queue()
    now = timed_server.now()
    required = create(queue, queue_id, now=now, deadline_in="2 hours")
    waiting = create(queue, waits_id, now=now, deadline_in="1 hour", dependencies=[required])
    done = create(queue, queue_id, now=now, deadline_in="1 hour", priority="high")
    complete(queue, queue_id)
    timed_server.advance(3601)
    status = queue.status(waiting)["status"]
    assert (status["state"], status["runs"][0]["reasonResolved"]) == ("exception", "deadline-exceeded")
    for call in (queue.scheduleTask, queue.rerunTask, queue.cancelTask):
        refused(409, "RequestConflict", call, waiting)
        refused(409, "RequestConflict", call, done)
    refused(409, "RequestConflict", queue.changeTaskPriority, waiting, {"newPriority": "low"})


def test_a_deadline_counts_as_an_end_for_all_resolved(timed_server, queue_id, waits_id):
    queue = timed_server.queue()
    now = timed_server.now()
    required = create(queue, queue_id, now=now, deadline_in="1 hour")
    waiting = create(queue, waits_id, now=now, deadline_in="2 hours", dependencies=[required], requires="all-resolved")
    timed_server.advance(3601)
    assert queue.status(waiting)["status"]["state"] == "pending"


def test_an_expired_task_and_its_group_are_purged(timed_server, queue_id):
    queue = timed_server.queue()
    now = timed_server.now()
    task_id = create(queue, queue_id, now=now, expires=definition(queue_id, now, "2 hours")["deadline"])
    timed_server.advance(7201)
    refused(404, "ResourceNotFound", queue.status, task_id)
    assert queue.listTaskGroup(task_id)["tasks"] == []
    timed_server.advance(2 * 3600)
    refused(404, "ResourceNotFound", queue.getTaskGroup, task_id)


def scoped(server, *scopes):
    return server.queue(temporary(server, list(scopes)))


@pytest.mark.parametrize("operation, verb", [("scheduleTask", "schedule"), ("rerunTask", "rerun"), ("cancelTask", "cancel")])
def test_a_change_needs_one_of_three_scopes(server, queue, queue_id, operation, verb):
    def call(*scopes):
        task_id = taskcluster.slugId()
        queue.createTask(task_id, definition(queue_id, schedulerId="sched", projectId="proj", taskGroupId=task_id))
        texts = [scope.format(group=task_id, task=task_id) for scope in scopes]
        return getattr(scoped(server, *texts), operation)(task_id)

    call(f"queue:{verb}-task:sched/{{group}}/{{task}}")
    call(f"queue:{verb}-task-in-project:proj")
    call(f"queue:{verb}-task", "assume:scheduler-id:sched/{group}")
    for scopes in ([], [f"queue:{verb}-task"], [f"queue:{verb}-task-in-project:other"],
                   [f"queue:{verb}-task:sched/{{group}}/other"], ["assume:scheduler-id:sched/{group}"]):
        refused(403, "InsufficientScopes", call, *scopes)


def test_priorities_and_groups_need_their_scopes(server, queue, queue_id):
    task_id = create(queue, queue_id, schedulerId="sched")
    priority = {"newPriority": "high"}
    without_scopes = scoped(server)
    refused(403, "InsufficientScopes", without_scopes.changeTaskPriority, task_id, priority)
    scoped(server, f"queue:change-task-priority:{task_id}").changeTaskPriority(task_id, priority)
    scoped(server, f"queue:change-task-priority-in-queue:{queue_id}").changeTaskPriority(task_id, priority)
    refused(403, "InsufficientScopes", without_scopes.changeTaskGroupPriority, task_id, priority)
    scope = f"queue:change-task-group-priority:sched/{task_id}"
    scoped(server, scope).changeTaskGroupPriority(task_id, priority)
    refused(403, "InsufficientScopes", without_scopes.sealTaskGroup, task_id)
    # An unsealed group is reported before scopes are checked.
    refused(409, "RequestConflict", without_scopes.cancelTaskGroup, task_id)
    scoped(server, f"queue:seal-task-group:sched/{task_id}").sealTaskGroup(task_id)
    refused(403, "InsufficientScopes", without_scopes.cancelTaskGroup, task_id)
    scoped(server, f"queue:cancel-task-group:sched/{task_id}").cancelTaskGroup(task_id)
    # Reading is public.
    for call in (server.anonymous_queue().getTaskGroup, server.anonymous_queue().listTaskGroup):
        assert call(task_id)["taskGroupId"] == task_id
    assert server.anonymous_queue().listDependentTasks(task_id)["tasks"] == []


def test_a_worker_of_one_task_may_not_change_another(server, queue, queue_id):
    task_id = create(queue, queue_id)
    held = claim_one(queue, queue_id, worker=WORKER)
    mine = server.queue(held["credentials"])
    refused(403, "InsufficientScopes", mine.cancelTask, task_id)
    refused(403, "InsufficientScopes", mine.changeTaskPriority, task_id, {"newPriority": "high"})
