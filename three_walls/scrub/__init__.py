"""Export -> an export that can be shared: what analysis needs stays, what tells of people and machines goes."""
