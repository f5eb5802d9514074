"""Audits of a silo: canaries among its records, and what a release says about them."""
