"""A project folder is read into checked dataclasses; every mistake names its file, line and way out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from catchment.errors import ConfigError
from catchment.project.config import Project
from catchment.project.options import options_of
from catchment.project.sections import Defaults, Link, Security, Site, SparkConfig, StorageLimits, Traces
from catchment.project.template import template

MINIMAL = """\
[project]
name = "web-log"
center = "center"

[sites.us]
spark_master = "local[2]"
[sites.center]
listen = "127.0.0.1:9410"

[[links]]
from = "us"
to = "center"
bandwidth = "2 MB/s"
latency = "40 ms"
"""


def load(folder: Path, text: str) -> Project:
    (folder / "catchment.toml").write_text(text, encoding="utf-8")
    return Project.load(folder)


def error_of(folder: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return caught.value


def test_a_project_holds_its_sites_links_and_settings(tmp_path: Path) -> None:
    project = load(tmp_path, MINIMAL + '[spark.settings]\n"spark.sql.shuffle.partitions" = 2\n"spark.x" = true\n')
    assert project.name == "web-log"
    assert project.center == "center"
    assert project.sites["us"] == Site("us", "local[2]")
    assert project.sites["center"].listen == ("127.0.0.1", 9410)
    assert project.links == {("us", "center"): Link("us", "center", 2e6, 40_000)}
    assert project.spark.settings == {"spark.sql.shuffle.partitions": "2", "spark.x": "true"}
    assert project.state_folder == tmp_path / "state"


def test_query_files_are_those_of_the_queries_folder_in_order(tmp_path: Path) -> None:
    (tmp_path / "queries").mkdir()
    for name in ("b.sql", "a.sql", "notes.txt"):
        (tmp_path / "queries" / name).write_text("")
    assert [p.name for p in load(tmp_path, MINIMAL).query_files] == ["a.sql", "b.sql"]


def test_a_stream_is_born_at_every_site_but_the_center_unless_there_is_no_other(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).edge_sites == ("us",)
    alone = '[project]\nname = "one"\ncenter = "here"\n[sites.here]\n'
    assert load(tmp_path, alone).edge_sites == ("here",)


def test_the_template_loads_and_means_the_defaults(tmp_path: Path) -> None:
    project = load(tmp_path, template())
    assert project.defaults == Defaults()
    assert project.spark == SparkConfig()
    assert project.security == Security()


def test_every_setting_shown_in_the_template_may_be_switched_on(tmp_path: Path) -> None:
    for name in ("tls/site.pem", "tls/site.key", "tls/ca.pem", "tokens.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    project = load(tmp_path, re.sub(r'(?m)^#(?=["a-z_]+ =)|^#(?=")', "", template()))
    jump_us = Defaults().resolve_jump_us(None)  # it follows from the repair horizon; the template shows what follows
    plain = replace(project.defaults, history_store=None, history_store_config=None)  # shown by examples: no default
    assert plain == Defaults(max_jump_us=jump_us)
    assert project.links["edge", "center"].bandwidth_bytes_per_s == 2e6
    assert project.security.files_of("eu", tmp_path).tls_ca == tmp_path / "tls/ca.pem"
    assert project.spark.settings == {"spark.sql.shuffle.partitions": "2"}


def test_the_template_names_every_setting() -> None:
    holders = (Project, Site, Link, SparkConfig, Security, StorageLimits, Traces, Defaults)
    names = {option.name for holder in holders for option in options_of(holder)}
    shown = set(re.findall(r"(?m)^#?([a-z_]+) =", template()))
    assert shown == names


MISTAKES = {
    "a table of another name": ("[sites.us]", "[sits.us]", 5, "no table [sits]", "sites"),
    "a misspelt setting": ("bandwidth =", "bandwith =", 13, "'bandwith'", "did you mean 'bandwidth'?"),
    "a setting of the wrong type": ('"40 ms"', "40", 14, "latency = 40", "a duration such as"),
    "a bandwidth without a unit": ('"2 MB/s"', '"2"', 13, "bandwidth = '2'", "Mbit/s"),
    "a bandwidth of nothing": ('"2 MB/s"', '"0 MB/s"', 13, "bandwidth = '0 MB/s'", "Mbit/s"),
    "an address without a port": ("127.0.0.1:9410", "127.0.0.1", 8, "listen = '127.0.0.1'", "host:port"),
    "a port that does not exist": (":9410", ":94100", 8, "listen =", "host:port"),
    "a center that is no site": (
        'center = "center"',
        'center = "centre"',
        3,
        "'centre'",
        "did you mean 'center'?",
    ),
    "a link from nowhere": ('from = "us"', 'from = "su"', 11, "undeclared site 'su'", "possible: center, us"),
    "a link to itself": ('to = "center"', 'to = "us"', 12, "from 'us' to itself", "two different sites"),
    "a link without an end": ('to = "center"\n', "", 10, "lacks the option 'to'", "it must be a name"),
    "a name with a path in it": ('name = "web-log"', 'name = "../x"', 2, "name = '../x'", "letters, digits"),
    "a site with a path in it": ("[sites.us]", '[sites."../us"]', 5, "'../us'", "letters, digits"),
    "a line that is not TOML": ('name = "web-log"', "name: web-log", 2, "not TOML", "name ="),
    "a missing project": ("[project]", "[spark]", 1, "[project] is missing", "add [project]"),
    "a site that is no table": (
        "[sites.us]\n",
        "[sites]\nus = 3\n[sites.eu]\n",
        6,
        "[sites.us] is 3",
        "table",
    ),
}


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_names_line_finding_and_way_out(title: str, tmp_path: Path) -> None:
    old, new, line, found, hint = MISTAKES[title]
    assert old in MINIMAL
    error = error_of(tmp_path, MINIMAL.replace(old, new, 1))
    assert error.where == f"{tmp_path / 'catchment.toml'}:{line}"
    assert found in error.message
    assert hint in (error.hint or "")


def test_two_links_between_the_same_sites_are_refused_at_the_second(tmp_path: Path) -> None:
    error = error_of(tmp_path, MINIMAL + '[[links]]\nfrom = "us"\nto = "center"\n')
    assert error.where == f"{tmp_path / 'catchment.toml'}:16"


def test_half_of_a_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("")
    error = error_of(tmp_path, MINIMAL + '[security]\ntls_cert = "c.pem"\n')
    assert "only one of" in error.message
    assert error.where == f"{tmp_path / 'catchment.toml'}:15"


def test_a_certificate_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = error_of(tmp_path, MINIMAL + '[security]\ntls_ca = "c.pem"\n')
    assert error.where == f"{tmp_path / 'catchment.toml'}:16"


def test_a_spark_setting_must_be_quoted_as_a_whole(tmp_path: Path) -> None:
    error = error_of(tmp_path, MINIMAL + "[spark.settings]\nspark.sql.x = 2\n")
    assert error.where == f"{tmp_path / 'catchment.toml'}:16"
    assert "quote the whole name" in (error.hint or "")


def test_a_folder_without_a_project_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="catchment init"):
        Project.load(tmp_path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "catchment.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        Project.load(tmp_path)


def test_a_missing_link_is_an_error_that_shows_how_to_add_it(tmp_path: Path) -> None:
    project = load(tmp_path, MINIMAL)
    assert project.link("us", "center").latency_us == 40_000
    with pytest.raises(ConfigError, match=r'from = "center" and to = "us"'):
        project.link("center", "us")
