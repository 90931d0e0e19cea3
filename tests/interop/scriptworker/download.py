"""Downloads artifacts with scriptworker's own functions: `download.py CONFIG FOLDER TASK_ID NAME...`"""

import asyncio
import sys

from scriptworker.artifacts import download_artifacts, get_artifact_url
from scriptworker.config import create_config
from scriptworker.context import Context
from scriptworker.utils import scriptworker_session


async def main(config_path, folder, task_id, names):
    context = Context()
    config, credentials = create_config(config_path)
    # Downloads are allowed only from listed deployments; this one is not listed.
    rule = {
        "schemes": ("http",),
        "netlocs": (config["taskcluster_root_url"].partition("://")[2],),
        "path_regexes": (r"^/api/queue/v1/task/(?P<taskId>[^/]+)(/runs/\d+)?/artifacts/(?P<filepath>.*)$",),
    }
    context.config = {**config, "valid_artifact_rules": (rule,)}
    async with scriptworker_session() as session:
        context.session = session
        context.credentials = credentials
        urls = [get_artifact_url(context, task_id, name) for name in names]
        for path in await download_artifacts(context, urls, parent_dir=folder, valid_artifact_task_ids=[task_id]):
            print(path)


asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
