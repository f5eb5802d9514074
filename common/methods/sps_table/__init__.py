"""SPS for tables: class-conditional marginals of columns and of pairs of columns, in one noisy sum."""
