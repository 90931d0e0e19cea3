"""Tenure: a task queue over HTTP. Enqueue jobs, and run workers.

Example:
    ```python
    from tenure import Tenure

    app = Tenure()

    @app.task(queue="acme/mail", retries=5, backoff=(2, 300))
    def send(to: str, subject: str) -> str: ...

    handle = send.enqueue(to="a@example.com", subject="hi")
    print(handle.result(timeout=30))
    ```

    ``python -m tenure worker mymodule:app`` runs the jobs.
"""

__version__ = "0.1.0"

from .app import Tenure
from .errors import (
    Cancelled,
    ConfigurationError,
    DuplicateJob,
    Fail,
    JobCancelled,
    JobFailed,
    NameTaken,
    PayloadError,
    Release,
    RequestRefused,
    ResultError,
    Retry,
    RunLost,
    ServerUnavailable,
    TenureError,
    WorkerRefused,
)
from .handle import Handle, Status
from .job import Cancellation, Job
from .partition import Hold, Member, Partition, Share
from .schedule import CatchUp, Schedule
from .subscription import Subscription
from .task import JobRequest, OnDuplicate, Options, Priority, Task

__all__ = [
    "Cancellation",
    "Cancelled",
    "CatchUp",
    "ConfigurationError",
    "DuplicateJob",
    "Fail",
    "Handle",
    "Hold",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobRequest",
    "Member",
    "NameTaken",
    "OnDuplicate",
    "Options",
    "Partition",
    "PayloadError",
    "Priority",
    "Release",
    "RequestRefused",
    "ResultError",
    "Retry",
    "RunLost",
    "Schedule",
    "ServerUnavailable",
    "Share",
    "Status",
    "Subscription",
    "Task",
    "Tenure",
    "TenureError",
    "WorkerRefused",
    "__version__",
]
