"""Studies on data that is no benchmark, drawn in code: three silos and a coordinator, ready to be run by hand."""
