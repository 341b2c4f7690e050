"""The custom resources as pydantic models: the source of `crds/`, of parsing, and of the words on each field."""
