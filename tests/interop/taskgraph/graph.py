"""Generates the project's graph with taskgraph, and submits it as a decision task does."""

from pathlib import Path

from taskgraph.create import create_tasks
from taskgraph.generator import TaskGraphGenerator
from taskgraph.parameters import Parameters

PROJECT = Path(__file__).parent / "taskcluster"
LEVEL = "3"
SCHEDULER_ID = f"interop-level-{LEVEL}"
QUEUE_ID = f"interop-{LEVEL}/graph"
# Repository of the tasks' definitions: the commit is never looked up.
PUSH = {
    "level": LEVEL,
    "project": "interop",
    "tasks_for": "hg-push",
    "target_tasks_method": "default",
    "owner": "nobody@example.com",
    "head_repository": "https://github.com/example/interop",
    "base_repository": "https://github.com/example/interop",
    "head_ref": "main",
    "head_rev": "0123456789abcdef0123456789abcdef01234567",
    "repository_type": "git",
}


class Graph:
    """What taskgraph made of the project: tasks by their ids, and the ids by their labels."""

    def __init__(self, decision_id):
        self.decision_id = decision_id
        self.parameters = Parameters(strict=False, repo_root=str(PROJECT), **PUSH)
        generator = TaskGraphGenerator(
            str(PROJECT), lambda _config: self.parameters, decision_task_id=decision_id, write_artifacts=False
        )
        self.graph = generator.morphed_task_graph
        self.config = generator.graph_config
        self.ids = generator.label_to_taskid

    @property
    def tasks(self):
        return self.graph.tasks

    def wanted_dependencies(self, task_id):
        """The edges of the graph; tasks without any wait for the decision task."""
        return {edge[1] for edge in self.graph.graph.edges if edge[0] == task_id} or {self.decision_id}

    def submit(self):
        create_tasks(self.config, self.graph, self.ids, self.parameters, self.decision_id)
