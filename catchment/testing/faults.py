"""The faults of a run: drawn per seed, spread over its time, and ended before liveness is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from catchment.testing.campaigns.features import Feature, Features
from catchment.testing.campaigns.states import RareState
from catchment.testing.simulated.disk import DiskFault
from catchment.testing.simulated.network import LinkWeather, SimulatedLink
from catchment.testing.simulated.world import CENTER, Role, StateCopy, World
from catchment.timeline import SECOND_US
from catchment.wire.frames.versions import PREVIOUS_VERSION, READ_VERSIONS

_DISK_FAULTS = {
    Feature.DISK_ERROR: DiskFault.ERROR,
    Feature.TORN_WRITE: DiskFault.TORN_WRITE,
    Feature.MISDIRECTED: DiskFault.MISDIRECTED,
}
_LINK_FAULTS = (Feature.LOSS, Feature.DOUBLED, Feature.DELAY, Feature.ONE_WAY_CUT, Feature.JAM, Feature.REPLAY)
UNSHAPED_BYTES_PER_S = 5_000.0  # what a link without a bandwidth is taken to carry, when it is throttled
_MOMENTS = 4  # of every enabled fault, at most


@dataclass
class FaultPlan:
    """Lets the enabled faults happen in a world until they are ended."""

    world: World
    features: Features
    until_us: int
    is_over: bool = False

    def begin(self) -> None:
        """Plan every fault."""
        acts: dict[Feature, Callable[[], None]] = {
            Feature.CRASH: self._crash,
            Feature.AWAY: self._go_away,
            Feature.POWER_CUT: self._cut_power,
            Feature.RECOVERY_CRASH: self._crash_in_recovery,
            Feature.SLOW_DISK: self._slow_down,
            Feature.ROT: self._rot,
            Feature.STEP_BACK: self._step_back,
            Feature.MESH: self._cut_or_throttle,
            **{f: lambda f=f: self._plan_disk_fault(f) for f in _DISK_FAULTS},  # type: ignore[misc]
            **{f: lambda f=f: self._change_weather(f) for f in _LINK_FAULTS},  # type: ignore[misc]
        }
        for feature, act in acts.items():
            if feature in self.features:
                for _ in range(self._chance.randint(1, _MOMENTS)):
                    self._sometime(act)
        if Feature.RESTORED in self.features:
            self._sometime(self._copy_state)
        if Feature.LOST in self.features:
            self._sometime(self._lose_state)
        if Feature.DEAD in self.features:
            self._sometime(self._die)
        if Feature.UPGRADE in self.features:
            self._plan_upgrades()
        if Feature.SKEW in self.features:
            for role in self.world.roles.values():
                role.clock.ahead_us = self._chance.randint(-20 * SECOND_US, 20 * SECOND_US)

    def end(self) -> None:
        """Let no further fault happen; links, disks and clocks are well from now on, and who can return does."""
        self.is_over = True
        for link in self.world.links.values():
            self._heal(link)
        for role in self.world.roles.values():
            self.world.disk.heal(role.folder)
            if self.world.disk.machine(role.folder).damaged and not role.is_dead:
                self.world.kill(role, back_after_us=None)
                self.world.restore(role)
            self.world.start(role)

    @property
    def _chance(self) -> random.Random:
        return self.world.chance

    def _sometime(self, act: Callable[[], None]) -> None:
        at_us = self._chance.randint(self.world.scheduler.now_us, self.until_us)
        self.world.scheduler.at(at_us, lambda: None if self.is_over else act())

    def _some_role(self) -> Role:
        return self._chance.choice(list(self.world.roles.values()))

    # --- processes --------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        self.world.kill(self._some_role())

    def _cut_power(self) -> None:
        self.world.kill(self._some_role(), power_cut=True)

    def _go_away(self) -> None:
        role = self._chance.choice(self.world.sites())
        self.world.kill(role, back_after_us=self._chance.randint(5, 40) * SECOND_US)

    def _die(self) -> None:
        role = self._chance.choice(self.world.sites())
        role.is_dead = True
        self.world.note(RareState.SITE_DEAD)
        self.world.kill(role, back_after_us=None)

    def _plan_upgrades(self) -> None:
        """Let every process begin with the previous release, and be upgraded at some time, in any order."""
        for role in self.world.roles.values():
            self.world.kill(role, back_after_us=None)
            role.frame_versions = (PREVIOUS_VERSION,)
            self.world.start(role)
            self._sometime(lambda role=role: self._upgrade(role))  # type: ignore[misc]

    def _upgrade(self, role: Role) -> None:
        role.frame_versions = READ_VERSIONS
        self.world.say(f"{role} is upgraded")
        self.world.kill(role)

    def _crash_in_recovery(self) -> None:
        role = self._some_role()
        self.world.kill(role, power_cut=self._chance.random() < 0.5)
        self.world.disk.plan_fault(role.folder, self._chance.randrange(30), DiskFault.KILL)

    # --- disks ------------------------------------------------------------------------------------------------------

    def _plan_disk_fault(self, feature: Feature) -> None:
        role = self._some_role()
        self.world.disk.plan_fault(role.folder, self._chance.randrange(60), _DISK_FAULTS[feature])

    def _slow_down(self) -> None:
        machine = self.world.disk.machine(self._some_role().folder)
        machine.fsync_us = self._chance.choice((20_000, 200_000))

    def _rot(self) -> None:
        role = self._some_role()
        self.world.kill(role)
        if role.running is None and not role.is_dead:
            path = self.world.disk.rot(role.folder)
            self.world.say(f"{role}: {path.name if path else 'nothing'} rots")

    # --- state that is older, or lost -------------------------------------------------------------------------------

    def _copy_state(self) -> None:
        """Copy the state of a site or a relay, which comes back with that copy later."""
        role = self._some_sender()
        if not self.world.disk.machine(role.folder).damaged:
            copied = self.world.copy_state(role)
            self.world.say(f"the state of {role} is copied")
            self.world.scheduler.after(self._seconds(1, 20), lambda: self._come_back(role, copied))

    def _lose_state(self) -> None:
        self._come_back(self._some_sender(), None)

    def _come_back(self, role: Role, copied: StateCopy | None) -> None:
        """Let a role come back with another state; a person heals it, sooner or later."""
        if role.is_dead:
            return
        self.world.say(f"{role} comes back with {'an older copy' if copied else 'an empty disk'}")
        self.world.note(RareState.STATE_RESTORED if copied else RareState.STATE_LOST)
        self.world.put_back(role, copied)
        self.world.scheduler.after(self._seconds(0, 5), lambda: self.world.start(role))
        self.world.scheduler.after(self._seconds(0, 10), lambda: self.world.heal(role))

    def _some_sender(self) -> Role:
        return self._chance.choice([r for r in self.world.roles.values() if r.kind != CENTER])

    def _seconds(self, least: int, most: int) -> int:
        return self._chance.randint(least, most) * SECOND_US

    # --- links ------------------------------------------------------------------------------------------------------

    def _change_weather(self, feature: Feature) -> None:
        """Let one link misbehave for a while."""
        if not self.world.links:
            return
        link = self._chance.choice(list(self.world.links.values()))
        weather = link.weather
        if feature is Feature.LOSS:
            weather.lost = self._chance.uniform(0.05, 0.5)
        elif feature is Feature.DOUBLED:
            weather.doubled = 0.4
        elif feature is Feature.REPLAY:
            weather.replayed = 0.4
        elif feature is Feature.DELAY:
            weather.max_delay_us = self._chance.choice((1, 8)) * SECOND_US
        elif feature is Feature.JAM:
            weather.is_jammed = True
        elif self._chance.random() < 0.5:
            weather.carries_requests = False
        else:
            weather.carries_answers = False
        self.world.scheduler.after(self._chance.randint(2, 15) * SECOND_US, lambda: self._heal(link))

    def _cut_or_throttle(self) -> None:
        """Cut one link of a route for a while, or let it carry a tenth."""
        link = self.world.link(*self._chance.choice(sorted(self.world.routes.hops.items())))
        if self._chance.random() < 0.5:
            link.weather.carries_requests = False
            link.weather.carries_answers = False
        else:
            link.throttle((link.usual_bytes_per_s or UNSHAPED_BYTES_PER_S) / 10)
        self.world.scheduler.after(self._chance.randint(8, 30) * SECOND_US, lambda: self._heal(link))

    def _heal(self, link: SimulatedLink) -> None:
        usual = LinkWeather()
        link.weather = replace(
            usual,
            min_delay_us=link.weather.min_delay_us,
            max_delay_us=link.weather.min_delay_us + 1_000,
            bytes_per_s=link.weather.bytes_per_s,
        )
        if link.weather.bytes_per_s != link.usual_bytes_per_s:
            link.throttle(link.usual_bytes_per_s)
        link.end_jam()

    # --- clocks -----------------------------------------------------------------------------------------------------

    def _step_back(self) -> None:
        role = self._some_role()
        role.clock.ahead_us -= self._chance.randint(1, 30) * SECOND_US
        self.world.note(RareState.CLOCK_WENT_BACK)
