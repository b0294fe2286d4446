"""Workers that run their jobs in this process."""

from concurrent.futures import Future

from pruner.errors import PrunerError
from pruner.processes import Reply
from pruner.tune.networks.draft_task import draft
from pruner.tune.networks.filtering import candidates, forecaster


def done(job, *arguments):
    """The future of a job's reply, as `Worker` makes it."""
    future = Future()
    try:
        reply = Reply(value=job(*arguments))
    except PrunerError as error:
        reply = Reply(error="error", mistake=str(error))
    future.set_result(reply)
    return future


class DraftsHere:
    """Drafts tasks, and counts them."""

    drafted = 0

    def draft(self, job):
        DraftsHere.drafted += 1
        return done(draft, job)

    def close(self):
        pass


class OutlinesHere:
    def submit(self, job, *arguments):
        return done(getattr(candidates, job), *arguments)

    def close(self):
        pass


def use_no_processes(monkeypatch):
    """Outline and draft in this process; return what counts the drafts."""
    DraftsHere.drafted = 0
    candidates._opened.cache_clear()
    monkeypatch.setattr(forecaster, "DraftWorkers", DraftsHere)
    monkeypatch.setattr(candidates, "WorkerPool", lambda *_, **__: OutlinesHere())
    return DraftsHere
