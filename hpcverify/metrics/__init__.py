"""Metrics: what Prometheus collects through the text files of node_exporter."""
