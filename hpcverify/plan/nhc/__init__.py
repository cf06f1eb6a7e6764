"""What LBNL's Node Health Check (mej/nhc) is told, as expectations of the check `host`."""
