"""One run of the demo: its stage, its scenes and its screen, and the check of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from catchment.cli.demo.director import LIMIT_S, Director
from catchment.cli.demo.outside import ARRIVING, CutLinks, Outside
from catchment.cli.demo.scenes import Length, scenes
from catchment.cli.demo.screen import Screen
from catchment.cli.demo.stage import Stage, Status
from catchment.deploy.deployment import Deployment

# A few records of the log have a company that is no BIGINT: they are in quarantine, and in no answer.
_RECOMPUTED = """
SELECT epoch_ms((epoch_ms(ts) // 600000) * 600000) AS start, country, code, count(*) AS requests, sum(bytes) AS bytes
FROM read_json('{files}', format = 'newline_delimited', columns = {{
  ts: 'TIMESTAMP', client: 'VARCHAR', country: 'VARCHAR', company: 'VARCHAR', code: 'INTEGER', bytes: 'BIGINT'}})
WHERE try_cast(company AS BIGINT) IS NOT NULL
GROUP BY ALL
"""


@dataclass
class Play:
    """The demo while it runs."""

    deployment: Deployment
    stage: Stage
    director: Director
    screen: Screen
    links: CutLinks

    @classmethod
    def prepare(
        cls,
        folder: Path,
        *,
        quiet: bool = False,
        pace_s: float = 0.8,
        length: Length | None = None,
        limit_s: float = LIMIT_S,
    ) -> Play:
        """Prepare a play in a folder that holds a fresh demo."""
        outside = Outside.read(folder)
        deployment = Deployment.load(folder)
        screen = Screen(quiet)
        links = CutLinks()
        stage = Stage(deployment.project, outside, links, screen.say, pace_s)
        director = Director(scenes(stage, length or Length()), screen.say, limit_s)
        return cls(deployment, stage, director, screen, links)

    def step(self, status: Status) -> None:
        """Go on with what the run does now."""
        self.stage.status = status
        self.director.step()
        self.screen.update(self.stage)

    @property
    def finished(self) -> bool:
        return self.director.finished

    def recompute(self) -> dict[str, int]:
        """Compare the exact windows of `traffic` with a recomputation from every record that arrived, by DuckDB."""
        import duckdb

        from catchment.center.results.read import read_results

        published = read_results(self.deployment.project.state_folder, "traffic")
        whole = [row for row in published.to_pylist() if row["status"] in ("exact", "final")]
        answers = {
            (r["start"].replace(tzinfo=None), r["country"], r["code"]): (r["requests"], r["bytes"]) for r in whole
        }
        windows = {start for start, _, _ in answers}
        files = str(self.deployment.project.folder / ARRIVING / "*" / "*.json").replace("'", "''")
        with duckdb.connect() as database:
            recomputed = database.execute(_RECOMPUTED.format(files=files)).fetchall()
        truth = {(s, country, code): (n, total) for s, country, code, n, total in recomputed if s in windows}
        different = [key for key in truth.keys() | answers.keys() if truth.get(key) != answers.get(key)]
        return {
            "windows": len(windows),
            "rows": len(answers),
            "different_rows": len(different),
            "quarantined": sum(site["quarantined"] for site in self.stage.status["sites"].values()),
        }
