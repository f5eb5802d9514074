"""Building the small public dataset that is shipped."""
