"""Where a table's records come from: CSV and Parquet files, and SQL queries, as blocks of raw columns."""
