"""One random network: engines, streams of random numbers, and the pass that records quantities."""
