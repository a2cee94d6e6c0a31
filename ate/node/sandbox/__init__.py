"""Sandbox drivers: driver.py is the interface, gvisor.py runs on runsc, oci_spec.py builds container configs."""
