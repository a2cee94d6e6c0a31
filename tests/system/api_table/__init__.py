"""The conformance table of the api: every RPC x every rule of the contract that applies to it, a row each.

A module here holds the rows of one topic; `tests/system/test_api_conformance.py` runs them all against one running
role. A row gets an atespace of its own where it needs one, and no row depends on another.
"""
