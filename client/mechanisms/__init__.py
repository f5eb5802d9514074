"""The private halves of the methods: the only way from records to something that may leave."""
