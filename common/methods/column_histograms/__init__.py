"""Private histograms of a table's columns: what there is to know before its schema is final."""
