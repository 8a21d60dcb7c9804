"""Runs elsewhere: releases, probes and certificates."""
