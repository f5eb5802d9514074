"""The methods: the contract in `base`, who there is in `registry`, the public half of each family in a folder."""
