"""Tests of the metrics, of the alerts on them and of the dashboards."""
