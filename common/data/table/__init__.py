"""Tables: a public schema of columns, and the rules that turn cells into codes and back."""
