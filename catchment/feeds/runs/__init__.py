"""Runs of devices and a cloud: in one process, as processes over MQTT, and what is measured of them."""
