"""The recipe that ``nsys recipe three_walls`` runs, in the Python of nsys."""
