"""Tests of what installs hpcverify on a site's machines."""
