"""Tests of gradbounds.studies.bert."""
