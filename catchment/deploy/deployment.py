"""A deployment is a project with every view planned: it says what runs at each site, at relays and at the center.

Every mistake in the project folder is found here, before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from catchment.center.composed.query import ComposedQuery
from catchment.center.composed.windows import in_order
from catchment.center.query import CenterQuery
from catchment.deploy.contracts import (
    contract_of,
    find_source_key,
    late_delta,
    repair_rule,
    shed_choice,
    slack_plan,
)
from catchment.deploy.fragment_plan import FragmentPlan, Watch
from catchment.deploy.landed import as_arrived, as_landed
from catchment.deploy.planned_views import planned
from catchment.deploy.refusals import (
    check_answerable,
    check_plan,
    check_sinks,
    refuse_merged_sites,
    refuse_read_elsewhere,
    refuse_relayed_changes,
)
from catchment.deploy.store import DeploymentStore
from catchment.errors import ConfigError, QueryError
from catchment.functions.installed import functions_in
from catchment.functions.project_functions import ProjectFunctions, load_functions
from catchment.optimizer.choices import Strength
from catchment.optimizer.sharing.demand import SharedQuery, queries_of_plan
from catchment.optimizer.sharing.deploy_views import current_catalog, deploy_again, deploy_first
from catchment.optimizer.sharing.deployed import Deployed
from catchment.optimizer.sharing.link_traffic import bytes_over_links, check_contracts
from catchment.optimizer.sharing.share import BytesOf
from catchment.optimizer.sharing.statistics import fill_with_guesses, load_statistics
from catchment.progress.deferred import can_defer_by
from catchment.project.config import PROJECT_FILE, QUERIES_FOLDER, Project
from catchment.project.options import did_you_mean
from catchment.project.routes import Routes
from catchment.project.routings import Routings
from catchment.query.catalog import Catalog, load_catalog
from catchment.query.own_functions import check_names
from catchment.query.plan import QueryPlan
from catchment.query.planning.build import plan_view
from catchment.query.sql.statements import DropView, Stream, View
from catchment.query.sql.view_options import NEVER
from catchment.shedding.group_shares import DeferrableFragment
from catchment.shedding.sheddable import ShedChoice
from catchment.site.plausible import far_us
from catchment.site.policies.base import Policy
from catchment.site.policies.basic import EarlyPolicy
from catchment.site.policies.registry import policy_by_name


@dataclass(frozen=True)
class Deployment:
    """A project with all its views planned, and what they share.

    It is that of the center, and has in `sinks` those of other sites at which views are answered (`sink = 'tokyo'`):
    each is a deployment of its own, whose center is that site. Sites read their streams for all of them at once.
    """

    project: Project
    catalog: Catalog
    plans: tuple[QueryPlan, ...]
    deployed: Deployed
    declared: Catalog  # the catalog without the submitted views; of the center's, that of the whole project
    sinks: Mapping[str, Deployment] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> Deployment:
        """Read and plan a project."""
        return cls.plan(load_catalog(Project.load(folder)))

    @classmethod
    def plan(cls, declared: Catalog, deployed: Deployed | None = None) -> Deployment:
        """Plan every view of a catalog; continue from what is deployed in the project's state folder."""
        known = deployed or DeploymentStore(declared.project.state_folder).read()
        if not declared.views and known is None:
            raise QueryError(
                "no materialized view is declared",
                where=str(declared.project.folder / QUERIES_FOLDER),
                hint="add queries/NAME.sql with CREATE MATERIALIZED VIEW ... AS SELECT ...",
            )
        main = cls.plan_at(declared.at_sink(declared.project.center), known)
        named = dict.fromkeys((*declared.sink_sites, *(() if known is None else known.sinks)))
        others = {
            sink: cls.plan_at(declared.at_sink(sink), None if known is None else main.deployed.at_sink(sink))
            for sink in named
        }
        check_sinks(declared, (part.catalog for part in (main, *others.values())))
        return replace(main, declared=declared)._with_sinks(others)

    @classmethod
    def plan_at(cls, declared: Catalog, known: Deployed | None) -> Deployment:
        """Plan the views that are answered at one site."""
        catalog = current_catalog(declared, known).with_own_sinks()
        if known is not None and known.hops:
            for site, to in known.hops.items():
                catalog.project.link(site, to)  # refuses that the link to which a site was moved is gone
            catalog = replace(catalog, project=replace(catalog.project, moved_hops=known.hops))
        check_answerable(catalog, catalog.views.values())
        names = {view: view if known is None else known.query_name(view) for view in catalog.views}
        views = [planned(view, catalog, names[name]) for name, view in catalog.views.items()]
        plans = tuple(view.plan for view in views)
        for plan in plans:
            check_plan(plan, catalog)
        queries = [query for view in views for query in view.queries]
        return cls(catalog.project, catalog, plans, _share(catalog, queries, known), declared)

    def _with_sinks(self, sinks: Mapping[str, Deployment]) -> Deployment:
        """Return the deployment of the center with these of other sites."""
        deployed = self.deployed.with_sinks({sink: part.deployed for sink, part in sinks.items()})
        return replace(self, deployed=deployed, sinks=sinks)

    @property
    def parts(self) -> tuple[Deployment, ...]:
        """What is answered at each site, the center first."""
        return (self, *self.sinks.values())

    def part_at(self, sink: str) -> Deployment:
        """Return what is answered at a sink: at the center, if none is named."""
        if sink and sink not in self.sinks:
            raise ConfigError(
                f"nothing is answered at {sink!r}",
                where=str(self.project.folder / PROJECT_FILE),
                hint=did_you_mean(sink, self.sinks),
            )
        return self.sinks[sink] if sink else self

    def of_view(self, name: str) -> Deployment:
        """Return the part that answers a view, or a definition of it: the center's, if several do or none does."""
        found = (part for part in self.parts if any(name in (plan.view, plan.name) for plan in part.plans))
        return next(found, self)

    def streams_at(self, site: str) -> tuple[Stream, ...]:
        """Return the streams that are born at a site and read by some view, as they are read by what evaluates them."""
        as_read = as_arrived if self.project.is_light(site) else as_landed
        return tuple(as_read(stream, self.project) for stream in self.declared_at(site))

    def declared_at(self, site: str) -> tuple[Stream, ...]:
        """Return the streams that are born at a site and read there by some view, as they are declared."""
        read = {p.scan.stream for part in self.parts for p in part.sides if site in p.scan.sites}
        return tuple(stream for stream in self.catalog.streams.values() if stream.name in read)

    def fragments_at(self, site: str) -> tuple[FragmentPlan, ...]:
        """Return the fragments that run at a site, with their policies, whichever site they are sent to."""
        return tuple(
            replace(plan, exit_name=part.routings.site_exit(plan.fragment.name, site))
            for part in self.parts
            for plan, sites in part.fragment_plans()
            if site in sites
        )

    def fragment_plans(self) -> Iterator[tuple[FragmentPlan, tuple[str, ...]]]:
        """Yield every fragment that runs for this part, with the sites where it runs."""
        deployed = self.deployed
        for name, demand in deployed.sharing.fragments.items():
            watches = self._watches(name)
            plan = FragmentPlan(
                deployed.sharing.fragment(name),
                self._policy(name, demand.source.policy),
                name in deployed.begun,
                deployed.leaving.get(name),
                self._weight(name),
                self._shed_choice(name),
                watches,
                demand.source.max_errors,
                deployed.starts.get(name),
                goes_by_stream=0 < len(watches) < len(self._fed_by(name)),
                ends=deployed.handovers.get(name, ()),
            )
            yield plan, demand.source.sites

    def _weight(self, fragment: str) -> float:
        """Return the summed weight of the views that a fragment serves; 1 if no view uses it any more."""
        users = self.deployed.sharing.users(fragment)
        return sum(p.options.weight for p in self.sides if p.name in users) or 1.0

    def _shed_choice(self, fragment: str) -> ShedChoice:
        users = self.deployed.sharing.users(fragment)
        return shed_choice([p for p in self.sides if p.name in users])

    def _fed_by(self, fragment: str) -> list[QueryPlan]:
        return [p for p in self.sides if self.deployed.derivation(p.name).fragment == fragment]

    def _policy(self, fragment: str, named: str) -> Policy:
        """Return the policy by which partials leave: the named one, and for early answers also on their schedule."""
        chosen = policy_by_name(named or self.project.defaults.policy)
        early = [p.options.emit_early_us for p in self._fed_by(fragment) if p.options.emit_early_us is not None]
        return EarlyPolicy(chosen, min(early)) if early else chosen

    def _watches(self, fragment: str) -> tuple[Watch, ...]:
        """Return the slack plans of the queries of a fragment that have a contract or choose a controller."""
        found = []
        for plan in self._fed_by(fragment):
            stream = self.catalog.streams[plan.fragment.stream]
            jump_us = self.project.defaults.resolve_jump_us(stream.max_jump_us)
            slack = slack_plan(plan, stream, far_us(jump_us))
            if slack is not None:
                found.append(Watch(slack, plan.fragment))
        return tuple(found)

    def at(self, deployed: Deployed) -> Deployment:
        """Return the same project at another version of what is deployed."""
        return Deployment.plan(replace(self.declared, functions=self._read_functions()), deployed)

    def _read_functions(self) -> ProjectFunctions:
        """Return the functions of the project as they are now: some may be new, none in use may have other code."""
        functions = check_names(load_functions(self.project))
        plans = [plan for part in self.parts for plan in part.plans]
        used = frozenset[str]().union(*(functions_in(plan.to_text()) for plan in plans))
        changed = sorted(used - {f.installed_name for f in functions.by_name.values()})
        if changed:
            raise ConfigError(
                f"the code of {', '.join(changed)} was changed or removed, and views use it",
                where=str(self.project.folder / self.project.functions),
                hint="give changed code another name, and replace the views; or replace them and start again",
            )
        return functions

    def read_again(self, deployed: Deployed) -> Deployment:
        """Return the project as it is declared now, at another version of what is deployed."""
        return Deployment.plan(load_catalog(Project.load(self.project.folder)), deployed)

    def add(self, views: Sequence[View], bytes_of: BytesOf | None = None) -> Deployment:
        """Return the deployment with more views, which were submitted; those that replace others end them.

        With `bytes_of`, what is known of the bytes that fragments send to the center, those that run are widened where
        that pays.
        """
        for view in views:
            self.catalog.check_sinks(view)
            self._refuse_taken(view)
        anywhere = {name.lower() for part in self.parts for name in part.catalog.views}
        anywhere |= {view.name.lower() for view in views}
        made = self._add_here(views, anywhere, bytes_of)
        named = dict.fromkeys((*self.sinks, *(s for view in views for s in self.catalog.sinks_of(view))))
        others = {}
        for sink in (name for name in named if name != self.project.center):
            part = self.sinks.get(sink) or self.plan_at(self.declared.at_sink(sink), made.deployed.at_sink(sink))
            others[sink] = part._add_here(views, anywhere)
        changed = made._with_sinks(others)
        check_sinks(self.declared, (part.catalog for part in changed.parts))
        return changed

    def _add_here(
        self, views: Sequence[View], elsewhere: Collection[str], bytes_of: BytesOf | None = None
    ) -> Deployment:
        """Return what is answered at one site with those of these views that are to be, without what they replace.

        `elsewhere` are the names, in lower case, of all views that are answered anywhere.
        """
        here = self.project.center
        by_default = () if self.project.sink else (here,)
        wanted = [view for view in views if here in (view.options.sink or by_default)]
        ended = [view.name for view in views if view.replaces and view.name in self.catalog.views]
        if not wanted and not ended:
            return self
        known = replace(self.catalog, views={**self.catalog.views, **{view.name: view for view in wanted}})
        for view in wanted:
            refuse_read_elsewhere(view, known, elsewhere)
        catalog = self.catalog.add(*(DropView(name) for name in ended), *wanted)
        check_answerable(catalog, wanted)
        deployed = self.deployed
        for name in ended:
            deployed = deployed.drop(deployed.query_name(name))
        plans = [plan for plan in self.plans if plan.view not in ended]
        for view in wanted:
            plan = plan_view(view, catalog).renamed(deployed.next_name(view.name))
            check_plan(plan, catalog)
            plans.append(plan)
            sql = replace(view, replaces=False).to_sql()
            for query in queries_of_plan(plan, catalog):
                deployed = deployed.add(query, sql, bytes_of)
            if not plan.sides:  # it reads another view, and nothing is sent for it
                deployed = deployed.add_composed(plan.name, sql)
        check_contracts(self.project, deployed.lasting, load_statistics(self.project, catalog))
        return replace(self, catalog=catalog, plans=tuple(plans), deployed=deployed)

    def _refuse_taken(self, view: View) -> None:
        """Refuse a view whose name another one has that is answered elsewhere, unless it replaces that."""
        for part in self.parts:
            known = next((v for name, v in part.catalog.views.items() if name.lower() == view.name.lower()), None)
            if known is not None and not view.replaces:
                raise QueryError(
                    f"the name {view.name!r} is already taken by a view",
                    where=view.where,
                    hint=f"it was declared at {known.where}; choose another name",
                )

    def drop(self, name: str) -> Deployment:
        """Return the deployment without a view, wherever it is answered."""
        parts = [part._drop_here(name) for part in self.parts]
        return parts[0]._with_sinks({part.project.sink: part for part in parts[1:]})

    def _drop_here(self, name: str) -> Deployment:
        found = next((plan.name for plan in self.plans if name in (plan.view, plan.name)), None)
        return self if found is None else replace(self, deployed=self.deployed.drop(found))

    @cached_property
    def routes(self) -> Routes:
        """The routes that the updates of the sites take to the center, as far as they begin now."""
        return Routes.of(self.project)

    @cached_property
    def possible_ends(self) -> frozenset[str]:
        """The sites that others may be moved to while they run: the center, hubs, and sites where no stream is born.

        `catchment.project.routings` says why others may not become hubs.
        """
        born = {site for sites in self.births.values() for site in sites}
        computing = {site for site in self.project.sites if not self.project.is_light(site)}
        return frozenset({self.project.center, *self.routings.hubs, *(computing - born)})

    @property
    def standby_hubs(self) -> tuple[str, ...]:
        """The sites that nobody sends through yet, and that others may be moved to, because links lead there and on."""
        reached = {link.destination for link in self.project.running_links}
        found = (site for site in sorted(self.possible_ends & reached) if self.project.sites[site].listen is not None)
        return tuple(s for s in found if s in self.routes.hops and s not in self.routings.hubs)

    @cached_property
    def routings(self) -> Routings:
        """The routes of each fragment, which are those that were in force when it began."""
        return Routings.of(self.project, self.deployed.hops_of, self.deployed.hubs)

    @cached_property
    def births(self) -> dict[str, tuple[str, ...]]:
        """The sites where each stream is born, by its name."""
        return {stream.name: tuple(stream.sites or ()) for stream in self.catalog.streams.values()}

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites where some view reads a stream."""
        return tuple(s for s in self.project.sites if self.streams_at(s))

    @cached_property
    def sides(self) -> tuple[QueryPlan, ...]:
        """Every plan over one stream: that of a view or, for a join, those of its two sides."""
        return tuple(side for plan in self.plans for side in plan.sides)

    @cached_property
    def center_queries(self) -> tuple[CenterQuery, ...]:
        plans = [p.slices or p for p in self.plans if p.slices is not None or p.lower is None]
        return tuple(self._center_query(p) if p.sides == (p,) else self._query_of_sides(p) for p in plans)

    @cached_property
    def composed_queries(self) -> tuple[ComposedQuery, ...]:
        """The views of views, each after the one that it reads."""
        names = {plan.view: plan.name for plan in self.plans}
        return tuple(in_order([ComposedQuery.of(plan, names) for plan in self.plans if plan.lower is not None]))

    def _center_query(self, p: QueryPlan) -> CenterQuery:
        defaults = self.project.defaults
        stream = self.catalog.streams[p.fragment.stream]
        return CenterQuery(
            p.name,
            p.fragment,
            p.window,
            p.scan.sites,
            defaults.repair_horizon_us,
            defaults.freshness_us if p.options.freshness_us is None else p.options.freshness_us,
            self.deployed.derivation(p.name),
            contract_of(p),
            p.options.emit_early_us,
            repair_rule(p, stream, defaults),
            self.source_key(p),
            whole_windows=p.top is not None,
            late_delta=self.late_delta(p),
            renewal=self.deployed.renewals.get(p.name, 0),
            named_sites=p.scan.named_sites,
        )

    def _query_of_sides(self, p: QueryPlan) -> CenterQuery:
        """Return a join or a union as one query over the sites of all its streams, fed by its sides."""
        sides = tuple(self._center_query(side) for side in p.sides)
        sites = tuple(dict.fromkeys(site for side in sides for site in side.sites))
        repair = None if p.options.repair == NEVER else sides[0].repair
        return replace(
            sides[0],
            name=p.name,
            fragment=p.fragment if p.join is None else p.join.pairing,
            sites=sites,
            derivation=None,
            repair=repair,
            source_key=None,
            contract=contract_of(p) if p.join is not None else sides[0].contract,
            late_delta=self.late_delta(p),
            join=p.join,
            sides=sides,
            whole_windows=p.top is not None,
        )

    @cached_property
    def deferrable(self) -> dict[str, DeferrableFragment]:
        """The fragments of which relays and the center may merge groups later, because all their views tolerate it."""
        found = (self._deferrable(name) for name in self.deployed.sharing.fragments)
        return {fragment.name: fragment for fragment in found if fragment is not None}

    def _deferrable(self, fragment: str) -> DeferrableFragment | None:
        users = [p for p in self.sides if p.name in self.deployed.sharing.users(fragment)]
        if not users or not all(p.tolerates_deferral for p in users):
            return None
        grouped = [{shared for shared, _ in self.deployed.derivation(p.name).keys} for p in users]
        keys = [k for k in self.deployed.sharing.fragment(fragment).keys if all(k.name in names for names in grouped)]
        if not keys or not can_defer_by(k.type for k in keys):
            return None
        return DeferrableFragment(
            fragment,
            tuple(k.name for k in keys),
            frozenset(p.name for p in users),
            min((p.options.max_error for p in users if p.options.max_error is not None), default=1.0),
            self._weight(fragment),
        )

    def late_delta(self, plan: QueryPlan) -> float:
        """Return the chance that more is late of a view's window than is stated; a union is as its branches."""
        if plan.lower is not None:
            return 1.0 - plan.options.confidence
        if plan.join is not None:
            return late_delta(plan, self.catalog.streams[plan.sides[0].fragment.stream])
        return min(late_delta(side, self.catalog.streams[side.fragment.stream]) for side in plan.sides)

    def source_key(self, plan: QueryPlan) -> str | None:
        """Return the key of a query that is its stream's source, if it reads one stream and has such a key."""
        if plan.sides != (plan,):
            return None
        stream = self.catalog.streams[plan.fragment.stream]
        return find_source_key(plan, stream.source)


def _share(catalog: Catalog, queries: Sequence[SharedQuery], known: Deployed | None) -> Deployed:
    strength = Strength(catalog.project.defaults.sharing)
    declared = load_statistics(catalog.project, catalog)
    if known is None:
        sent = bytes_over_links(Routes.of(catalog.project), fill_with_guesses(declared, catalog))
        deployed = deploy_first(queries, strength, sent)
    else:
        refuse_relayed_changes(catalog.project, known, queries)
        deployed = deploy_again(known, queries, strength)
    refuse_merged_sites(catalog.project, deployed)
    check_contracts(catalog.project, deployed.lasting, declared)
    return deployed
