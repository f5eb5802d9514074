"""Pages for people: one HTML file each, which fetches nothing. The parts serve every report; none reads a run."""
