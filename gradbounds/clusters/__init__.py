"""Dask clusters, given by an address or described by a file."""
