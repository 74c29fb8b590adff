"""The report for the terminal and as HTML, Markdown, CSV and JSON. Renderers decide nothing."""
