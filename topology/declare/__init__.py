"""The DSL: streams, tables, groups, windows, joins."""
