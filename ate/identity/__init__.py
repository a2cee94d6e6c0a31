"""Who is who: the CA pool, SPIFFE certificates, TLS contexts that reload, and the broker role that issues them.

`ca.py`, `spiffe.py` and `tls.py` are a library for every role; `broker.py` is the role on top; `client.py` is how the
other roles obtain and renew what the broker issues.
"""
