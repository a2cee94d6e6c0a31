"""Puts tests/ on the import path, so that unit and system tests can share a service such as `rpc_echo`."""
