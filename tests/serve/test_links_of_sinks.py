"""What a link carries for several sinks: what each sink's part sends, records and the partials of a source once.

The oracle looks at each sink's explanation alone. Catches: a utilisation that leaves other sinks out, links that only
another sink uses and that nobody tells, and partials that are called the same though other sites are merged into them.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from catchment.deploy.deployment import Deployment
from catchment.deploy.rebalance import known_statistics
from catchment.serve.explanation import explain_deployment
from catchment.serve.explanation_text import explanation_text
from tests.optimizer.test_evaluation_places import write_world

LIGHT = {"source0": "hub1", "source2": "hub2"}


@pytest.mark.parametrize("light", [{}, LIGHT], ids=["partials", "records"])
@pytest.mark.parametrize("seed", range(6))
def test_a_link_carries_what_each_sink_gets_over_it_but_for_what_is_spared(
    tmp_path: Path, seed: int, light: dict[str, str]
) -> None:
    deployment = Deployment.load(write_world(tmp_path / "p", seed=seed, rows_per_s=20.0, light=light))
    known = known_statistics(deployment)
    alone = [explain_deployment(part, statistics=known) for part in deployment.sinks.values()]
    whole = explain_deployment(deployment, statistics=known)
    expected: Counter[tuple[str, str]] = Counter()
    for link in (link for answer in (whole, *alone) for link in answer["links"]):
        name = (link["from"], link["to"])
        if link["records"]:
            expected[name] = link["bytes_per_s"]
        else:
            expected[name] += link["bytes_per_s"]
    told = {(link["from"], link["to"]): link for link in whole["links"]}
    assert told.keys() == expected.keys()
    for name, link in told.items():
        carried = expected[name] - link["spared_bytes_per_s"]
        assert link["of_all_sinks_bytes_per_s"] == pytest.approx(carried)
        assert link["utilisation"] == pytest.approx(carried / link["capacity_bytes_per_s"])


@pytest.mark.parametrize("seed", range(6))
def test_what_both_sinks_get_of_the_same_sites_is_sent_once_by_a_source_and_again_by_a_relay(
    tmp_path: Path, seed: int
) -> None:
    deployment = Deployment.load(write_world(tmp_path / "p", seed=seed, rows_per_s=20.0))
    known = known_statistics(deployment)
    (other,) = deployment.sinks.values()
    (wide,) = [
        d for n, d in deployment.deployed.sharing.fragments.items() if "wide" in deployment.deployed.sharing.users(n)
    ]
    told = {(link["from"], link["to"]): link for link in explain_deployment(deployment, statistics=known)["links"]}
    for name, link in told.items():
        behind = [{s for s in wide.source.sites if name in part.routes.route(s)} for part in (deployment, other)]
        is_common = behind[0] == behind[1] and behind[0]
        common = known.merged_bytes_per_s(wide, sorted(behind[0])) if is_common else 0.0
        is_source = name[0].startswith("source")
        assert link["spared_bytes_per_s"] == pytest.approx(common if is_source else 0.0)
        assert link["repeated_bytes_per_s"] == pytest.approx(0.0 if is_source else common)


def test_the_text_tells_what_is_sent_once_for_several_sinks(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=20.0)
    config = folder / "catchment.toml"
    links = config.read_text().split("[[links]]")
    kept = [link for link in links if 'from = "source' not in link or 'to = "hub2"' in link]
    config.write_text("[[links]]".join(kept))  # every source sends through hub2, whichever sink it is for
    answer = explain_deployment(Deployment.load(folder))
    spared = {link["from"] for link in answer["links"] if link["spared_bytes_per_s"]}
    assert {"source0", "source1", "source2"} <= spared
    assert "more for another sink are sent once" in explanation_text(answer, 500)
    assert "of all sinks" in explanation_text(answer, 500)


def test_without_other_sinks_nothing_is_said_of_them(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "p", rows_per_s=20.0)
    views = folder / "queries" / "q.sql"
    views.write_text(views.read_text().replace("WITH (sink = 'center,hub1') ", ""))
    answer = explain_deployment(Deployment.load(folder))
    assert all(link["of_all_sinks_bytes_per_s"] == pytest.approx(link["bytes_per_s"]) for link in answer["links"])
    assert not any(link["repeated_bytes_per_s"] or link["spared_bytes_per_s"] for link in answer["links"])
    assert "sinks" not in explanation_text(answer)
