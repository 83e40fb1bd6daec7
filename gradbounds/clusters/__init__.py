"""Dask clusters, given by an address or the name of a batch queue."""
