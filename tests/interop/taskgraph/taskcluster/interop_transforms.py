"""What this project's tasks need beyond taskgraph's own transforms."""

from taskgraph.transforms.base import TransformSequence

transforms = TransformSequence()


@transforms.add
def number_the_chunks(_config, tasks):
    """Chunks of one task have one name until chunking gives them different ones."""
    for task in tasks:
        task["name"] += f"-{task['attributes']['this_chunk']}"
        yield task
