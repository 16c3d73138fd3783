"""What receives the records of a site: one HTTP receiver for all its streams, and an MQTT client for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from catchment.project.config import Project
from catchment.query.marker_form import MarkerForm
from catchment.query.sql.connectors import FeedConnector, HttpConnector, MqttConnector, ReceivedConnector
from catchment.receivers.landing import LandingFolder
from catchment.receivers.writer import LandingWriter

if TYPE_CHECKING:
    from catchment.receivers.http import HttpReceiver
    from catchment.receivers.mqtt import MqttReceiver

MAX_HTTP_KEYS = 100_000  # the newest deliveries that are recognised when they are sent again


class NamedStream(Protocol):
    """A stream, as far as receivers know it."""

    @property
    def name(self) -> str: ...

    @property
    def connector(self) -> object: ...

    @property
    def marker(self) -> MarkerForm | None: ...


class SiteReceivers:
    """Receives the records of some streams at one site, for as long as the site runs."""

    def __init__(self, project: Project, site: str) -> None:
        self._project = project
        self._site = site
        self._writers: dict[str, LandingWriter] = {}
        self._mqtt: dict[str, MqttReceiver] = {}
        self._http: HttpReceiver | None = None
        self._heard_us: dict[str, int] = {}  # when the broker of a stream was last connected

    def heard_us(self, stream: str, now_us: int) -> int | None:
        """Return when the broker of a stream was last connected; None where records are not fetched from one."""
        receiver = self._mqtt.get(stream)
        if receiver is None:
            return None
        if receiver.is_connected:
            self._heard_us[stream] = now_us
        return self._heard_us.setdefault(stream, now_us)

    def prepare(self, streams: Iterable[NamedStream]) -> None:
        """Make the folders where records land, for a site that reads what is there and receives nothing."""
        for stream in streams:
            if isinstance(stream.connector, ReceivedConnector):
                self._open_folder(stream.name, stream.connector).open()

    def follow(self, streams: Iterable[NamedStream]) -> None:
        """Begin to receive for streams that are new; one that nobody reads any more is received no longer."""
        received = [(s.name, s.connector, s.marker) for s in streams if _is_received_here(s.connector)]
        names = {name for name, _, _ in received}
        for name in [n for n in self._writers if n not in names]:
            self._end(name)
        for name, connector, marker in received:
            if name not in self._writers:
                self._begin(name, connector, marker)

    def stop(self) -> None:
        """Receive nothing more; what was received lands first."""
        if self._http is not None:
            self._http.stop()
            self._http = None
        for name in list(self._writers):
            self._end(name)

    def status(self) -> dict[str, Any]:
        """Return what each stream has received, as plain JSON."""
        found = {}
        for name, writer in self._writers.items():
            receiver = self._mqtt.get(name) or self._http
            found[name] = {**writer.status(), **({} if receiver is None else receiver.status())}
        return found

    def _begin(self, name: str, connector: ReceivedConnector, marker: MarkerForm | None) -> None:
        is_patient = isinstance(connector, MqttConnector)
        what = f"stream {name!r} at site {self._site!r}"
        writer = LandingWriter(self._open_folder(name, connector), what, is_patient=is_patient)
        writer.start()
        self._writers[name] = writer
        if isinstance(connector, MqttConnector):
            from catchment.receivers.mqtt import MqttReceiver, MqttSettings

            config = connector.client_config
            settings = MqttSettings.read(None if config is None else self._project.folder / config)
            client_id = f"catchment-{self._project.name}-{self._site}-{name}"
            self._mqtt[name] = MqttReceiver(connector, self._site, client_id, settings, writer)
            self._mqtt[name].start()
        else:
            self._listen().serve(name, writer, marker)

    def _end(self, name: str) -> None:
        if name in self._mqtt:
            self._mqtt.pop(name).stop()
        elif self._http is not None:
            self._http.end(name)
        self._writers.pop(name).stop()

    def _listen(self) -> HttpReceiver:
        if self._http is None:
            from catchment.receivers.http import HttpAddress, HttpReceiver

            address = self._project.sites[self._site].http
            assert address is not None, "the catalog has refused a site without an address"
            files = self._project.security.files_of(self._site, self._project.folder)
            listened = HttpAddress(*address, files.tls_cert, files.tls_key)
            self._http = HttpReceiver(listened, self._project.site_folder(self._site))
            self._http.start()
        return self._http

    def _open_folder(self, stream: str, connector: ReceivedConnector) -> LandingFolder:
        folder = self._project.landing_folder(self._site, stream)
        return LandingFolder(folder, connector.format, connector.max_waiting_bytes, _max_keys(connector))


def _is_received_here(connector: object) -> TypeGuard[ReceivedConnector]:
    """Return whether records come from outside; the matches of feeds are handed over in the process of the center."""
    return isinstance(connector, ReceivedConnector) and not isinstance(connector, FeedConnector)


def _max_keys(connector: ReceivedConnector) -> int:
    """Return how many of the newest deliveries of a stream are recognised when they are sent again."""
    if isinstance(connector, HttpConnector | FeedConnector):
        return MAX_HTTP_KEYS
    from catchment.receivers.mqtt import REMEMBERED

    return REMEMBERED
