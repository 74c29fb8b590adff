"""A recipe for ``nsys recipe``: nsys loads ``recipe.py`` in its own Python, which need not have three-walls."""
