"""Who may call what: the table (`table.py`), the policies people write (`policies.py`), and the gate that holds both
against every call (`gate.py`)."""
