"""Wire models: everything that crosses a process boundary, as pydantic types.

Pure: imports the standard library and pydantic only, so that the operator, the agent, the door and the engine
plug-in can all share it; layouts, which must be read in little time, use `_native` instead of pydantic. Every model
forbids unknown fields inside one protocol version: a peer that sends more than we know is a peer of another version,
and says so in `protocol`.
"""
