"""The custom resources as pydantic models: the source of `crds/`, of parsing, and of the documentation of each field."""
