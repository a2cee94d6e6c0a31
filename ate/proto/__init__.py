"""Wire contract: the .proto files and the code generated from them by `make proto`.

Nothing here is edited by hand; `make check` proves that the generated code is fresh.
"""
