"""Pages of docs/, written from measured results."""
