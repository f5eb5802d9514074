"""Audits of simulated silos: `dpdd-sim audit`, builds with less noise to show that it can fail, and attacks on products."""
