"""Dask clusters, given by an address or by the name of a batch queue."""
