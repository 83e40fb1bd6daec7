"""Dask clusters that sample networks, given by their address or by the name of a batch queue."""
