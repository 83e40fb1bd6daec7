"""Tests of gradbounds.studies."""
