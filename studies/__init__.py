"""Experiments of the paper and of our own that run from a checkout: `python -m studies NAME`.

A folder is one study with its README, its command and its tests. The modules beside the folders are shared by several.
The library never imports them.
"""
