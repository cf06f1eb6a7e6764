"""The configuration of LBNL's Node Health Check (mej/nhc), as expectations of the check `host`."""
