"""Dask clusters that sample networks, given by the address of their scheduler."""
