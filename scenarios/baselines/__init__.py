"""What the same budget buys without distillation."""
