"""Pages of docs/, written from what was measured."""
