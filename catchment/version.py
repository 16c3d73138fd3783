"""The version of catchment: this is the one place where it stands."""

VERSION = "0.2.0"
