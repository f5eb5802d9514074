"""Audits of simulated silos: a release attacked, its noise measured, builds that must fail; attacks on products."""
