"""The report on the terminal, as HTML and as JSON. Renderers decide nothing."""
