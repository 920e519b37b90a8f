"""The version, read by setup.py as well."""

VERSION = "0.1.0"
