"""Runs the batches of a durable cloud, one at a time, beside the thread that serves devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from catchment.feeds.cloud.batch_cloud import BatchCloud, FoundRow
from catchment.feeds.cloud.batch_plane import BatchJob
from catchment.feeds.runs.durable_cloud import DurableCloud

BATCH_EVERY_S = 0.5  # from the beginning of a batch to that of the next, at least

Join = Callable[[BatchJob], Iterable[FoundRow]]  # joins a batch with what came before


class BatchRunner:
    """Begins batches, has them joined in a thread of its own, and hands in what they found."""

    def __init__(self, cloud: DurableCloud, join: Join, every_s: float = BATCH_EVERY_S) -> None:
        assert isinstance(cloud.cloud, BatchCloud)
        self.cloud = cloud
        self.plane = cloud.cloud.plane
        self.join = join
        self.every_s = every_s
        self.began_s = -every_s
        self.under_way: tuple[BatchJob, Future[Iterable[FoundRow]]] | None = None
        self.pool = ThreadPoolExecutor(1, "feed-batches")

    def step(self) -> None:
        """Go on as far as that is possible without waiting; the cloud is changed by the calling thread alone."""
        if self.under_way is not None:
            self._hand_in()
        if self.under_way is None and time.monotonic() - self.began_s >= self.every_s:
            self._begin()

    def _begin(self) -> None:
        if self.plane.fresh is None and self.plane.rows:
            self.cloud.begin_batch()
        job = self.plane.job()
        if job is not None:
            self.began_s = time.monotonic()
            self.under_way = (job, self.pool.submit(self.join, job))

    def _hand_in(self) -> None:
        assert self.under_way is not None
        job, found = self.under_way
        if not found.done():
            return
        self.under_way = None
        if job.program is self.plane.program:  # else its views may mean something else now: it is joined again
            self.cloud.end_batch(job.fresh, found.result())

    def finish(self) -> None:
        """Run batches until no event waits."""
        while self.under_way is not None or self.plane.job() is not None or self.plane.rows:
            if self.under_way is None:
                self._begin()
            if self.under_way is not None:
                self.under_way[1].exception()  # waits
                self._hand_in()

    def close(self) -> None:
        """Let go of the thread; a batch under way is joined again by the next start."""
        self.pool.shutdown(wait=False, cancel_futures=True)
