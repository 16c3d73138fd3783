"""The channels between a cloud, or an edge cloud, and the devices that are attached to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from catchment.feeds.device.device import boot_number
from catchment.feeds.protocol.channel import ChannelReceiver, ChannelSender, LinkTraffic, WireCounter, at_cloud
from catchment.feeds.protocol.messages import Upward

Numbers = tuple[int, int | None]  # the next one down, and the last one up


@dataclass
class DeviceChannel:
    """The cloud's side of one device's link."""

    sends: ChannelSender
    receives: ChannelReceiver[Upward] = field(default_factory=at_cloud)


class DeviceChannels:
    """The channels of all devices, by name."""

    def __init__(self) -> None:
        self.channels: dict[str, DeviceChannel] = {}

    def of(self, device: str, now_us: int) -> DeviceChannel:
        """Return the channel of a device; that of a new one has numbers above those of earlier lives."""
        if device not in self.channels:
            self.channels[device] = DeviceChannel(ChannelSender(boot_number(now_us)))
        return self.channels[device]

    def forget(self, device: str) -> None:
        """Forget a device that has left for good."""
        self.channels.pop(device, None)

    def traffic(self) -> dict[str, LinkTraffic]:
        """Return what crossed each device's link since this process began."""
        return {name: LinkTraffic(link.receives.received, link.sends.sent) for name, link in self.channels.items()}

    @property
    def boot(self) -> int:
        """The number of the next message to a device, about; 0 while there is none."""
        return max((link.sends.next_number for link in self.channels.values()), default=0)

    @property
    def receivers(self) -> dict[str, ChannelReceiver[Upward]]:
        """What is accepted of each device."""
        return {name: link.receives for name, link in self.channels.items()}

    def reset_traffic(self) -> None:
        """Count traffic from now on."""
        for link in self.channels.values():
            link.sends.sent = WireCounter()
            link.receives.received = WireCounter()

    def snapshot(self) -> dict[str, Numbers]:
        """Return the numbers of all channels."""
        return {name: (link.sends.next_number, link.receives.last_number) for name, link in self.channels.items()}

    def restore(self, state: Mapping[str, Numbers]) -> None:
        """Take the numbers of channels; there are none yet."""
        for name, (next_down, last_up) in state.items():
            self.channels[name] = DeviceChannel(ChannelSender(next_down))
            self.channels[name].receives.last_number = last_up
