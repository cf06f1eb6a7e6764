"""The chassis of a node as its BMC tells it over Redfish, read from another machine."""
