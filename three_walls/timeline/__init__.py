"""Tables -> intervals: what each operation is, whose it is, and where the steps begin and end."""
