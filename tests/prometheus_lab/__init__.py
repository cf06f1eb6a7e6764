"""Prometheus, node_exporter and Alertmanager of Debian, for the tests."""
