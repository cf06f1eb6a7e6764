"""BMCs for tests: resources of Redfish, served over TLS by sushy-tools, and what goes wrong."""
