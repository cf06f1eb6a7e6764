"""
The dashboards for Grafana, as code: ``python -m dashboards`` writes ``monitoring/*.json``.

Nothing in them is of one site: the datasource, the controller and the address of our pages are
variables.
"""
