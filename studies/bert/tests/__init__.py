"""Tests of studies.bert."""
